"""Store of a member's memory: a file of JSON in the state directory.

Rules:
- The newest value wins: while one is being written, later ones replace each other, and the last one is written next.
- The file is replaced atomically, and is durable once its write has ended.
- A failed write is retried with growing pauses until it succeeds, or until the member stops.
- A file of another cluster is ignored. One of another name has the ids of this cluster, but no lease of this member.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from typing import Any

import attrs
import msgspec
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.cluster.settings import Memory
from broker.core.disk_errors import DiskErrors

FILE = "cluster.json"
"""Name of the file in the state directory."""

MAX_SIZE = 64 * 1024
"""Bytes of the file: a memory has some hundred."""


class _File(msgspec.Struct, frozen=True):
    """Content of the file. Unknown members are ignored, and missing ones have their defaults."""

    farm: str
    name: str
    instance: str = ""
    lease: int = 0
    next_id: int = 0
    end_id: int = 0
    spare: tuple[int, int] = (0, 0)
    epoch: str = ""
    revision: int = 0


class FileMemory:
    """`broker.cluster.settings.ClusterMemory` in a file of the directory ``state``.

    ``farm`` and ``name`` are those of the member. ``in_thread`` runs a function in the thread of the disk.
    """

    log = Logger()

    def __init__(
        self, state: str, farm: str, name: str, clock: IReactorTime, in_thread: Callable[..., Deferred[Any]]
    ) -> None:
        self._path = os.path.join(state, FILE)
        self._farm = farm
        self._name = name
        self._clock = clock
        self._in_thread = in_thread
        self._errors = DiskErrors(
            self.log,
            clock,
            OSError,
            "the memory of the cluster could not be stored: {why}. It is tried again, every {most:g} seconds at the "
            "latest",
            "the memory of the cluster is being stored again, after {failures} failures",
        )
        self._next: Memory | None = None
        self._writing = False
        self._retry: IDelayedCall | None = None
        self._stopped: Deferred[None] | None = None

    @property
    def trouble(self) -> str:
        """The reason for which the memory cannot be written; empty if it can."""
        return self._errors.why

    def load(self) -> Memory:
        """See `ClusterMemory`. A missing or damaged file is an empty memory. Blocks."""
        try:
            with open(self._path, "rb") as file:
                found = msgspec.json.decode(file.read(MAX_SIZE), type=_File)
        except FileNotFoundError:
            return Memory()
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            self.log.warn(
                "{path} cannot be read: {why}; this broker joins its cluster as a new member",
                path=self._path,
                why=str(error),
            )
            return Memory()
        if found.farm != self._farm:
            return Memory()
        values = msgspec.structs.asdict(found)
        memory = Memory(**{field.name: values[field.name] for field in attrs.fields(Memory)})
        return memory if found.name == self._name else attrs.evolve(memory, instance="", lease=0)

    def save(self, memory: Memory) -> None:
        """See `ClusterMemory`."""
        self._next = memory
        self._write()

    def stop(self) -> Deferred[None]:
        """Write what is pending, in one attempt. Fires when that has ended."""
        assert self._stopped is None
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
            self._write()
        self._stopped = Deferred()
        return self._stopped if self._writing else succeed(None)

    def _write(self) -> None:
        if self._writing or self._retry is not None or self._next is None:
            return
        memory, self._next = self._next, None
        values = attrs.asdict(memory, recurse=False)
        data = msgspec.json.encode(_File(farm=self._farm, name=self._name, **values))
        self._writing = True
        done = self._in_thread(_replace, self._path, data)
        done.addCallbacks(self._written, self._failed, errbackArgs=(memory,))

    def _written(self, result: object) -> None:
        self._writing = False
        self._errors.over()
        self._write()
        self._end()

    def _failed(self, failure: Failure, memory: Memory) -> None:
        self._writing = False
        wait = self._errors.add(failure)
        if self._next is None:
            self._next = memory
        if self._stopped is None:
            self._retry = self._clock.callLater(wait, self._again)
        else:
            self._next = None
        self._end()

    def _again(self) -> None:
        self._retry = None
        self._write()

    def _end(self) -> None:
        if self._stopped is not None and not self._writing and not self._stopped.called:
            self._stopped.callback(None)


def _replace(path: str, data: bytes) -> None:
    """Replace the file atomically and durably. Raises OSError."""
    directory = os.path.dirname(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{FILE}.", dir=directory)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
