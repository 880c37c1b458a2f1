"""The schedule of faults: the same seed gives the same one, and it has every kind."""

from __future__ import annotations

from tests.cluster.farm.faults import KINDS, OUTAGES, schedule

HOSTS = (("a", "b", "c"), ("etcd1", "etcd2", "etcd3"))


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert schedule(7, 100, *HOSTS, 6) == schedule(7, 100, *HOSTS, 6)
    assert schedule(7, 100, *HOSTS, 6) != schedule(8, 100, *HOSTS, 6)
    assert schedule(7, 100, *HOSTS, 6)[:10] == schedule(7, 10, *HOSTS, 6)


def test_a_hundred_rounds_have_every_kind_and_no_host_twice_in_a_round() -> None:
    rounds = schedule(1, 100, *HOSTS, 6)
    assert {fault.kind for each in rounds for fault in each.faults} == {*KINDS, *OUTAGES}
    assert 40 < sum(any(fault.kind in OUTAGES for fault in each.faults) for each in rounds) < 70
    for each in rounds:
        assert each.faults
        targets = [fault.target for fault in each.faults if fault.target]
        assert len(targets) == len(set(targets))
        assert sum("etcd" in fault.kind or fault.kind == "kill leader" for fault in each.faults) <= 1
    lengths = [fault.lasts for each in rounds for fault in each.faults]
    assert min(lengths) < 6 < max(lengths)
