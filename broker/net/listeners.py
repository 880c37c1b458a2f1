"""Stream listeners: endpoints, retries of the bind, TLS certificates, and files of unix sockets.

`broker.net.tls` adds TLS.

Rules:
- `listen` returns a bound port with its socket options set, or raises `CannotListen` with nothing bound.
- Listeners of every kind are opened, and retried, by one mechanism, `ListenerRetries`.
- All listeners are prepared before the first one is bound, so that no connection waits for startup work.
- They are bound in the order of `ListenerRetries.add`.
- The start fails if a required listener fails, if any fails in a strict start, or if none can be opened.
- Any other failed listener is logged once for each reason, and retried with exponential back-off: first after
  `FIRST_RETRY`, with doubled pauses up to `MOST_RETRY`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Protocol

import attrs
from twisted.internet import endpoints
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IDelayedCall, IListeningPort, IReactorTime
from twisted.internet.protocol import Factory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.lockfile import FilesystemLock

from broker import pem
from broker.access.identity import joined
from broker.backoff import Backoff
from broker.blocking import unavoidable
from broker.config.endpoint import Endpoint, shown_path
from broker.core.model import Listening
from broker.core.place_table import PlaceTable
from broker.net.admission import ConnectionFactory
from broker.net.epoll_streams import dispatch
from broker.net.line_protocol import LineFactory
from broker.net.proxies import ProxyFactory, TrustedProxies
from broker.net.refusal_log import RefusalLog
from broker.net.scheduler import Scheduler
from broker.net.silent_hosts import end_with_host
from broker.net.tls import Certificates, TlsFactory

# Stale Unix socket files: detection and removal before a bind.
#
# A socket file outlives a killed process, and binding to its path then fails. Twisted removes it only if the dead
# process had Twisted's own lock beside it (``PATH.lock``, a symbolic link to the process ID). Other programs leave
# none.


def check_path_free(path: str) -> None:
    """Raise OSError if ``path`` exists, unless it is a socket file without a listening process."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return  # no file, or the bind reports the error
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "there is a file that is no socket", path)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return
        except BlockingIOError:
            pass  # the accept queue is full: a process listens
    raise _in_use(path)


def remove_stale_socket(path: str) -> None:
    """Remove a stale socket file, so that ``path`` can be bound.

    Raises OSError for any other file, and if another process has the lock. The lock is held during the removal: a
    process about to bind the path has it, so that its new socket is not mistaken for a stale one.
    """
    check_path_free(path)
    lock = FilesystemLock(f"{path}.lock")
    if _is_ours(lock.name):
        os.unlink(lock.name)  # left by a dead process with the same ID, as in a restarted container
    if not lock.lock():
        raise _in_use(path)
    try:
        check_path_free(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    finally:
        lock.unlock()


def _is_ours(lock: str) -> bool:
    """Return True if a lock has the ID of this process."""
    try:
        return os.readlink(lock) == str(os.getpid())
    except OSError:
        return False


def _in_use(path: str) -> OSError:
    return OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)


UNIX_MODE = 0o660
"""Default permissions of a Unix socket: the broker's user and group may connect."""


class CannotListen(Exception):
    """Failure to open a listener. The text names the listener, its address and the reason."""


def listen(
    reactor: Any, endpoint: Endpoint, factory: Factory, proxies: TrustedProxies | None = None, shown: str = ""
) -> IListeningPort:
    """Open a listener now. Raises `CannotListen`, which names the endpoint as ``shown``.

    Clients of trusted ``proxies`` have their own addresses (`broker.net.proxies`).
    """
    shown = shown or endpoint.where
    if proxies is not None:
        factory = ProxyFactory(factory, proxies, reactor)
    try:
        port = _open(reactor, endpoint, factory)
    except CannotListenError as error:
        reason = error.socketError
        raise CannotListen(f"cannot listen on {shown}: {getattr(reason, 'strerror', None) or reason}") from None
    except OSError as error:
        raise CannotListen(f"cannot listen on {shown}: {error.strerror or error}") from None
    _tune(port)
    dispatch(reactor, port)
    return port


def bound(port: IListeningPort) -> str:
    """Return the address of a port: ``host:port``, a path, or ``@NAME`` for a name in the abstract namespace."""
    address: Any = port.getHost()
    if not hasattr(address, "port"):
        return shown_path(os.fsdecode(address.name))
    return joined(address.host, address.port)


def close_now(port: Any) -> None:
    """Close a port in this turn of the reactor; ``stopListening`` leaves it open until the next one."""
    port.stopReading()
    port.connectionLost(connectionDone)


