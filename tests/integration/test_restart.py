"""A restart of the real daemon after a kill: what finds answer while providers of all wires come back."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import OTHERS
from tests.integration.daemon import Daemon
from tests.integration.dbp_nodes import Nodes
from tests.integration.mtl_peers import configured, ends_in_order, peers_of
from tests.integration.test_dbp import stored
from tests.patience import until

PLACES = ("127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003")
"""The places at which three providers offer the same service."""

Back = Callable[[Daemon, ExitStack, str], object]
"""Has a provider of the service at that place."""


def by_elko(label: str | None) -> Back:
    def back(daemon: Daemon, held: ExitStack, place: str) -> None:
        named = {} if label is None else {"label": label.format(place[-1])}
        peer = held.enter_context(daemon.connect(**named))
        peer.send(to="client", op="willserve", services=[{"service": "bank", "hostport": place}])
        peer.done()

    return back


def by_mtl(daemon: Daemon, held: ExitStack, place: str) -> None:
    writer = held.enter_context(peers_of(daemon)).writer("registry", "service/bank", confirm="full")
    descriptor = json.dumps({"type": "servicedesc", "service": "bank", "hostport": place}).encode()
    assert writer.settled(writer.write(descriptor, "service/bank", {"type": "offer"})) == []


def by_dbp(daemon: Daemon, held: ExitStack, place: str) -> None:
    nodes = held.enter_context(Nodes(daemon))
    nodes.dealer().registered("bank", ip="127.0.0.1", port=int(place[-4:]), heartbeat_ms=60_000)


def by_elko_and_mtl(daemon: Daemon, held: ExitStack, place: str) -> None:
    (by_mtl if place == PLACES[1] else by_elko("bank"))(daemon, held, place)


def found(daemon: Daemon) -> list[tuple[str, bool]]:
    """The places at which an Elko find has the service, and whether that is from before the restart."""
    with daemon.connect() as customer:
        answer: list[dict[str, Any]] = customer.ask(to="client", op="find", service="bank")["desc"]
    return [(each["hostport"], each.get("restored", False)) for each in answer if "failure" not in each]


def listed(daemon: Daemon) -> list[tuple[str, bool]]:
    """The same by DBP."""
    with Nodes(daemon) as nodes:
        answer = nodes.hermes().find("bank")["bank"]
    offers = answer.get("providers", [answer])
    return [(each["hostport"], each.get("restored", False)) for each in offers]


@pytest.mark.long
@pytest.mark.parametrize(
    "back",
    [by_elko("bank {}"), by_elko("bank"), by_elko(None), by_mtl, by_elko_and_mtl],
    ids=["elko", "elko, one label", "elko, no label", "mtl", "elko and mtl"],
)
def test_while_providers_come_back_one_by_one_all_of_them_are_found_once(tmp_path: Path, back: Back) -> None:
    options = ("--config", configured(tmp_path, "", OTHERS))
    with Daemon(tmp_path, *options) as before, ExitStack() as held:
        for place in PLACES:
            back(before, held, place)
        until(lambda: all(stored(tmp_path, place) for place in PLACES))
        before.signal(signal.SIGKILL)
        before.ended()
    with Daemon(tmp_path, *options) as after, ExitStack() as held:
        assert found(after) == [(place, True) for place in PLACES]
        live: list[str] = []
        for place in reversed(PLACES):
            back(after, held, place)
            live.append(place)
            rest = [place for place in PLACES if place not in live]
            answer = [(place, False) for place in live] + [(place, True) for place in rest]
            assert found(after) == answer
            assert listed(after) == answer
        held.close()
        until(lambda: found(after) == [])
        ends_in_order(after)


def test_a_service_of_dbp_that_moved_takes_its_old_place(tmp_path: Path) -> None:
    options = ("--config", configured(tmp_path, "", OTHERS))
    with Daemon(tmp_path, *options) as before, ExitStack() as held:
        by_dbp(before, held, PLACES[0])
        by_elko("bank 2")(before, held, PLACES[1])
        until(lambda: all(stored(tmp_path, place) for place in PLACES[:2]))
        before.signal(signal.SIGKILL)
        before.ended()
    with Daemon(tmp_path, *options) as after, ExitStack() as held:
        assert found(after) == [(PLACES[0], True), (PLACES[1], True)]
        by_dbp(after, held, PLACES[2])
        assert found(after) == [(PLACES[2], False), (PLACES[1], True)]
        by_elko("bank 2")(after, held, PLACES[1])
        assert found(after) == [(PLACES[2], False), (PLACES[1], False)]
        ends_in_order(after)
