"""The operators' API over a real core: what it begins with the daemon, and ends with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.internet.task import Clock

from broker.access.principal import NoAudit
from broker.access.rights import AnonymousAccess
from broker.app.api import OperatorsApi, Sources
from broker.app.core_parts import build
from broker.core.load_history import STEP
from broker.core.plan import PlanFile
from broker.core.store import Store
from broker.net.refusal_log import Counters
from broker.operate.collected_log import CollectedLog
from broker.operate.console import Shown
from broker.rest.messages import Stream
from tests.operate.calls import Site
from tests.operate.test_event_endpoints import Browser
from tests.recording.operations import operations


def test_loads_lags_and_watches_last_from_the_start_to_the_stop(tmp_path: Path) -> None:
    clock: Any = Clock()
    store = Store(str(tmp_path / "state"))
    core = build(store.open(), store, 60.0, [], Counters(), clock)
    nothing: Any = None
    lag: list[Any] = []
    sources = Sources(
        core=core,
        farm="",
        state="",
        clock=clock,
        started=0.0,
        shown=Shown,
        left=lambda provider: None,
        listeners=lambda: [],
        ready=lambda: [],
        degraded=lambda: [],
        control=operations(),
        plan=PlanFile(None, clock, core.in_thread, nothing),
        access=AnonymousAccess(),
        audit=NoAudit(),
        collected=CollectedLog(str(tmp_path / "collected.jsonl"), clock, core.in_thread),
        lag=lag,
        endpoints=lambda: [],
        certificates=lambda: [],
    )
    api = OperatorsApi(sources)
    try:
        id = core.registry.join("bank", "elko", "h:1")
        assert (api.history.of(id), lag) == ([], [])
        stream = Site(api.endpoints).call("GET", "/v1/watch")
        assert isinstance(stream, Stream)
        browser = Browser()
        stream.begin(browser)
        api.start()
        clock.advance(0)
        assert (api.history.of(id), len(lag)) == ([0.0], 1)
        core.registry.load(id, 0.5)
        clock.advance(STEP)
        clock.advance(0)
        assert api.history.of(id) == [0.0, 0.5]
        assert not browser.closed
        api.stop()
        assert browser.closed
        clock.advance(STEP)
        clock.advance(0)
        assert api.history.of(id) == [0.0, 0.5]
    finally:
        core.threads.stop()
        store.close(1)
