"""Launchers: programs that administrators may start, and their switches.

Rules:
- The table comes from the configuration. The switch ``on`` of an entry keeps its last position across restarts and
  reloads; the configuration's ``on`` applies only until the first change.
- Launching switches on, even if the program cannot be run; shutting down a server of that name switches off.
- A program may be launched while it runs: a second instance may be intended, and only the administrator can decide.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import attrs
from twisted.logger import Logger
from zope.interface import implementer

from broker.core.interfaces import ILaunchers
from broker.core.model import Launcher


@implementer(ILaunchers)
class Launchers:
    """`ILaunchers` over a table of entries.

    ``switched_on`` has the stored switches by name, those of entries that are no longer configured included;
    ``remember`` stores a changed switch. ``spawn`` starts a program, given the launcher's name and the words of its
    command line, without waiting for it; it raises OSError if the program cannot be run.
    """

    log = Logger()

    def __init__(
        self,
        entries: Sequence[Launcher],
        switched_on: Mapping[str, bool],
        spawn: Callable[[str, list[str]], None],
        remember: Callable[[str, bool], None],
    ) -> None:
        self._switches = dict(switched_on)
        self._spawn = spawn
        self._remember = remember
        self.replace(entries)

    def replace(self, entries: Sequence[Launcher]) -> None:
        """Replace the table on a reload. Switches stay; running programs are not affected."""
        self._entries = {entry.name: entry for entry in entries}

    def start_all(self, mode: Literal["initial", "recover", "restart"]) -> None:
        """Launch the programs that start with the broker: those switched on, and in mode ``initial`` the initial ones
        too."""
        for launcher in self.describe():
            if launcher.on or (mode == "initial" and launcher.initial):
                self.launch(launcher.name)

    def launch(self, name: str) -> str:
        entry = self._entries.get(name)
        if entry is None:
            return f"fail {name} not found"
        self._switch(entry, True)
        problem = self._run(entry)
        if problem is not None:
            self.log.warn("launcher {name!r}: {problem}", name=name, problem=problem)
            return f"fail {name} {problem}"
        return f"start {name}"

    def describe(self) -> Sequence[Launcher]:
        return [attrs.evolve(entry, on=self._is_on(entry)) for entry in self._entries.values()]

    def switch_off(self, name: str) -> None:
        entry = self._entries.get(name)
        if entry is not None:
            self._switch(entry, False)

    def _is_on(self, entry: Launcher) -> bool:
        return self._switches.get(entry.name, entry.on)

    def _switch(self, entry: Launcher, on: bool) -> None:
        if self._is_on(entry) != on:
            self._switches[entry.name] = on
            self._remember(entry.name, on)

    def _run(self, entry: Launcher) -> str | None:
        """Start the program. Returns the error text, None on success."""
        try:
            words = shlex.split(entry.script)
        except ValueError as error:
            return f"cannot split its script: {error}"
        if not words:
            return "its script is empty"
        try:
            self._spawn(entry.name, words)
        except OSError as error:
            return f"cannot run {words[0]}: {error.strerror or error}"
        return None
