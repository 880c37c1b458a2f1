"""Events over HTTP: the recent ones, and watches of those that happen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import attrs
import pytest

from broker.core.model import Auth, Rights, Service
from broker.core.watches import FULL_RING
from broker.operate import event_endpoints
from broker.operate.event_endpoints import GATHER, INTERVAL, PIECE, SHARE, SHORTEST, WatchHub
from broker.rest.messages import KEEP_ALIVE, Stream
from broker.rest.problem import Problem
from tests.operate.calls import ApiFarm, Site


@attrs.define(eq=False)
class Browser:
    """The reading end of a watch. With ``behind``, it does not read."""

    behind: bool = False
    closed: bool = False
    writes: list[bytes] = attrs.field(factory=list)

    def write(self, data: bytes) -> None:
        assert not self.behind, "nothing is buffered for a slow reader"
        self.writes.append(data)

    def write_in_steps(self, pieces: Iterator[bytes], size: int) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        self.closed = True

    @property
    def text(self) -> str:
        return b"".join(self.writes).decode()

    @property
    def seen(self) -> list[dict[str, Any]]:
        """The events of the default type so far, without resyncs."""
        frames = [frame for frame in self.text.split("\n\n") if "data: " in frame and not frame.startswith("event:")]
        return [json.loads(frame.partition("data: ")[2]) for frame in frames]

    @property
    def place(self) -> str:
        """The last event id, as a browser keeps it."""
        return str(re.findall(r"^id: (.*)$", self.text, re.MULTILINE)[-1])

    @property
    def resyncs(self) -> int:
        return self.text.count("event: resync\n")


class Events(ApiFarm):
    """The events of a registry. Each look at the CPU time finds it ``cost`` seconds later."""

    def __init__(self, cost: float = 0.0) -> None:
        super().__init__()
        self.hub = WatchHub(self.registry, self.clock, count(0.0, cost).__next__)
        self.site = Site([*event_endpoints.event_endpoints(self.registry), *event_endpoints.watch_endpoints(self.hub)])
        self.gone: dict[Browser, Any] = {}

    def open(self, query: str = "", **headers: str) -> Browser:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        stream = self.site.call("GET", f"/v1/watch?{query}", headers=named)
        assert isinstance(stream, Stream)
        browser = Browser()
        self.gone[browser] = stream.begin(browser)
        return browser

    def place(self) -> str:
        return f"{self.registry.epoch}-{self.registry.revision}"

    def flush(self) -> None:
        self.clock.advance(INTERVAL)


@pytest.fixture
def farm() -> Events:
    return Events()


def revisions(found: list[dict[str, Any]]) -> list[int]:
    return [each["revision"] for each in found]


def test_a_watcher_gets_each_change_once_within_an_interval(farm: Events) -> None:
    browser = farm.open()
    assert (browser.place, browser.seen) == (farm.place(), [])
    provider = farm.join("bank-1", "bank")
    farm.registry.load(provider, 0.5)
    assert browser.seen == []
    farm.flush()
    now = "2026-01-01T00:00:00.000Z"
    assert browser.seen == [
        {"revision": 1, "at": now, "kind": "joined", "provider": 100, "label": "bank-1"},
        {"revision": 2, "at": now, "kind": "offered", "provider": 100, "service": "bank", "protocol": "tcp",
         "hostport": "bank-1:80"},
        {"revision": 3, "at": now, "kind": "load", "provider": 100, "label": "bank-1", "load": 0.5},
    ]  # fmt: skip
    assert browser.place == farm.place()
    farm.flush()
    farm.registry.leave(provider)
    farm.flush()
    assert [(each["kind"], each.get("why"), each.get("label")) for each in browser.seen[3:]] == [
        ("withdrawn", "left", None),
        ("left", "left", "bank-1"),
    ]


def test_a_change_of_a_label_is_an_event(farm: Events) -> None:
    provider = farm.join("bank-1", "bank")
    browser = farm.open()
    farm.registry.relabel(provider, "bank-1")
    farm.registry.relabel(provider, "bank-2")
    farm.flush()
    assert [(each["kind"], each["provider"], each["label"]) for each in browser.seen] == [
        ("relabelled", provider, "bank-2")
    ]


def test_an_event_has_no_secret(farm: Events) -> None:
    browser = farm.open()
    provider = farm.join("bank-1")
    farm.registry.offer([Service("bank", "h:1", provider, auth=Auth("password", "hidden"), info='{"x":"y"}')], Rights())
    farm.flush()
    assert len(browser.seen) == 2
    assert "hidden" not in browser.text


@pytest.mark.parametrize(("cost", "most"), [(0.0, 1 / SHORTEST), (INTERVAL * SHARE, 1 / INTERVAL), (1.0, 1 / INTERVAL)])
def test_a_watcher_gets_a_write_for_a_flush_as_often_as_they_are_cheap(cost: float, most: float) -> None:
    farm = Events(cost)
    browser = farm.open()
    provider = farm.join("bank-1")
    before = len(browser.writes)
    for _ in range(100):
        farm.registry.load(provider, 0.5)
        farm.clock.advance(0.01)
    assert most / 2 < len(browser.writes) - before <= most + 1
    farm.flush()
    assert revisions(browser.seen) == list(range(1, 102))


def test_the_first_change_after_calm_is_sent_soon() -> None:
    farm = Events(cost=1.0)
    browsers = [farm.open() for _ in range(100)]
    for number in range(3):
        farm.join(f"bank-{number}")
        farm.clock.advance(2 * GATHER)
        farm.clock.pump([0] * 20)  # a piece in each turn
        assert {len(browser.seen) for browser in browsers} == {number + 1}
        farm.clock.advance(INTERVAL)


def test_calm_costs_a_look_a_second(farm: Events) -> None:
    farm.open()
    farm.clock.advance(INTERVAL)
    calls = 0
    for _ in range(100):
        before = farm.clock.getDelayedCalls()
        farm.clock.advance(0.1)
        calls += farm.clock.getDelayedCalls() != before
    assert calls <= 11


def test_all_watchers_of_a_filter_get_the_same_text(farm: Events) -> None:
    browsers = [farm.open() for _ in range(60)]
    farm.join("bank-1", "bank")
    farm.flush()
    assert len({browser.writes[-1] for browser in browsers}) == 1
    assert all(each.writes[-1] is browsers[0].writes[-1] for each in browsers), "encoded once"


def test_kinds_and_a_pattern_select_events(farm: Events) -> None:
    offers, banks = farm.open("kinds=offered&kinds=withdrawn"), farm.open("pattern=bank*")
    provider = farm.join("bank-1", "bank", "shop")
    farm.registry.load(provider, 1.0)
    farm.join("shop-1", "bank-of-shops")
    farm.flush()
    assert [each["service"] for each in offers.seen] == ["bank", "shop", "bank-of-shops"]
    found = [each.get("service") or each["label"] for each in banks.seen]
    assert found == ["bank-1", "bank", "bank-1", "bank-of-shops"], "joined, offered, load, offered"


@pytest.mark.parametrize("how", ["header", "query"])
def test_a_watcher_resumes_after_its_last_event(farm: Events, how: str) -> None:
    first = farm.open()
    farm.join("bank-1", "bank")
    farm.flush()
    farm.gone[first]()
    provider = farm.join("shop-1", "shop")
    again = farm.open(last_event_id=first.place) if how == "header" else farm.open(f"since={first.place}")
    farm.registry.leave(provider)
    farm.flush()
    assert revisions(first.seen + again.seen) == list(range(1, 7))
    assert (first.resyncs, again.resyncs) == (0, 0)
    farm.join("late")
    farm.flush()
    assert revisions(again.seen)[-1] == farm.registry.revision


def test_the_header_precedes_the_query(farm: Events) -> None:
    farm.join("bank-1", "bank")
    browser = farm.open(f"since={farm.registry.epoch}-0", last_event_id=f"{farm.registry.epoch}-1")
    farm.flush()
    assert revisions(browser.seen) == [2]


@pytest.mark.parametrize("last", ["1-0", "9-9", "nonsense", "5", "-1-2", "1-99999999999999999999"])
def test_a_place_of_another_registry_leads_to_a_resync(farm: Events, last: str) -> None:
    farm.join("bank-1", "bank")
    browser = farm.open(last_event_id=last)
    assert browser.resyncs == 1
    assert browser.place == farm.place()
    farm.join("shop-1")
    farm.flush()
    assert revisions(browser.seen) == [3], "it goes on from there"


def test_a_place_that_the_ring_has_lost_leads_to_a_resync(farm: Events) -> None:
    place = farm.place()
    for _ in range(FULL_RING // 2):
        farm.registry.leave(farm.join(""))
    browser = farm.open(f"since={place}")
    farm.flush()
    assert (browser.resyncs, browser.seen, browser.place) == (1, [], farm.place())


def test_a_long_absence_is_caught_up_in_order_and_in_pieces(farm: Events) -> None:
    place = farm.place()
    for _ in range(3 * PIECE):
        farm.join("")
    browser = farm.open(f"since={place}")
    farm.flush()
    assert revisions(browser.seen) == list(range(1, 3 * PIECE + 1))
    assert len(browser.writes) == 1 + 3


def test_nothing_is_kept_for_a_slow_reader_which_gets_the_rest_from_the_ring(farm: Events) -> None:
    slow, quick = farm.open(), farm.open()
    slow.behind = True
    farm.join("one")
    farm.flush()
    farm.join("two")
    farm.flush()
    assert (slow.seen, revisions(quick.seen)) == ([], [1, 2])
    slow.behind = False
    farm.join("three")
    farm.flush()
    assert revisions(slow.seen) == revisions(quick.seen) == [1, 2, 3]
    assert slow.resyncs == 0


def test_a_slow_reader_that_has_room_while_another_one_catches_up_gets_the_rest_too(farm: Events) -> None:
    first, second = farm.open(), farm.open()
    first.behind = second.behind = True
    farm.join("one")
    farm.flush()
    second.behind = False
    # The next flush passes the first one over, sends the second one its events, and ends in another turn.
    farm.clock.callLater(INTERVAL, setattr, first, "behind", False)
    farm.flush()
    assert (first.behind, first.seen, revisions(second.seen)) == (False, [], [1])
    farm.flush()
    assert revisions(first.seen) == [1]


def test_a_reader_that_is_slow_for_too_long_is_told_to_read_the_lists(farm: Events) -> None:
    slow, quick = farm.open(), farm.open()
    slow.behind = True
    for _ in range(FULL_RING):
        farm.join("")
        if farm.registry.revision % 1000 == 0:
            farm.flush()
    farm.flush()
    assert slow.seen == []
    slow.behind = False
    farm.flush()
    assert (slow.resyncs, slow.seen, slow.place) == (1, [], farm.place())
    assert quick.resyncs == 0
    assert farm.hub.counts()["watch.resyncs"] == 1


def test_a_burst_that_overruns_the_ring_is_told(farm: Events) -> None:
    browser = farm.open()
    for _ in range(FULL_RING):
        farm.join("")
    farm.flush()
    assert (browser.resyncs, browser.seen) == (1, [])


def test_loads_that_overrun_their_ring_do_not_disturb_a_watcher_of_services(farm: Events) -> None:
    everything, services = farm.open(), farm.open("kinds=offered")
    provider = farm.join("bank-1", "bank")
    for _ in range(FULL_RING):
        farm.registry.load(provider, 1.0)
    farm.flush()
    assert (everything.resyncs, services.resyncs) == (1, 0)
    assert [each["kind"] for each in services.seen] == ["offered"]


def test_a_silent_watcher_is_told_its_place(farm: Events) -> None:
    browser = farm.open("kinds=withdrawn")
    farm.join("bank-1", "bank")
    farm.flush()
    writes = len(browser.writes)
    for _ in range(int(KEEP_ALIVE / INTERVAL) + 1):
        farm.flush()
    assert len(browser.writes) == writes + 1
    assert (browser.seen, browser.place) == ([], farm.place())


def test_a_web_socket_gets_a_message_for_each_flush(farm: Events) -> None:
    browser = farm.open(upgrade="websocket")
    farm.join("bank-1", "bank")
    farm.flush()
    [hello, flush] = map(json.loads, browser.writes)
    assert hello == {"epoch": farm.registry.epoch, "revision": 0, "resync": False, "events": []}
    assert (flush["revision"], revisions(flush["events"])) == (2, [1, 2])
    lost = farm.open("since=1-1", upgrade="WebSocket")
    assert [json.loads(each)["resync"] for each in lost.writes] == [True]


def test_a_watcher_that_has_gone_gets_nothing(farm: Events) -> None:
    browser = farm.open()
    farm.gone[browser]()
    farm.gone[browser]()
    farm.join("bank-1")
    writes = len(browser.writes)
    farm.flush()
    assert (len(browser.writes), len(farm.hub), farm.clock.getDelayedCalls()) == (writes, 0, [])


def test_the_number_of_watchers_is_bounded(farm: Events) -> None:
    farm.hub.most = 2
    [first, _] = [farm.open() for _ in range(2)]
    with pytest.raises(Problem) as caught:
        farm.open()
    assert caught.value.status == 503
    farm.gone[first]()
    farm.open()


def test_the_end_of_the_daemon_ends_all_watches(farm: Events) -> None:
    browser = farm.open()
    farm.hub.stop()
    assert browser.closed
    assert farm.clock.getDelayedCalls() == []


@pytest.mark.parametrize("query", ["since=1", "since=a-b", "kinds=nothing", "colour=red", f"pattern={'a' * 256}"])
def test_a_wrong_query_is_refused(farm: Events, query: str) -> None:
    for path in ("/v1/watch", "/v1/events"):
        with pytest.raises(Problem) as caught:
            farm.site.call("GET", f"{path}?{query}")
        assert caught.value.status == 400


def test_the_recent_events_are_listed(farm: Events) -> None:
    provider = farm.join("bank-1", "bank")
    place = farm.place()
    for _ in range(3):
        farm.registry.load(provider, 0.5)
    answer = farm.site.get("/v1/events")
    assert (answer["epoch"], answer["revision"], answer["resync"]) == (farm.registry.epoch, 5, False)
    assert revisions(answer["events"]) == [1, 2, 3, 4, 5]
    assert revisions(farm.site.get("/v1/events?limit=2")["events"]) == [4, 5], "the newest"
    assert revisions(farm.site.get("/v1/events?kinds=offered")["events"]) == [2]
    later = farm.site.get(f"/v1/events?since={place}&limit=2")
    assert (revisions(later["events"]), later["revision"]) == ([3, 4], 4), "the oldest, and the place after them"
    rest = farm.site.get(f"/v1/events?since={later['epoch']}-{later['revision']}&limit=2")
    assert (revisions(rest["events"]), rest["revision"]) == ([5], 5)


def test_each_event_has_the_time_of_its_change(farm: Events) -> None:
    browser = farm.open()
    farm.clock.advance(1.5)
    provider = farm.join("bank-1", "bank")
    farm.clock.advance(60)
    farm.registry.load(provider, 0.5)
    farm.clock.advance(60)
    times = ["2026-01-01T00:00:01.500Z", "2026-01-01T00:00:01.500Z", "2026-01-01T00:01:01.500Z"]
    assert [each["at"] for each in browser.seen] == times, "watched"
    assert [each["at"] for each in farm.site.get("/v1/events")["events"]] == times, "read from the rings later"


def test_events_after_an_unknown_place_are_none_with_a_resync(farm: Events) -> None:
    farm.join("bank-1", "bank")
    answer = farm.site.get("/v1/events?since=1-1")
    assert (answer["events"], answer["resync"], answer["revision"]) == ([], True, 2)
