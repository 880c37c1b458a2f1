"""The functions of the operators' actions: one implementation for the protocols, the console and the HTTP API.

`broker.operate.actions` is the table; each action is the method of its name here, with its parameters by their names.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from zope.interface import implementer

from broker.access.principal import Principal
from broker.access.users_document import expiry
from broker.app.readiness import Readiness
from broker.app.reloading import Reloader
from broker.app.wires import RunningWires
from broker.core.drain import Drain, Draining
from broker.core.errors import Reason, Refusal, no_right
from broker.core.interfaces import ILaunchers, IRegistry, ITopics
from broker.core.model import BROKER, NotReady, is_own
from broker.core.operator_interfaces import (
    IOperations,
    KeyState,
    LevelName,
    LogLevels,
    MovedMessages,
    Published,
    Purged,
    QueueMessages,
    Reloaded,
    Reply,
    Trace,
    Traces,
)
from broker.core.queues.queue_messages import DEAD
from broker.logs.log_lines import LogControl
from broker.net import traces
from broker.net.sdnotify import SystemdNotifier
from broker.operate.actions import Done, Moved, Withdrawn

ALL = "all"
"""In place of a server: every server. Such an order may reach none."""


@implementer(IOperations)
class Operations:
    """Implementation of `IOperations` over the parts of the daemon.

    ``registry``, ``launchers`` and ``topics`` return those of the core. ``shut`` ends the process, at once if it is
    called with True. ``ending`` returns True once the daemon stops. ``reloaded`` is called after each reload without
    problems.
    """

    _log = Logger()

    def __init__(
        self,
        reloader: Reloader,
        draining: Draining,
        readiness: Readiness,
        wires: RunningWires,
        registry: Callable[[], IRegistry],
        launchers: Callable[[], ILaunchers],
        topics: Callable[[], ITopics],
        logs: LogControl,
        traces: traces.Traces,
        notifier: SystemdNotifier,
        shut: Callable[[bool], object],
        ending: Callable[[], bool],
        reloaded: Callable[[], object],
    ) -> None:
        self._reloader = reloader
        self._draining = draining
        self._readiness = readiness
        self._wires = wires
        self._registry = registry
        self._launchers = launchers
        self._topics = topics
        self._logs = logs
        self._traces = traces
        self._notifier = notifier
        self._shut = shut
        self._ending = ending
        self._reloaded = reloaded

    # the state that actions change

    def settings(self) -> Sequence[KeyState]:
        """See `IOperations`."""
        return self._reloader.settings()

    def not_ready(self) -> Sequence[NotReady]:
        """See `IOperations`."""
        return self._readiness.reasons()

    def degraded(self) -> Sequence[NotReady]:
        """See `IOperations`."""
        return self._readiness.degraded()

    def drained(self) -> Drain:
        """See `IOperations`."""
        return self._draining.describe()

    def log_levels(self) -> LogLevels:
        """See `IOperations`."""
        return self._logs.levels

    def traces(self) -> Traces:
        """See `IOperations`."""
        return Traces(self._traces.describe())

    # the actions

    def reload(self) -> Deferred[Reloaded]:
        """Read the configuration again, and apply the keys that a reload may change.

        A file with errors changes nothing. Listeners that are not open are retried. The result is logged as well. The
        Deferred does not fail.
        """
        if self._ending():
            self._log.info("the configuration is not read again: the broker stops")
            return succeed(Reloaded(problems=("the broker stops",)))

        def done(result: Reloaded) -> Reloaded:
            if self._ending():
                return result
            self._notifier.ready()
            if not result.problems:
                self._reloaded()
            return result

        self._notifier.reloading()
        return self._reloader.reload().addCallback(done)

    def drain(self, deadline: float, undo: bool) -> Drain:
        """Refuse new peers, and send the present ones away by the means of their protocols; or undo that.

        After ``deadline`` seconds the state becomes ``overdue`` if some are still connected. A drain that is under way
        gets the new deadline. Operators at the console and over HTTP are not sent away.
        """
        return self._draining.undrain() if undo else self._draining.drain(deadline)

    def say(self, text: str, context: str | None, user: str | None) -> Done:
        """Send a text to a context, to a user, or to the user in that context, by the director."""
        if context is None and user is None:
            raise Refusal(Reason.PARAMETER, "say needs a context or a user")
        self._wires.action("director", "say")(context, user, text)
        return Done("sent")

    def launch(self, name: str) -> Done:
        """Start a program of the launcher table."""
        launchers = self._launchers()
        if all(each.name != name for each in launchers.describe()):
            raise Refusal(Reason.UNKNOWN_TARGET, f"there is no launcher {name[:80]!r}")
        text = launchers.launch(name)
        if not text.startswith("start "):
            # The protocol's answer is "fail NAME REASON".
            raise Refusal(Reason.FAILED, f"the launcher {name!r} failed: {text.removeprefix(f'fail {name} ')}")
        return Done(text)

    def reinit(self, server: str) -> Done:
        """Send Elko servers the order to reinitialize: those with that label, hostport or id, or all."""
        reached = self._wires.action("elko", "reinit")(server)
        if not reached and server != ALL:
            raise Refusal(Reason.NOT_REGISTERED, f"reinit: no server is called {server[:40]!r}")
        return Done(f"sent to {reached} servers")

    def move(self) -> Deferred[Moved]:
        """Move the durable messages that are left on the disk into the present store of queues."""
        moving: Deferred[tuple[int, Mapping[str, str]]] = self._wires.action("mtl", "move")()
        return moving.addCallback(lambda found: Moved(*found))

    def disconnect(self, wire: str, session: str) -> Done:
        """Close the session that has that key in the wire's table of sessions."""
        found = self._wires.disconnect(wire, session)
        self._log.info(
            "disconnect {wire} {session}: {outcome}",
            wire=wire,
            session=session,
            outcome="closed by an operator" if found else "there is no such session",
        )
        if not found:
            raise Refusal(Reason.UNKNOWN_TARGET, "there is no such session")
        return Done("the session was closed")

    def withdraw(self, provider: int, name: str | None, may: Callable[[str], bool]) -> Withdrawn:
        """Withdraw the services of a provider with that name, or all, if ``may`` permits each of their names."""
        registry = self._registry()
        if name is not None:
            _permit(may, name)
        found = None if provider == BROKER else registry.provider(provider)
        if found is None:
            raise Refusal(Reason.UNKNOWN_TARGET, "there is no such provider")
        unwanted = [service for service in found.services if name is None or service.name == name]
        if not unwanted:
            raise Refusal(Reason.NO_SUCH_SERVICE, "the provider offers no such service")
        names = {service.name for service in unwanted}
        for each in sorted(names):
            _permit(may, each)
        registry.withdraw(provider, names)
        return Withdrawn(len(unwanted))

    def publish(self, topic: str, text: str, base64: bool, principal: Principal) -> Published:
        """Publish a message of a user to a topic. Topics of the broker itself are refused."""
        name = topic.encode()
        if is_own(name):
            raise Refusal(Reason.FORBIDDEN, "the topic is the broker's own")
        body = _body(text, base64)
        return Published(self._topics().publish(name, (), (body,), wire="http", payer=principal.payer))

    def call(self, service: str, text: str, base64: bool, seconds: float, principal: Principal) -> Deferred[Reply]:
        """Send a request to a service of MTL, and return its reply."""
        done: Deferred[Reply] = self._mtl("call")(service, _body(text, base64), seconds, principal)
        return done

    def queue_put(
        self,
        queue: str,
        text: str,
        base64: bool,
        ttl: float | None,
        delay: float,
        at: str | None,
        host: str | None,
        principal: Principal,
    ) -> Deferred[Done]:
        """Put a message into a queue. Fires when it is stored: a durable one is on the disk then."""
        try:
            due = None if at is None else expiry(at)
        except ValueError as error:
            raise Refusal(Reason.PARAMETER, f"at {error}") from None
        put: Deferred[None] = self._mtl("queue-put")(queue, host, _body(text, base64), ttl, delay, due, principal)
        return put.addCallback(lambda _: Done("queued"))

    def queue_get(self, queue: str, count: int, host: str | None, principal: Principal) -> Deferred[QueueMessages]:
        """Take messages out of a queue."""
        done: Deferred[QueueMessages] = self._mtl("queue-get")(queue, host, count, principal)
        return done

    def queue_peek(self, queue: str, count: int, host: str | None, principal: Principal) -> Deferred[QueueMessages]:
        """Return the first messages of a queue, which stay there."""
        done: Deferred[QueueMessages] = self._mtl("queue-peek")(queue, host, count, principal)
        return done

    def queue_purge(self, queue: str, host: str | None) -> Deferred[Purged]:
        """Remove the messages of a queue."""
        done: Deferred[Purged] = self._mtl("queue-purge")(queue, host)
        return done

    def queue_move(self, queue: str, target: str, count: int | None, host: str | None) -> Deferred[MovedMessages]:
        """Move messages of a queue to the end of another one."""
        done: Deferred[MovedMessages] = self._mtl("queue-move")(queue, target, host, count)
        return done

    def queue_requeue_dead(self, queue: str, count: int | None, host: str | None) -> Deferred[MovedMessages]:
        """Move the dead letters of a queue back to it."""
        done: Deferred[MovedMessages] = self._mtl("queue-move")(f"{queue}{DEAD}", queue, host, count)
        return done

    def log(self, level: LevelName | None, modules: Mapping[str, LevelName | None]) -> LogLevels:
        """Change log levels until the next change by a reload. Returns all.

        ``level`` None keeps the general level; None in ``modules`` removes an exception. Raises `Refusal` PARAMETER for
        a name that is neither a wire nor a module, LIMIT for too many.
        """
        levels = self._logs.change(level, modules)
        exceptions = ", ".join(f"{name} {each}" for name, each in levels.modules.items()) or "none"
        # Not level=, which is a parameter of the logger itself.
        self._log.info("log level {least}; exceptions: {exceptions}", least=levels.level, exceptions=exceptions)
        return levels

    def trace(self, address: str, seconds: float, off: bool) -> Trace:
        """Log the messages from and to the peers at an address, a host or ``host:port``, for some time; or end that.

        A trace that is under way gets the new time. Raises `Refusal` PARAMETER for an invalid address, LIMIT if there
        are too many traces, UNKNOWN_TARGET if there is none to end.
        """
        if not off:
            return self._traces.trace(address, seconds)
        if not self._traces.untrace(address):
            raise Refusal(Reason.UNKNOWN_TARGET, "there is no trace of this address")
        return Trace(address, 0.0)

    def _mtl(self, name: str) -> Callable[..., Any]:
        return self._wires.action("mtl", name)

    def shutdown(self, kill: bool) -> Done:
        """Shut the process down gracefully; with ``kill``, end it at once."""
        self._shut(kill)
        return Done("the broker ends")


def _body(text: str, base64: bool) -> bytes:
    """Return the bytes of a message. Raises `Refusal` for a wrong base64."""
    if not base64:
        return text.encode("utf-8", "surrogatepass")
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise Refusal(
            Reason.PARAMETER, "text is not base64: A-Z, a-z, 0-9, + and / in groups of four, with ="
        ) from None


def _permit(may: Callable[[str], bool], name: str) -> None:
    if not may(name):
        raise no_right("admin.withdraw", name, "this user")
