"""Dialects: the commands of a wire that operators type at the console, besides views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from broker.net.interfaces.peer import Peer, Session


class Typist(Protocol):
    """One operator's conversation in one dialect. The answers are written to the peer of the conversation."""

    session: Session

    def say(self, message: object) -> None:
        """Carry out what `Dialect.json` or `Dialect.typed` returned."""


class Dialect(Protocol):
    """The commands of one protocol."""

    prefix: str
    """The word before each command; empty for the commands that need none."""

    def json(self, text: str) -> object:
        """Return the message that was typed as JSON. Raises `broker.core.errors.Malformed`."""

    def typed(self, op: str, words: Sequence[str]) -> object:
        """Return the message that was typed as words. Raises `broker.core.errors.Malformed`."""

    def ops(self) -> Sequence[str]:
        """Return the names of all commands, without the prefix."""

    def list(self) -> Sequence[str]:
        """Return all commands with their parameters, a line each."""

    def help(self, op: str) -> str:
        """Return the parameters of a command, and what it does."""

    def converse(self, peer: Peer, closed: Callable[[], None]) -> Typist:
        """Begin the conversation of an operator, who is authenticated as an administrator."""
