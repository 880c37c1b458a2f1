"""The operations of operators: one implementation for the protocols, the console and the HTTP API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from zope.interface import implementer

from broker.app.draining import Draining
from broker.app.readiness import Readiness
from broker.app.reloading import Reloader
from broker.app.wires import RunningWires
from broker.core.control import Drain, IOperations, KeyState, LevelName, LogLevels, ReloadResult, Trace
from broker.core.model import NotReady
from broker.logs.log_lines import LogControl
from broker.net.sdnotify import SystemdNotifier
from broker.net.traces import Traces


@implementer(IOperations)
class Operations:
    """Implementation of `IOperations` over the parts of the daemon.

    ``shut`` ends the process, at once if it is called with True. ``ending`` returns True once the daemon stops.
    ``reloaded`` is called after each reload that had no problems.
    """

    log = Logger()

    def __init__(
        self,
        reloader: Reloader,
        draining: Draining,
        readiness: Readiness,
        wires: RunningWires,
        logs: LogControl,
        traces: Traces,
        notifier: SystemdNotifier,
        shut: Callable[[bool], object],
        ending: Callable[[], bool],
        reloaded: Callable[[], object],
    ) -> None:
        self._reloader = reloader
        self._draining = draining
        self._readiness = readiness
        self._wires = wires
        self._logs = logs
        self._traces = traces
        self._notifier = notifier
        self._shut = shut
        self._ending = ending
        self._reloaded = reloaded

    def reinitialize(self) -> None:
        """See `IControl`."""
        self.reload()

    def shut_down(self, kill: bool) -> None:
        """See `IControl`."""
        self._shut(kill)

    def reload(self) -> Deferred[ReloadResult]:
        """See `IOperations`."""
        if self._ending():
            self.log.info("the configuration is not read again: the broker stops")
            return succeed(ReloadResult(problems=("the broker stops",)))

        def done(result: ReloadResult) -> ReloadResult:
            if self._ending():
                return result
            self._notifier.ready()
            if not result.problems:
                self._reloaded()
            return result

        self._notifier.reloading()
        return self._reloader.reload().addCallback(done)

    def settings(self) -> Sequence[KeyState]:
        """See `IOperations`."""
        return self._reloader.settings()

    def not_ready(self) -> Sequence[NotReady]:
        """See `IOperations`."""
        return self._readiness.reasons()

    def degraded(self) -> Sequence[NotReady]:
        """See `IOperations`."""
        return self._readiness.degraded()

    def drain(self, seconds: float) -> Drain:
        """See `IOperations`."""
        return self._draining.drain(seconds)

    def undrain(self) -> Drain:
        """See `IOperations`."""
        return self._draining.undrain()

    def drained(self) -> Drain:
        """See `IOperations`."""
        return self._draining.describe()

    def disconnect(self, wire: str, session: str) -> bool:
        """See `IOperations`."""
        found = self._wires.disconnect(wire, session)
        self.log.info(
            "disconnect {wire} {session}: {outcome}",
            wire=wire,
            session=session,
            outcome="closed by an operator" if found else "there is no such session",
        )
        return found

    def log_levels(self) -> LogLevels:
        """See `IOperations`."""
        return self._logs.levels

    def set_log_levels(
        self, level: LevelName | None = None, modules: Mapping[str, LevelName | None] | None = None
    ) -> LogLevels:
        """See `IOperations`."""
        levels = self._logs.change(level, modules or {})
        exceptions = ", ".join(f"{name} {each}" for name, each in levels.modules.items()) or "none"
        # Not level=, which is a parameter of the logger itself.
        self.log.info("log level {least}; exceptions: {exceptions}", least=levels.level, exceptions=exceptions)
        return levels

    def trace(self, address: str, seconds: float) -> Trace:
        """See `IOperations`."""
        return self._traces.trace(address, seconds)

    def untrace(self, address: str) -> bool:
        """See `IOperations`."""
        return self._traces.untrace(address)

    def traces(self) -> Sequence[Trace]:
        """See `IOperations`."""
        return self._traces.describe()