def _open(reactor: Any, endpoint: Endpoint, factory: Factory) -> IListeningPort:
    port: IListeningPort
    if endpoint.kind in ("tcp", "tls"):
        port = reactor.listenTCP(endpoint.port, factory, endpoint.backlog, endpoint.interface)
    elif endpoint.path is not None:
        mode = UNIX_MODE if endpoint.mode is None else endpoint.mode
        has_file = not endpoint.path.startswith("\0")
        if has_file:
            with unavoidable("the file of a unix socket comes and goes with its port"):
                remove_stale_socket(endpoint.path)
        port = reactor.listenUNIX(endpoint.path, factory, endpoint.backlog, mode, wantPID=has_file)
    else:
        port = _inherited(reactor, endpoint, factory)
    return port


def _inherited(reactor: Any, endpoint: Endpoint, factory: Factory) -> IListeningPort:
    """Open a socket passed by systemd (socket activation)."""
    options = "".join(f":{name}={value}" for name, value in endpoint.kwargs.items())
    try:
        opening: Deferred[IListeningPort] = endpoints.serverFromString(reactor, f"systemd{options}").listen(factory)
    except (KeyError, ValueError, IndexError):
        raise CannotListen(f"cannot listen on {endpoint.where}: systemd passed no such socket (LISTEN_FDS)") from None
    result: list[Any] = []
    opening.addBoth(result.append)
    if isinstance(result[0], Failure):
        result[0].raiseException()
    port: IListeningPort = result[0]
    return port


def _tune(port: Any) -> None:
    """Set options that accepted sockets inherit, which saves a system call for each connection."""
    listening: socket.socket = port.socket
    if listening.family not in (socket.AF_INET, socket.AF_INET6):
        return
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end_with_host(listening)


class PortFactory(Protocol):
    """A connection factory with the operations of a listener."""

    @property
    def table(self) -> PlaceTable:
        """The places of the connections."""

    def limit(self, limits: Any) -> None:
        """Apply new limits."""

    def close(self) -> Deferred[None]:
        """Close all connections in order. Fires when they are closed."""


@attrs.define
class StreamListener:
    """A stream listener. ``port`` is None until it is open, and ``certificates`` until they were read first: a reload
    reads them again. Without TLS it stays None.

    ``protocol`` is its protocol in a service descriptor; ``lines`` has its connections.
    """

    reactor: Any
    endpoint: Endpoint
    port_factory: PortFactory
    lines: LineFactory
    turns: Scheduler
    refusal_log: RefusalLog
    protocol: str = "tcp"
    port: IListeningPort | None = None
    certificates: Certificates | None = None

    def open(self) -> str:
        """Open the port. Returns the bound address. Raises `CannotListen` with nothing open."""
        try:
            files = pem.Files.of(self.endpoint)
            if files is not None and self.certificates is None:
                self.certificates = Certificates(files)
        except ValueError as error:
            raise CannotListen(str(error)) from None
        factory: Any = self.port_factory
        if self.certificates is not None:
            factory = TlsFactory(factory, self.certificates, self.turns, self.refusal_log)
        self.port = listen(self.reactor, self.endpoint, factory, self.turns.proxies)
        return bound(self.port)

    def stop_listening(self) -> Deferred[Any]:
        """Stop accepting. Fires when the port is closed."""
        port, self.port = self.port, None
        return succeed(None) if port is None else maybeDeferred(port.stopListening)


FIRST_RETRY = 1.0
"""Seconds until the second attempt: after a restart the port of the previous process is often free by then."""

MOST_RETRY = 30.0
"""Upper bound of the pause in seconds. An attempt costs some system calls, and a wire recovers within half a minute
after its port becomes free."""

_BACKOFF = Backoff(FIRST_RETRY, MOST_RETRY)


