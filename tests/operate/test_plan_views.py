"""The view of the capacity plan at the console."""

from __future__ import annotations

import json
from pathlib import Path

from twisted.internet.defer import succeed

from broker.core.plan import PlanFile
from broker.export.plan_document import parse
from broker.operate.broker_tables import plan_view
from tests.core.plans import MADE, document, service
from tests.operate.test_console import enter
from tests.wires.recording import ElkoFarm


def test_the_worst_service_is_first_with_its_verdict_and_the_age_of_the_plan(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(
        document(
            service("bank"),
            service(
                "shop", add=2, need_horizon=6, short_from="2026-03-06T22:00:00Z", note="grows", report="report.html#s1"
            ),
        )
    )
    farm = ElkoFarm()
    farm.clock.rightNow = MADE + 43_200
    plan = PlanFile(str(file), farm.clock, lambda function, *arguments: succeed(function(*arguments)), parse)
    operator = enter(farm, views={"broker plan": plan_view(plan, farm.clock)})
    operator.read()
    [shop, bank] = json.loads(operator.type("broker plan"))
    assert shop == {
        "name": "shop", "verdict": "below policy", "days_until_short": 0.5, "short_at": "2026-03-06T22:00:00Z",
        "add": 2, "has": 4, "need_now": 3, "need": 6, "missed": 0, "trials": 16, "miss_at_most": 0.17,
        "note": "grows", "report": "/plan/report.html#s1", "age": 43_200,
    }  # fmt: skip
    assert (bank["verdict"], "days_until_short" in bank, bank["report"]) == ("enough", False, "/plan/report.html")
    assert [row["name"] for row in json.loads(operator.type("broker plan b*"))] == ["bank"]
    plan.stop()
