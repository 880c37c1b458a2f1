"""Aggregation of logs: messages of the topics ``log.NODE`` and ``log.NODE.LEVEL``, of every wire, in one file.

Rules:
- A record has the time, node, level, wire and text of a message. The level is that of the topic, of the header
  ``X-Level``, or the member ``level`` of a body that is a JSON object, else ``info``; the text is the member
  ``message`` or ``msg`` of such an object, else the body. Other members of the object are ``fields``.
- Texts are cut at `MAX_TEXT` characters, bodies at four bytes for each. Messages beyond `RATE` a second are
  counted, and not collected.
- The records are appended to a file (`broker.operate.line_file`). The newest are kept in memory as well, for readers.
- A user is shown the records of nodes to whose topic ``log.NODE`` it may subscribe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import islice, takewhile
from typing import Annotated, Any, Literal, NamedTuple, cast

import attrs
import msgspec
from msgspec import Meta
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from broker.access.rights import TOPIC as TOPIC_KIND
from broker.access.rights import Grants
from broker.core.model import MAX_TEXT as MAX_NAME
from broker.core.rates import Bucket
from broker.operate.line_file import LineFile
from broker.rest.http_endpoint import Call, Endpoint
from broker.rest.messages import Response, answer
from broker.wall_clock import wall
from broker.wires.tables import matcher

FILE = "collected.jsonl"
"""Name of the file in the state directory."""

FILE_BYTES = 16 * 1024**2
FILES = 8
"""Size at which the file is rotated, and rotated files that are kept: 144 MiB, some 700,000 records."""

TOPIC = b"log."
"""Beginning of the topics."""

MAX_TEXT = 8_192
"""Characters of a text, and bytes of the other members: a traceback fits."""

MAX_KEPT = 10_000
"""Records in memory: what an operator scrolls through."""

KEPT_BYTES = 4 * 1024**2
"""Bytes of those records as lines, the form in which they are kept: 400 each. The objects of a decoded body take up to
30 times as many."""

RATE = 2_000
"""Messages a second: some 5 % of a core. The disk takes several times as many."""

PAGE = 100
MAX_PAGE = 1_000
"""Records of one answer."""

LevelName = Literal["debug", "info", "warning", "error", "critical"]
LEVELS: Mapping[str, int] = {"debug": 0, "info": 1, "warning": 2, "error": 3, "critical": 4}

_NAMES: Mapping[str, LevelName] = {
    "debug": "debug",
    "trace": "debug",
    "info": "info",
    "notice": "info",
    "warning": "warning",
    "warn": "warning",
    "error": "error",
    "err": "error",
    "critical": "critical",
    "crit": "critical",
    "fatal": "critical",
}
"""Levels by the names that programs give them, in lower case."""


class LogRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record. ``id`` counts from the time of the start of the broker, in microseconds since the epoch: the ids of
    each run are above those of earlier ones. ``time`` is in RFC 3339, UTC."""

    id: int
    time: str
    node: str
    level: LevelName
    wire: str
    text: str
    fields: dict[str, Any] | None = None


class KeptRecord(NamedTuple):
    """A record in memory: its line, and what readers choose it by."""

    id: int
    node: str
    level: LevelName
    line: bytes


