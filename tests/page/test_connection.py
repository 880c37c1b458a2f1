"""The page while the broker is away, comes back, or is not looked at."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.integration.daemon import Daemon
from tests.page.conftest import Tabs
from tests.page.farm import Farm
from tests.ports import free_port

pytestmark = pytest.mark.long

ANSWER = 21_000
"""Milliseconds: a little more than the page waits for an answer."""

TIMEOUT = """
AbortSignal.timeout = (milliseconds) => {
    const controller = new AbortController();
    setTimeout(() => controller.abort(new DOMException("late", "TimeoutError")), milliseconds);
    return controller.signal;
};
"""
"""The time limit of a request, by the clock of the page, which a test puts forward."""


def test_a_lost_connection_is_told_and_made_again(tmp_path: Path, tabs: Tabs) -> None:
    options = ("--http-port", str(free_port()))
    with Daemon(tmp_path, *options) as daemon:
        farm = Farm(daemon)
        first = farm.bank(name="before")
        page = tabs(farm.url("services"))
        connection = page.locator("#connection")
        expect(connection).to_have_text("Live")
        expect(page.get_by_role("link", name="before")).to_be_visible()
    first.sock.close()
    expect(connection).to_have_text(re.compile(r"Connection lost at \d\d:\d\d:\d\d"))
    # The last state remains to be read.
    expect(page.get_by_role("link", name="before")).to_be_visible()
    (tmp_path / "other").mkdir()
    # Another registry, and so another epoch: nothing can be resumed.
    with Daemon(tmp_path / "other", *options) as daemon:
        daemon.http_port()
        with Farm(daemon).bank(name="after"):
            expect(connection).to_have_text("Live")
            expect(page.get_by_role("link", name="after")).to_be_visible()
            expect(page.get_by_role("link", name="before")).to_have_count(0)


@pytest.mark.parametrize("missing", ["**/v1/views", "**/v1/status", "**/v1/actions"])
def test_a_page_that_is_opened_without_a_broker_begins_when_it_comes(tmp_path: Path, tabs: Tabs, missing: str) -> None:
    options = ("--http-port", str(free_port()))
    with Daemon(tmp_path, *options) as daemon:
        page = tabs(Farm(daemon).url())
        expect(page.locator("#connection")).to_have_text("Live")
        page.route(missing, lambda route: route.abort())
        page.reload()
        expect(page.get_by_role("alert")).to_contain_text("does not answer")
        page.unroute(missing)
        expect(page.locator("#connection")).to_have_text("Live")
        expect(page.get_by_role("region", name="Wires")).to_be_visible()


@pytest.mark.parametrize("answered", [True, False])
def test_a_list_whose_first_read_fails_or_is_never_answered_is_read_again(
    farm: Farm, tabs: Tabs, answered: bool
) -> None:
    with farm.bank(name="there-before"):
        page = tabs(farm.url("services"))
        page.clock.install()
        page.add_init_script(TIMEOUT)
        page.route("**/v1/services?*", lambda route: route.abort() if answered else None, times=1)
        # No change, with which the list would be read as well.
        with page.expect_request("**/v1/services?*"):
            page.reload()
        if not answered:
            page.clock.fast_forward(ANSWER)
        expect(page.get_by_role("link", name="there-before")).to_be_visible()


def test_a_cause_for_attention_stays_until_there_is_an_answer_without_it(farm: Farm, tabs: Tabs) -> None:
    page = tabs(farm.url("loads"), permitted=[503])
    failing = "**/v1/counters?pattern=checks.failing"
    page.route(failing, lambda route: route.fulfill(json={"rows": [{"name": "checks.failing", "value": 2}]}))
    page.goto(farm.url())
    causes, figures = page.locator(".causes"), page.locator(".figures")
    expect(causes).to_contain_text("2 health checks fail")
    page.unroute(failing)
    page.route(failing, lambda route: route.fulfill(status=503, json={"detail": "not now"}))
    # A later answer, which is shown with what the one without an answer leads to.
    status = {**farm.call("GET", "/v1/status"), "uptime": 3 * 86_400}
    page.route("**/v1/status", lambda route: route.fulfill(json=status))
    page.keyboard.press("r")
    expect(figures).to_contain_text("3 d")
    assert "2 health checks fail" in causes.inner_text()
    page.unroute(failing)
    page.keyboard.press("r")
    expect(causes).not_to_contain_text("health checks fail")


HIDDEN = """
hidden => {
    Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}
"""


def test_a_hidden_page_asks_for_nothing_and_catches_up(farm: Farm, tabs: Tabs) -> None:
    page = tabs(farm.url("events"))
    expect(page.locator("#connection")).to_have_text("Live")
    page.evaluate(HIDDEN, True)
    expect(page.locator("#connection")).to_have_text("Paused")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    with farm.bank(name="unseen"):
        pass
    assert requests == []
    page.evaluate(HIDDEN, False)
    expect(page.locator("#connection")).to_have_text("Live")
    # Both changes happened while it was hidden: it resumes after the last one that it has seen.
    expect(page.get_by_role("row").filter(has_text="unseen")).to_have_count(2)
