"""The file of the capacity plan: readings, bad files, changes of verdicts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from broker.core.plan import MAX_SIZE, PAUSE, PlanChange, PlanFile, Verdict, read_plan
from broker.export.plan_document import parse
from tests.core.plans import MADE, document, service

SHORT = document(service("bank", add=1, need_now=5), service("shop"))
FINE = document(service("bank"), service("shop"))


def at_once(function: Callable[..., Any], *arguments: object) -> Deferred[Any]:
    return succeed(function(*arguments))


class Farm:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock()
        self.clock.advance(MADE + 3_600)
        self.plan = PlanFile(str(path), self.clock, at_once, parse)
        self.told: list[tuple[str, Verdict | None, Verdict]] = []
        self.watch = self.plan.watch(self._tell)

    def _tell(self, change: PlanChange) -> None:
        self.told.append((change.service.name, change.before, change.service.verdict))

    def write(self, text: bytes) -> None:
        """Replace the file, as the jobs do, and let the broker look."""
        aside = self.path.with_name("aside")
        aside.write_bytes(text)
        os.replace(aside, self.path)
        self.clock.advance(PAUSE)

    def names(self) -> list[str] | None:
        current = self.plan.current()
        return None if current is None else list(current.services)


@pytest.fixture
def farm(tmp_path: Path) -> Farm:
    return Farm(tmp_path / "plan.json")


def test_the_file_may_come_later_and_change(farm: Farm) -> None:
    assert (farm.names(), farm.plan.age(), farm.plan.days_until_short()) == (None, None, {})
    assert farm.plan.problem() == "No such file or directory"
    farm.write(SHORT)
    assert (farm.names(), farm.plan.problem()) == (["bank", "shop"], None)
    assert (farm.plan.age(), farm.plan.days_until_short()) == (3_600 + PAUSE, {"bank": 0.0})
    farm.write(FINE)
    assert farm.plan.days_until_short() == {}


def test_a_change_of_a_verdict_is_reported_once(farm: Farm) -> None:
    farm.write(SHORT)
    farm.write(SHORT)
    farm.write(FINE)
    farm.clock.advance(PAUSE)
    assert farm.told == [("bank", None, Verdict.BELOW), ("bank", Verdict.BELOW, Verdict.ENOUGH)]
    farm.watch.cancel()
    farm.watch.cancel()
    farm.write(SHORT)
    assert len(farm.told) == 2


def test_an_unchanged_file_is_not_read_again(farm: Farm) -> None:
    farm.write(SHORT)
    farm.clock.advance(PAUSE)
    farm.clock.advance(PAUSE)
    assert farm.plan.counts()["plan_readings.read"] == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [(b"{", "the file is no plan"), (b"", "the file is no plan"), (SHORT[:-20], "no plan")],
)
def test_a_bad_file_keeps_the_last_good_plan_until_a_good_one_comes(farm: Farm, text: bytes, why: str) -> None:
    farm.write(SHORT)
    farm.write(text)
    assert farm.names() == ["bank", "shop"]
    assert why in (farm.plan.problem() or "")
    assert farm.plan.counts()["plan_readings.failed"] == 2, "the first reading, and this one"
    farm.write(FINE)
    assert farm.plan.problem() is None
    assert farm.told == [("bank", None, Verdict.BELOW), ("bank", Verdict.BELOW, Verdict.ENOUGH)]


def test_a_file_that_goes_keeps_the_plan(farm: Farm) -> None:
    farm.write(SHORT)
    farm.path.unlink()
    farm.clock.advance(PAUSE)
    assert (farm.names(), farm.plan.problem()) == (["bank", "shop"], "No such file or directory")
    farm.write(SHORT)
    assert farm.plan.problem() is None


def test_a_pipe_does_not_block(farm: Farm) -> None:
    os.mkfifo(farm.path)
    farm.clock.advance(PAUSE)
    assert farm.plan.problem() == "it is no regular file"


def test_a_file_of_any_size_is_read_to_a_bound_only(farm: Farm) -> None:
    with farm.path.open("wb") as file:
        file.truncate(100 * MAX_SIZE)
    farm.clock.advance(PAUSE)
    assert farm.plan.problem() == f"it has more than {MAX_SIZE} bytes"


def test_counters_have_the_services_by_verdict(farm: Farm) -> None:
    farm.write(SHORT)
    counts = farm.plan.counts()
    assert (counts["plan_services.below"], counts["plan_services.enough"], counts["plan_services.free"]) == (1, 1, 0)


def test_another_file_takes_over_and_none_ends_the_plan(farm: Farm, tmp_path: Path) -> None:
    farm.write(SHORT)
    other = tmp_path / "other.json"
    farm.plan.use(str(other))
    assert farm.names() == ["bank", "shop"]
    other.write_bytes(document(service("chat")))
    farm.plan.use(str(other))
    assert farm.names() == ["chat"]
    farm.plan.use(None)
    assert (farm.names(), farm.plan.counts(), farm.clock.getDelayedCalls()) == (None, {}, [])


def test_a_reading_that_ends_after_the_file_was_replaced_counts_for_nothing(tmp_path: Path) -> None:
    path, pending = tmp_path / "plan.json", Deferred[Any]()
    path.write_bytes(SHORT)
    plan = PlanFile(str(path), Clock(), lambda *call: pending, parse)
    plan.use(None)
    pending.callback(read_plan(str(path), None, parse))
    assert plan.current() is None


def test_a_watcher_that_fails_stops_no_other(farm: Farm) -> None:
    def fail(change: PlanChange) -> None:
        raise ArithmeticError

    farm.watch.cancel()
    farm.plan.watch(fail)
    farm.plan.watch(farm._tell)
    farm.write(SHORT)
    assert farm.told == [("bank", None, Verdict.BELOW)]