class CollectedLog(LineFile):
    """The collected log in the file ``path``."""

    def __init__(self, path: str, clock: IReactorTime, in_thread: Callable[..., Deferred[Any]]) -> None:
        super().__init__("collected log", path, FILE_BYTES, FILES, clock, in_thread)
        self._kept: deque[KeptRecord] = deque()
        self._kept_bytes = 0
        self.last = self._before = int(wall(clock) * 1_000_000)
        """The id of the newest record, and that before the first one."""
        self._bucket = Bucket(RATE, clock.seconds())
        self._beyond = 0

    def publish(self, wire: str, topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]) -> None:
        """Collect a published message, if its topic is one of the log."""
        if not topic.startswith(TOPIC) or len(topic) == len(TOPIC):
            return
        if not self._bucket.take(RATE, RATE, self._clock.seconds()):
            self._beyond += 1
            return
        most = 4 * MAX_TEXT  # a body may have mebibytes
        record = self._record(wire, topic, headers, b"".join(part[:most] for part in body)[:most])
        try:
            line = msgspec.json.encode(record)
        except RecursionError:  # the body was just not too deep to be decoded
            line = msgspec.json.encode(msgspec.structs.replace(record, fields=None))
        self.last = record.id
        self._kept.append(KeptRecord(record.id, record.node, record.level, line))
        self._kept_bytes += len(line)
        while len(self._kept) > MAX_KEPT or self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft().line)
        self.append(line)

    def records(self, after: int, chosen: Callable[[KeptRecord], bool], most: int) -> tuple[list[bytes], int]:
        """Return the lines of the newest records after an id that are chosen, the oldest first, and the number of
        records after that id that are left out: those that are no longer kept, and chosen ones beyond ``most``."""
        oldest = self._kept[0].id if self._kept else self.last + 1
        found = filter(chosen, takewhile(lambda record: record.id > after, reversed(self._kept)))
        lines = [record.line for record in islice(found, most)]
        # Of records before the start of the broker none is known.
        missed = max(0, oldest - max(after, self._before) - 1) + sum(1 for _ in found) if after else 0
        return lines[::-1], missed

    def counts(self) -> Mapping[str, int]:
        """Return the counters, by ``collected.REASON``."""
        counts = {**super().counts(), "beyond": self._beyond}
        return {f"collected.{name}": count for name, count in counts.items()}

    def _record(self, wire: str, topic: bytes, headers: Sequence[bytes], body: bytes) -> LogRecord:
        node, _, end = topic[len(TOPIC) :].decode(errors="replace").rpartition(".")
        level = _NAMES.get(end.lower()) if node else None
        if level is None:
            node = topic[len(TOPIC) :].decode(errors="replace")
        text, fields = body.decode(errors="replace"), None
        if body[:1] == b"{" and len(body) <= MAX_TEXT:
            try:
                fields = msgspec.json.decode(body, type=dict[str, Any])
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                fields = None
        if fields is not None:
            said = fields.pop("message", None) or fields.pop("msg", None)
            text = said if isinstance(said, str) else text
            given = fields.pop("level", None)
            level = level or (_NAMES.get(given.lower()) if isinstance(given, str) else None)
        for name, value in zip(headers[::2], headers[1::2], strict=False):
            if bytes(name).lower() == b"x-level" and level is None:
                level = _NAMES.get(bytes(value).decode(errors="replace").lower())
        return LogRecord(
            id=self.last + 1,
            time=self.stamp(),
            node=node[:MAX_NAME],
            level=level or "info",
            wire=wire,
            text=text[:MAX_TEXT],
            fields=fields or None,
        )


@attrs.frozen
class LogsQuery:
    """The query of collected records."""

    node: Annotated[str, Meta(max_length=MAX_NAME, description="shell pattern of nodes")] = "*"
    level: Annotated[LevelName, Meta(description="lowest level")] = "debug"
    after: Annotated[int, Meta(ge=0, description="records after this id only, to follow the log")] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE, description="records of the answer")] = PAGE


@attrs.frozen
class Logs:
    """The newest records, the oldest first.

    ``last`` is the id of the newest record of all, to be given as ``after`` next. ``missed`` is the number of records
    after the given id that are left out: those that are in the file only, and older ones beyond ``limit``. An id that
    is higher than ``last`` is from before a restart, and the clock was set back: it counts as 0.
    """

    last: int
    missed: int
    records: list[LogRecord]


def shown(collected: CollectedLog, query: LogsQuery, grants: Grants) -> Logs:
    """Return the answer to a query of a user with these grants."""
    matches, least = matcher(query.node), LEVELS[query.level]

    @cache
    def node_chosen(node: str) -> bool:
        return (matches is None or matches(node) is not None) and grants.may("subscribe", f"log.{node}", TOPIC_KIND)

    def chosen(record: KeptRecord) -> bool:
        return LEVELS[record.level] >= least and node_chosen(record.node)

    after = query.after if query.after <= collected.last else 0
    found, missed = collected.records(after, chosen, query.limit)
    return Logs(collected.last, missed, cast("list[LogRecord]", list(map(msgspec.Raw, found))))


def log_endpoints(collected: CollectedLog) -> list[Endpoint]:
    """Return the endpoint."""

    def read(call: Call) -> Response:
        return answer(shown(collected, call.query, call.grants))

    return [
        Endpoint(
            "GET",
            "/v1/logs",
            "read_logs",
            "Lists the newest records of the collected log: messages of the topics log.NODE.",
            read,
            query=LogsQuery,
            answer=Logs,
            operation="subscribe",
            by_name=True,
            tag="events",
        )
    ]
