"""The names that have logged in from each address, in a file: after a restart of the broker, too, guesses at other
names do not keep them out (`broker.access.login_gate`).

Each line has a network and a name. The file is written some seconds after a change, in a thread. It is a help and no
record: a line that cannot be read is left out, and a disk that fails costs the help only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker import small_file
from broker.access.login_gate import MAX_REMEMBERED, Key, LoginGate
from broker.access.password_verifiers import MAX_USER, is_user
from broker.blocking import blocking

FILE = "known_logins"
"""Name of the file in the state directory."""

WRITE_AFTER = 5.0
"""Seconds from the first change to the write: a farm that comes back makes one write, and not a thousand."""

MAX_ADDRESS = 100
"""Characters of a network: an IPv6 prefix has under 50."""

MAX_BYTES = MAX_REMEMBERED * (MAX_ADDRESS + MAX_USER + 2)
"""Bytes that are read of the file."""


class KnownLogins:
    """The file at ``path``, for a gate. ``in_thread`` runs a function in a thread, and returns a Deferred of its
    result."""

    log = Logger()

    def __init__(
        self, path: str, gate: LoginGate, clock: IReactorTime, in_thread: Callable[..., Deferred[Any]]
    ) -> None:
        self._path = path
        self._gate = gate
        self._clock = clock
        self._in_thread = in_thread
        self._call: IDelayedCall | None = None
        self._stopped = False
        gate.learn(_read(path))
        gate.learned = self._learned

    def stop(self) -> None:
        """Write no more."""
        self._stopped = True
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _learned(self) -> None:
        if self._call is None and not self._stopped:
            self._call = self._clock.callLater(WRITE_AFTER, self._write)

    def _write(self) -> None:
        def failed(failure: Failure) -> None:
            self.log.warn("{path} cannot be written: {why}", path=self._path, why=failure.getErrorMessage())

        self._call = None
        self._in_thread(_replace, self._path, tuple(self._gate.known())).addErrback(failed)


@blocking
def _read(path: str) -> list[Key]:
    """Return the names in the file, none if it cannot be read."""
    try:
        text = small_file.read(path, MAX_BYTES).decode("ascii", "replace")
    except ValueError:
        return []
    found = []
    for line in text.split("\n"):
        network, _, name = line.partition(" ")
        if network and len(network) <= MAX_ADDRESS and is_user(name):
            found.append((network, name))
    return found


@blocking
def _replace(path: str, known: Iterable[Key]) -> None:
    text = "".join(f"{network} {name}\n" for network, name in known if is_user(name) and network.isascii())
    small_file.replace(path, text.encode("ascii"))
