"""Names that peers chose with bad intent: they are shown as text, and change nothing else."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import PHONE, Tabs
from tests.page.farm import Farm

pytestmark = pytest.mark.long

SCRIPTS = (
    "<img src=x onerror=hacked()>",
    "<svg/onload=hacked()>",
    '"><script>hacked()</script>',
    "javascript:hacked()",
    "{{constructor.constructor('hacked()')()}}",
)
DIRECTION = "evil\N{RIGHT-TO-LEFT OVERRIDE}txt.exe"
LONG = "x" * 255
LABEL = DIRECTION + "<b>bold</b>" * 90

PLACES = ("", "catalog", "services", "providers", "loads", "events", "view/elko/sessions")
TEXT = {"catalog": SCRIPTS[0], "services": SCRIPTS[0], "events": SCRIPTS[0]}
"""A text of these places; the label of the provider is in all others."""


def unharmed(page: Page) -> None:
    """Assert that no name became an element, and that none is wider than the page."""
    assert page.evaluate("document.querySelectorAll('img, script:not([src]), b b, iframe').length") == 0
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.parametrize("size", [(1280, 800), PHONE], ids=["wide", "phone"])
def test_names_are_text_in_every_view(farm: Farm, tabs: Tabs, size: tuple[int, int]) -> None:
    services = [{"service": name, "hostport": "10.0.0.1:1"} for name in (*SCRIPTS, LONG, "  ")]
    with farm.provider(LABEL, services) as peer:
        peer.send(to="client", op="load", factor=1)
        page = tabs(farm.url("services"), size)
        for name in SCRIPTS:
            expect(page.get_by_role("link", name=name, exact=True)).to_have_count(1)
        expect(page.get_by_role("link", name="␣␣", exact=True)).to_have_count(1)
        unharmed(page)
        for place in PLACES:
            page.goto(farm.url(place))
            expect(page.locator("main")).to_contain_text(TEXT.get(place, "<b>bold</b>"))
            unharmed(page)
        page.goto(farm.url("providers"))
        expect(page.locator("main")).to_contain_text("evil\u2039202E\u203atxt.exe")


@pytest.mark.parametrize("name", [SCRIPTS[0], "a/b?c#d%2e ☃"])
def test_details_are_those_of_exactly_that_name(farm: Farm, tabs: Tabs, name: str) -> None:
    with farm.provider(LABEL, [{"service": name, "hostport": "10.0.0.1:1"}]):
        page = tabs(farm.url("services"))
        page.locator("tbody tr", has_text="10.0.0.1:1").get_by_role("link").first.click()
        detail = page.get_by_role("complementary", name="Details")
        expect(detail).to_contain_text("1 instance")
        expect(detail).to_contain_text("10.0.0.1:1")
        unharmed(page)
        page.reload()
        expect(detail).to_contain_text("1 instance")


def test_the_address_of_the_page_is_no_way_in(farm: Farm, tabs: Tabs) -> None:
    page = tabs(
        farm.url("services?q=<img src=x onerror=hacked()>&where=label=<svg/onload=hacked()>&open=<b>x</b>"),
        permitted=[400, 404],
    )
    expect(page.get_by_role("complementary", name="Details")).to_contain_text("No instance")
    unharmed(page)
    page.goto(farm.url("view/__proto__/constructor"))
    expect(page.get_by_role("region", name="Wires")).to_be_visible()
    page.goto(farm.url("constructor"))
    expect(page.get_by_role("region", name="Wires")).to_be_visible()
    unharmed(page)
