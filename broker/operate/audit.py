"""The audit log: administrative acts as lines of JSON, appended to a file.

Rules:
- A line has the time, the user, the means of authentication, the peer's address, the listener, the operation, its
  object, the result, and the id of a request over HTTP. Values that peers choose are cut at `MAX_TEXT` characters.
- If the disk fails, acts go on (`broker.operate.line_file`): an operator must be able to shut down a broker with a full
  disk. Each act is in the daemon's log as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from broker.access.principal import Act
from broker.operate.line_file import LineFile

FILE = "audit.jsonl"
"""Name of the file in the state directory, unless the configuration has another."""

MAX_TEXT = 1_000
"""Characters of a value in a line."""


class AuditRecord(msgspec.Struct, frozen=True):
    """A line of the audit log. ``time`` is in RFC 3339, UTC; ``request_id`` is empty for wires without requests."""

    time: str
    user: str
    method: str
    address: str
    listener: str
    operation: str
    object: str
    result: str
    request_id: str


class AuditLog(LineFile):
    """Implementation of `broker.access.principal.Audit` by a file."""

    def __init__(
        self, path: str, size: int, files: int, clock: IReactorTime, in_thread: Callable[..., Deferred[Any]]
    ) -> None:
        super().__init__("audit log", path, size, files, clock, in_thread)

    def counts(self) -> Mapping[str, int]:
        """Return the counters, by ``audit.REASON``."""
        return {f"audit.{name}": count for name, count in super().counts().items()}

    def record(self, act: Act) -> None:
        """Record an act, with the present time."""
        principal = act.principal
        record = AuditRecord(
            time=self.stamp(),
            user=principal.name,
            method=principal.method.value,
            address=principal.address,
            listener=act.listener,
            operation=act.operation,
            object=act.object[:MAX_TEXT],
            result=act.result,
            request_id=principal.request_id,
        )
        about = msgspec.structs.asdict(record) | {"user": record.user or "a peer without a user"}
        del about["time"]
        if not record.request_id:
            del about["request_id"]
        self.log.info("audit: {user} ({method}) at {address} over {listener}: {operation} {object}: {result}", **about)
        self.append(msgspec.json.encode(record))
