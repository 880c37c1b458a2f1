"""The findings of damage: each is reported once, up to a limit, and all are counted."""

from __future__ import annotations

from twisted.logger import capturedLogs

from broker.core.damage import MAX_FINDINGS, Damage, Damages

ROWS, FILE = Damage("queues", "a row differs from its checksum", rows=3), Damage("state", "no database", files=1)


def test_a_finding_is_logged_reported_and_a_degradation() -> None:
    damages, reported = Damages(), list[Damage]()
    assert damages.counts() == {"state_damaged.rows": 0, "state_damaged.files": 0}
    assert list(damages.degradations()) == []
    with capturedLogs() as logs:
        damages.add([ROWS])
        damages.report(reported.append)
        assert reported == [ROWS]
        damages.add([FILE])
    assert reported == [ROWS, FILE]
    assert [event["what"] for event in logs] == ["queues", "state"]
    assert damages.counts() == {"state_damaged.rows": 3, "state_damaged.files": 1}
    assert [str(each.reason) for each in damages.degradations()] == [f"damaged: {each.reason}" for each in (ROWS, FILE)]


def test_findings_beyond_the_limit_are_counted_alone() -> None:
    damages, reported = Damages(), list[Damage]()
    damages.report(reported.append)
    damages.add([ROWS] * (MAX_FINDINGS + 2))
    assert len(reported) == MAX_FINDINGS
    assert damages.counts()["state_damaged.rows"] == 3 * (MAX_FINDINGS + 2)
    *listed, last = damages.degradations()
    assert len(listed) == MAX_FINDINGS
    assert "2 more findings" in last.reason
