"""Charts in a real Chromium: on a phone and on a wide screen all of them is seen, and their texts can be read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from spark.capacity.report.page import write
from tests.page.conftest import PHONE, WIDE, chromium
from tests.spark.report.report_tables import complete
from tests.spark.report.test_page import NOW, forecast, hours, trended

pytestmark = pytest.mark.long

__all__ = ["chromium"]

SMALLEST = 11.0
"""Pixels of the height of a text that can be read: that of the digits of a font of 12 px, with some room."""

TEXTS = """chart => [...chart.querySelectorAll("text")].filter(one => one.getClientRects().length).map(one => {
  const box = one.getBoundingClientRect()
  return {text: one.textContent, kind: one.getAttribute("class"),
          left: box.left, right: box.right, top: box.top, bottom: box.bottom}
})"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with weeks of history, hours of it, and a single hour: the time axis has days, and days with hours."""
    few = [{**row, "service": "b"} for row in hours("a", 8)]
    tables = {
        "gold_service_1h": [*hours("a", 35 * 24), *few, *hours("c", 1)],
        "gold_forecast": forecast("a"),
        "gold_plan": [trended(exhaust_p50=NOW + timedelta(days=6, hours=20))],
    }
    folder = tmp_path_factory.mktemp("report")
    write(folder, complete(tables))
    return folder / "report.html"


@pytest.fixture(params=[PHONE, WIDE, (320, 568)], ids=["phone", "wide", "small-phone"])
def page(request: pytest.FixtureRequest, chromium: Browser, report: Path) -> Iterator[Page]:
    width, height = request.param
    tab = chromium.new_page(viewport={"width": width, "height": height})
    tab.goto(report.as_uri())
    yield tab
    tab.close()


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    beside = one["left"] >= other["right"] or other["left"] >= one["right"]
    return not beside and bool(one["top"] < other["bottom"] and other["top"] < one["bottom"])


def test_charts_fit_the_screen_and_their_texts_are_apart(page: Page) -> None:
    width = page.evaluate("document.documentElement.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    charts = page.locator("figure > svg").all()
    # The demand of each service, and the trend of the one with a plan.
    assert len(charts) == 4
    for chart in charts:
        place = chart.bounding_box()
        assert place is not None
        # All but the margins, with the names of the values.
        assert place["width"] > 0.65 * min(width, 960)
        texts = chart.evaluate(TEXTS)
        assert len([one for one in texts if one["kind"].startswith("tick")]) >= 4
        for number, one in enumerate(texts):
            assert one["left"] >= 0, one
            assert one["right"] <= width, one
            assert one["bottom"] - one["top"] >= SMALLEST, one
            assert not [other["text"] for other in texts[:number] if overlap(one, other)], one


def test_a_narrow_page_names_fewer_times_than_a_wide_one(page: Page) -> None:
    shown = page.locator("figure svg text.minor:visible").count()
    known = page.locator("figure svg text.minor").count()
    assert known > 0
    assert shown == (known if page.evaluate("innerWidth") > 640 else 0)
