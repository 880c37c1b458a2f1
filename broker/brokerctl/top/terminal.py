"""The terminal of the live display: keys one by one, and a screen of its own that is left as it was."""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text
from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure as TwistedFailure
from zope.interface import implementer

from broker.brokerctl.top.keys import keys

MAX_READ = 1_024
"""Bytes of one read: a pasted text comes in several."""


@implementer(IReadDescriptor)
class Keyboard:
    """Standard input as a source of keys. ``ended`` is called at its end: the terminal is gone."""

    def __init__(self, pressed: Callable[[str], None], ended: Callable[[], None]) -> None:
        self._pressed, self._ended = pressed, ended

    def fileno(self) -> int:
        """Return the descriptor of standard input."""
        return sys.stdin.fileno()

    def doRead(self) -> None:
        """Take the typed text."""
        try:
            data = os.read(self.fileno(), MAX_READ)
        except OSError:
            data = b""
        if not data:
            self._ended()
        for key in keys(data):
            self._pressed(key)

    def connectionLost(self, reason: TwistedFailure) -> None:
        """Part of the interface of descriptors."""

    def logPrefix(self) -> str:
        """Part of the interface of descriptors."""
        return "keyboard"


@contextmanager
def terminal(
    reactor: Any,
    console: Console,
    pressed: Callable[[str], None],
    resized: Callable[[], None],
    ended: Callable[[], None],
) -> Iterator[Callable[[list[Text]], None]]:
    """Take the terminal. Yields a function that shows lines; the terminal is restored at the end."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    keyboard = Keyboard(pressed, ended)
    handler = signal.signal(signal.SIGWINCH, lambda number, frame: reactor.callFromThread(resized))
    shown: list[str] = []
    with Live(
        console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False, transient=True
    ) as live:

        def show(lines: list[Text]) -> None:
            # Over a slow link an unchanged screen costs nothing.
            drawn = [f"{console.size}", *(line.markup for line in lines)]
            if drawn != shown:
                shown[:] = drawn
                live.update(Text("\n", no_wrap=True).join(lines), refresh=True)

        # Ctrl-C stays a signal.
        tty.setcbreak(descriptor)
        reactor.addReader(keyboard)
        try:
            yield show
        finally:
            reactor.removeReader(keyboard)
            signal.signal(signal.SIGWINCH, handler)
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