class RetriedListener:
    """One listener: its state, and the functions that open it.

    ``prepare`` does slow work that is still due; ``bind`` opens the listener and returns its address. If either
    raises `CannotListen`, nothing is bound.
    """

    def __init__(
        self,
        name: str,
        where: str,
        bind: Callable[[], str],
        prepare: Callable[[], object],
        required: bool,
        clock: IReactorTime,
    ) -> None:
        self.required = required
        self.state = Listening(name, where, clock.seconds(), "it was not opened yet")
        self._bind = bind
        self._prepare = prepare
        self._clock = clock
        self._failures = 0
        """Failed attempts since the start or the last `hasten`."""
        self._retry: IDelayedCall | None = None

    def prepare(self) -> None:
        """Do the slow work. `attempt` repeats it after a failure, and reports the reason."""
        with contextlib.suppress(CannotListen):
            self._prepare()

    def attempt(self) -> bool:
        """Open the listener now. Returns True if `state` has changed."""
        before = self.state
        try:
            self._prepare()
            where, reason = self._bind(), None
        except CannotListen as error:
            where, reason = before.where, str(error)
        if reason == before.reason:
            return False
        since = before.since if reason is not None else self._clock.seconds()
        self.state = Listening(before.name, where, since, reason)
        return True

    def later(self, again: Callable[[RetriedListener], None]) -> None:
        """Call ``again`` after the back-off."""
        self._failures += 1
        self._retry = self._clock.callLater(_BACKOFF.after(self._failures), again, self)

    def hasten(self) -> None:
        """Cancel the pending retry, and reset the back-off."""
        self.cancel()
        self._failures = 0

    def cancel(self) -> None:
        """Cancel the pending retry."""
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
        self._retry = None


class ListenerRetries:
    """The listeners of the daemon. ``changed`` is called after each change of a state since the start."""

    log = Logger()

    def __init__(self, clock: IReactorTime, changed: Callable[[], object]) -> None:
        self._clock = clock
        self._changed = changed
        self._all: dict[str, RetriedListener] = {}

    def add(
        self,
        name: str,
        where: str,
        bind: Callable[[], str],
        prepare: Callable[[], object] = lambda: None,
        required: bool = False,
    ) -> None:
        """Add a listener, which `open` then opens; see `RetriedListener`."""
        assert name not in self._all
        self._all[name] = RetriedListener(name, where, bind, prepare, required, self._clock)

    def remove(self, name: str) -> None:
        """Remove a listener that is closed on purpose."""
        self._all.pop(name).cancel()

    def open(self, strict: bool) -> None:
        """Open all. Raises `CannotListen` if the start fails; listeners that are open by then stay open."""
        for each in self._all.values():
            each.prepare()
        for each in self._all.values():
            each.attempt()
            if not each.state.ready and (strict or each.required):
                raise _cannot(each.state)
        missing = [each for each in self._all.values() if not each.state.ready]
        if missing and len(missing) == len(self._all):
            raise _cannot(missing[0].state)
        for each in missing:
            self._miss(each)
            each.later(self._again)

    def retry(self) -> None:
        """Retry all failed listeners now, and reset their back-off."""
        for each in list(self._all.values()):
            if not each.state.ready:
                each.hasten()
                self._again(each)

    def states(self, pattern: str = "*") -> list[Listening]:
        """Return the listeners with a name that matches a shell pattern, in the order of the start."""
        return [each.state for name, each in self._all.items() if fnmatchcase(name, pattern)]

    def stop(self) -> None:
        """Cancel all retries."""
        for each in self._all.values():
            each.cancel()

    def _again(self, opening: RetriedListener) -> None:
        # The next attempt is scheduled first, so that an unexpected exception in this one does not end the retries.
        opening.later(self._again)
        if not opening.attempt():
            return
        if opening.state.ready:
            opening.cancel()
        else:
            self._miss(opening)
        self._changed()

    def _miss(self, opening: RetriedListener) -> None:
        state = opening.state
        self.log.error(
            "{name}: {reason}; the other listeners serve, and this one is tried again",
            name=state.name,
            reason=state.reason,
        )


def _cannot(state: Listening) -> CannotListen:
    return CannotListen(f"{state.name}: {state.reason}")


# Rows of `broker.wires.interface.OpenWire.listener_rows`: the open listeners as operators see them.


def occupancy(factory: ConnectionFactory, *more: PlaceTable) -> dict[str, object]:
    """Return the number of a listener's connections, and ``full``: while true, a new one needs the place of another.

    A listener that was full within the last seconds also has a ``trouble``, and ``refuses`` is true if new peers were
    refused. Over HTTP and RTCP, sessions and connections have places of their own: ``more`` has the latter.
    """
    tables = dict.fromkeys((factory.table, *more))
    row: dict[str, object] = {"connections": len(factory.connections), "full": any(each.full for each in tables)}
    troubles = dict.fromkeys(each.trouble for each in tables if each.trouble)
    if troubles:
        row.update(trouble="; ".join(troubles), refuses=any(each.turns_away for each in tables))
    return row


def listener_row(wire: str, name: str, listener: StreamListener) -> list[dict[str, object]]:
    """Return the row of a stream listener, or no row if it is closed."""
    if listener.port is None:
        return []
    row = occupancy(listener.lines, listener.port_factory.table)
    return [{"wire": wire, "name": name, "address": bound(listener.port), **row}]
