"""Orders in the dialects of wires: the commands of the console, carried out for an HTTP request.

An order is a conversation of one message with a session of the wire, like that of the console. Its answers are written
at once, or there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from broker.access.principal import Principal
from broker.core.errors import Reason, Refusal
from broker.web.problem import Problem
from broker.wires.dialect import Dialect

MAX_ANSWER = 1024 * 1024
"""Bytes of the answers of one order: more than any has."""


class _Listener:
    """The peer of a conversation: it keeps the answers."""

    local = True
    behind = False
    vanished = False
    unacknowledged = False
    certificate: tuple[str, ...] = ()

    def __init__(self, address: str, request_id: str) -> None:
        self.address = f"http {address}"
        self.request_id = request_id
        self.answers = bytearray()
        self.refusal: Refusal | None = None
        self.write_first = self.write

    def write(self, data: bytes) -> None:
        """Keep an answer."""
        if len(self.answers) < MAX_ANSWER:
            self.answers += data

    def close(self) -> None:
        """Do nothing: the conversation ends with the order."""

    def refused(self, refusal: Refusal) -> bool:
        """Keep the first refusal."""
        self.refusal = self.refusal or refusal
        return True

    def debug(self, label: str, text: str) -> None:
        """Ignore a line for the log."""

    def hold(self, size: int) -> bool:
        """Do nothing: the session ends with the order."""
        return True

    def authenticated(self) -> None:
        """Do nothing: there is no deadline."""


class Orders:
    """Orders in the dialects that exist now. ``listener`` is the title in rights and in the audit log."""

    def __init__(self, dialects: Callable[[], Sequence[Dialect]], listener: str) -> None:
        self._dialects = dialects
        self._listener = listener

    def give(self, principal: Principal, prefix: str, op: str, parameters: Mapping[str, object]) -> str:
        """Carry out an op of the dialect with a prefix for a user, and return its answers.

        The session of the wire checks the user's rights, and records the act. Raises `Refusal`, or `Problem` 404.
        """
        dialect = next((each for each in self._dialects() if each.prefix == prefix and op in each.ops), None)
        if dialect is None:
            raise Problem(404, f"{f'{prefix} {op}'.strip()} is an order of a wire that is not open", Reason.UNKNOWN_OP)
        words = [f"{name}={value}" for name, value in parameters.items()]
        peer = _Listener(principal.address, principal.request_id)
        typist = dialect.converse(peer, principal, self._listener)
        try:
            typist.say(dialect.typed(op, words))
        finally:
            typist.session.lost()
        if peer.refusal is not None:
            raise peer.refusal
        return peer.answers.decode("utf-8", "replace").strip()
