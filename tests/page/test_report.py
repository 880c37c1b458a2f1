"""The report of the capacity plan: a link for each service, which opens with a token as without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from broker.access import users_document
from tests.access.users import ACCESS, put
from tests.core.plans import document, service
from tests.integration.daemon import Daemon
from tests.page.conftest import PHONE, WIDE, Tabs
from tests.page.farm import Farm, configuration

pytestmark = pytest.mark.long

TOKEN = users_document.new_token()

USERS = f"""\
[[users]]
name = "carol"
[[users.tokens]]
label = "page"
hash = "{users_document.token_hash(TOKEN)}"

[[rights]]
users = ["carol"]
operations = ["view", "find"]
"""

PLAN = '[plan]\nfile = "plan/plan.json"\n'

REPORT = """\
<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Capacity plan</title>
<style>h1 { color: rgb(1, 2, 3) }</style></head><body><h1>Capacity plan</h1>
<script>document.title = "a script ran"</script>
<section id="s0"><h2>Service bank</h2></section><p style="height: 300vh"></p>
<section id="s1"><h2>Service shop</h2><a href="services/s1.html">more</a></section></body></html>
"""


def daemon(folder: Path, config: str) -> Iterator[Farm]:
    """A daemon with a plan and its report."""
    pages = folder / "plan" / "services"
    pages.mkdir(parents=True)
    (folder / "plan" / "report.html").write_text(REPORT)
    (pages / "s1.html").write_text("<title>shop: capacity plan</title><h1>Only the shop</h1>")
    (folder / "plan" / "plan.json").write_bytes(
        document(
            service("bank", report="report.html#s0"),
            service("shop", report="report.html#s1", add=2, need_now=6),
            service("post", report="services/s1.html"),
            service("inn"),
            service("mail", short_by_trend="2026-04-02T22:00:00Z"),
        )
    )
    put(folder / "users.toml", USERS)
    (folder / "x.toml").write_text(config)
    with Daemon(folder, "--config", "x.toml") as running:
        running.http_port()
        yield Farm(running)


@pytest.fixture(scope="module")
def open_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A daemon without users."""
    yield from daemon(tmp_path_factory.mktemp("open"), configuration(PLAN))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A daemon whose only user has a token and no password."""
    yield from daemon(tmp_path_factory.mktemp("guarded"), configuration(PLAN, ACCESS))


def opened(context: BrowserContext, page: Page, name: str) -> Page:
    """The tab that a click on the link of a service opens."""
    with context.expect_page() as tab:
        page.get_by_role("row").filter(has_text=name).get_by_role("link", name=f"Report on {name}").click()
    tab.value.wait_for_load_state()
    return tab.value


def signed_in(farm: Farm, tabs: Tabs, place: str) -> Page:
    page = tabs(farm.url(place), permitted=[401, 404, 503])
    page.get_by_label("Password or token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Sign in")).to_be_hidden()
    return page


def is_the_report(report: Page) -> None:
    """The report has its styles, runs no script and has no origin."""
    expect(report.get_by_role("heading", level=1, name="Capacity plan")).to_have_css("color", "rgb(1, 2, 3)")
    assert report.title() == "Capacity plan"
    assert report.evaluate("self.origin") == "null"
    assert report.evaluate("document.referrer") == ""


def test_each_service_has_a_link_to_its_part_of_the_report(open_farm: Farm, tabs: Tabs) -> None:
    page = tabs(open_farm.url("plan"))
    report = opened(page.context, page, "shop")
    is_the_report(report)
    assert report.url.endswith("/plan/report.html#s1")
    expect(report.get_by_role("heading", name="Service shop")).to_be_in_viewport()
    assert opened(page.context, page, "post").url.endswith("/plan/services/s1.html")
    assert opened(page.context, page, "inn").url.endswith("/plan/report.html")


@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_the_longest_verdict_is_not_cut(open_farm: Farm, tabs: Tabs, size: tuple[int, int]) -> None:
    page = tabs(open_farm.url("plan"), size)
    mark = page.get_by_role("row").filter(has_text="mail").get_by_text("short by the trend")
    expect(mark).to_be_visible()
    assert mark.evaluate("mark => mark.closest('td').scrollWidth <= mark.closest('td').clientWidth")


def test_the_instances_of_a_service_are_shown_without_an_answer_about_the_plan(open_farm: Farm, tabs: Tabs) -> None:
    page = tabs(open_farm.url(), permitted=[503])
    problem = {"title": "Service Unavailable", "detail": "not now"}
    page.route("**/v1/plan?*", lambda route: route.fulfill(status=503, json=problem))
    with open_farm.bank(hostport="10.0.0.7:80"):
        page.goto(open_farm.url("services?open=bank"))
        detail = page.get_by_role("complementary", name="Details")
        expect(detail).to_contain_text("10.0.0.7:80")
        expect(detail.get_by_role("alert")).to_have_text("Capacity plan: not now")


def test_a_user_with_a_token_reads_the_report_and_its_pages(guarded: Farm, tabs: Tabs) -> None:
    page = signed_in(guarded, tabs, "plan")
    report = opened(page.context, page, "shop")
    report.wait_for_url("**/report.html#s1")
    is_the_report(report)
    expect(report.get_by_role("heading", name="Service shop")).to_be_in_viewport()
    assert TOKEN not in report.url
    report.get_by_role("link", name="more").click()
    expect(report.get_by_role("heading", name="Only the shop")).to_be_visible()
    assert report.evaluate("opener") is None
    assert page.evaluate("document.cookie") == ""


def test_the_details_and_the_first_screen_have_the_link_as_well(guarded: Farm, tabs: Tabs) -> None:
    page = signed_in(guarded, tabs, "plan?open=bank")
    details = page.get_by_role("complementary", name="Details").get_by_role("link", name="Report on bank")
    with page.context.expect_page() as tab:
        details.click()
    tab.value.wait_for_url("**/report.html#s0")
    page.goto(guarded.url())
    with page.context.expect_page() as tab:
        page.get_by_role("main").get_by_role("link", name="Report on shop").click()
    tab.value.wait_for_url("**/report.html#s1")


@pytest.mark.parametrize(("status", "tabs_left"), [(401, 1), (503, 2)])
def test_a_refusal_of_the_ticket_is_shown(guarded: Farm, tabs: Tabs, status: int, tabs_left: int) -> None:
    page = signed_in(guarded, tabs, "plan")
    # A proxy before the broker answers in its place: the broker's own refusals also end the rest of the page.
    page.route("**/v1/plan/tickets", lambda route: route.fulfill(status=status, json={"detail": "refused here"}))
    with page.context.expect_page() as tab:
        page.get_by_role("link", name="Report on shop").click()
    if status == 401:
        expect(page.get_by_role("dialog", name="Sign in")).to_be_visible()
    else:
        expect(tab.value.locator("body")).to_have_text("refused here")
    while len(page.context.pages) > tabs_left:
        page.evaluate("0")  # until the tab is closed
    assert len(page.context.pages) == tabs_left
