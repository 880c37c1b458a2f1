"""The operations of operators over the parts of a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.task import Clock

from broker.app.operations import Operations
from broker.app.readiness import Readiness
from broker.app.wires import RunningWires
from broker.core.drain import Draining
from broker.logs.log_lines import LogControl
from broker.net.refusal_log import Counters
from broker.net.traces import Traces
from broker.rest.http_endpoint import Routes
from broker.wires.interface import PlainWire


class WireOf(PlainWire):
    """A wire that carries out these actions."""

    def __init__(self, actions: Mapping[str, Callable[..., Any]]) -> None:
        self._actions = actions

    def actions(self) -> Mapping[str, Callable[..., Any]]:
        return self._actions


def operations(
    wires: Mapping[str, Mapping[str, Callable[..., Any]]] | None = None,
    registry: Any = None,
    launchers: Any = None,
    topics: Any = None,
    clock: Any = None,
    shut: Callable[[bool], object] = lambda kill: None,
    reloader: Any = None,
    notifier: Any = None,
) -> Operations:
    """The operations; ``wires`` has the open ones, with the functions of their actions."""
    clock = Clock() if clock is None else clock
    running = RunningWires(Counters(), Routes())
    opened: Any = running.open_ones()
    opened.update({name: WireOf(actions) for name, actions in (wires or {}).items()})
    return Operations(
        reloader=reloader,
        draining=Draining(clock, lambda: None, lambda: None, lambda: {}),
        readiness=Readiness(),
        wires=running,
        registry=lambda: registry,
        launchers=lambda: launchers,
        topics=lambda: topics,
        logs=LogControl(wires=["mtl"]),
        traces=Traces(clock, lambda: (), lambda: ()),
        notifier=notifier,
        shut=shut,
        ending=lambda: False,
        reloaded=lambda: None,
    )
