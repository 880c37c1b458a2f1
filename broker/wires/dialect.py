"""Dialects: the commands of a wire that operators type at the console, besides views."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from broker.access.principal import Principal
from broker.net.peer_interfaces import Peer, PeerSession


class Dialogue(Protocol):
    """One operator's conversation in one dialect. Answers are written to the peer of the conversation."""

    @property
    def session(self) -> PeerSession:
        """The session of the wire behind the conversation."""

    def review(self) -> None:
        """Take the rights of the operator again after a change of the users file."""

    def say(self, message: Any) -> None:
        """Carry out a message that `Dialect.messages` or `Dialect.typed` returned."""


class Dialect(Protocol):
    """The commands of one protocol."""

    @property
    def prefix(self) -> str:
        """The word before each command; empty for the commands that need none."""

    @property
    def ops(self) -> Collection[str]:
        """The commands, without the prefix."""

    def messages(self, text: str) -> Sequence[Any]:
        """Return the messages that were typed as JSON. Raises `broker.core.errors.Malformed`."""

    def typed(self, op: str, words: Sequence[str]) -> Any:
        """Return the message that was typed as words. Raises `broker.core.errors.Malformed`."""

    def list(self) -> Sequence[str]:
        """Return all commands with their parameters, a line each."""

    def help(self, op: str) -> str:
        """Return the parameters of a command, and its effect."""

    def converse(self, peer: Peer, principal: Principal) -> Dialogue:
        """Begin the conversation of an operator, who is authenticated as that user."""
