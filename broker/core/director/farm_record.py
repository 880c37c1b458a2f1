"""Record of the farm for the next start: the Context Servers, and the contexts that are open on each.

Rules:
- The record is a file in the state directory, a checksum on a line and JSON after it. It is replaced as a whole in the
  worker thread: at most every `RECORD_SECONDS` after changes, and every `REFRESH_SECONDS` without, so that its age is
  that of the broker's end.
- It is soft state: one that cannot be read, or is older than `FRESH_SECONDS`, is ignored, and a failed write is
  repeated with the next one.
- More than `MAX_CONTEXTS` contexts are not recorded; then the servers are recorded without.

`returning` uses it after a restart.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker import small_file
from broker.blocking import blocking
from broker.core.damage import checksum
from broker.core.director.farm import Farm
from broker.wall_clock import wall

RECORD_SECONDS = 1.0
"""Seconds between two writes. A killed broker loses the contexts that opened or closed meanwhile."""

REFRESH_SECONDS = 30.0
"""Seconds after which an unchanged record is written again."""

FRESH_SECONDS = 300.0
"""Age up to which a record is used, in seconds: a restart takes some, and after longer the users have gone."""

MAX_CONTEXTS = 20_000
"""Contexts of a record: it is made in the reactor thread, which takes some 5 ms for these."""

MAX_FILE = 16 * 1024 * 1024
"""Bytes of a record that is read: contexts at the limit have names of 40 characters in real farms, up to 255."""

VERSION = 1
"""Version of the file's format."""


@attrs.frozen(eq=False)
class RecordedServer:
    """A Context Server. ``families`` maps each to True if it is restricted; ``contexts`` are those that users
    were sent to."""

    label: str
    addresses: dict[str, str]
    families: dict[str, bool]
    contexts: tuple[str, ...]


def recorded(farm: Farm) -> list[RecordedServer]:
    """Return the servers of a farm that have an address, with their contexts."""
    few = len(farm.presence.contexts) <= MAX_CONTEXTS
    return [
        RecordedServer(
            server.label,
            dict(server.addresses),
            dict(server.families),
            tuple(name for name, context in server.contexts.items() if not context.hidden) if few else (),
        )
        for server in farm.servers
        if server.addresses
    ]


def encode(servers: Iterable[RecordedServer], at: float) -> bytes:
    """Return the file of a record that was made at that time, in seconds since the epoch."""
    rows = [attrs.asdict(server) for server in servers]
    text = json.dumps({"version": VERSION, "at": at, "servers": rows}, separators=(",", ":")).encode("ascii")
    return b"%d\n%b" % (checksum(text), text)


def decode(data: bytes) -> tuple[float, list[RecordedServer]]:
    """Return the time and the servers of a record. Raises ValueError."""
    sum, _, text = data.partition(b"\n")
    if sum != b"%d" % checksum(text):
        raise ValueError("it does not match its checksum")
    try:
        value = json.loads(text)
        if value["version"] != VERSION:
            raise ValueError(f"the version {value['version']!r} is unknown")
        servers = [
            RecordedServer(
                _text(row["label"]),
                {_text(protocol): _text(place) for protocol, place in row["addresses"].items()},
                {_text(family): bool(restricted) for family, restricted in row["families"].items()},
                tuple(_text(name) for name in row["contexts"]),
            )
            for row in value["servers"]
        ]
        return float(value["at"]), servers
    except (AttributeError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"it has another form: {error}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


@blocking
def read(path: str, now: float) -> Sequence[RecordedServer]:
    """Return the servers of a fresh record; none if there is none. Logs the reason if a record cannot be used."""
    if not os.path.exists(path):
        return []
    try:
        at, servers = decode(small_file.read(path, MAX_FILE))
    except ValueError as error:
        _log.warn("the record of the director is ignored: {path}: {why}", path=path, why=error)
        return []
    return servers if abs(now - at) <= FRESH_SECONDS else []


class FarmRecorder:
    """Keeps the record of a farm in the file at ``path``. ``in_thread`` runs a function in the worker thread."""

    def __init__(self, clock: IReactorTime, in_thread: Callable[..., Deferred[Any]], farm: Farm, path: str) -> None:
        self._clock = clock
        self._in_thread = in_thread
        self._farm = farm
        self._path = path
        self._written = -1
        """Number of changes of the farm that the file has."""
        self._at = 0.0
        self._writing = False
        self._failed = False
        self._timer: IDelayedCall | None = clock.callLater(RECORD_SECONDS, self._look)

    def stop(self) -> None:
        """Write no more: from now on servers leave since the broker stops. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = self._clock.callLater(RECORD_SECONDS, self._look)
        now = self._clock.seconds()
        changes = self._farm.changes
        if self._writing or (changes == self._written and 0 <= now - self._at < REFRESH_SECONDS):
            return
        self._writing = True
        servers = recorded(self._farm)

        def written(_: object) -> None:
            self._written, self._at, self._failed = changes, now, False

        def failed(failure: Any) -> None:
            if not self._failed:
                self._failed = True
                _log.warn("the record of the director could not be written: {why}", why=failure.value)

        def ended(_: object) -> None:
            self._writing = False

        self._in_thread(_write, self._path, servers, wall(self._clock)).addCallbacks(written, failed).addBoth(ended)


@blocking
def _write(path: str, servers: Sequence[RecordedServer], at: float) -> None:
    """Replace the file. To be called in the worker thread."""
    small_file.replace(path, encode(servers, at))


_log = Logger()
