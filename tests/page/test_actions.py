"""The buttons of actions in a real browser: those that the user may do, what they ask, and what they do."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import Tabs
from tests.page.farm import Farm

pytestmark = pytest.mark.long


def act(page: Page, name: str) -> None:
    page.get_by_role("group", name="Actions").get_by_role("button", name=name, exact=True).click()


def test_a_service_is_withdrawn_at_its_provider(farm: Farm, tabs: Tabs) -> None:
    with farm.bank("withdrawn-teller", "going"):
        page = tabs(farm.url("providers?q=withdrawn-teller"))
        page.get_by_role("row").filter(has_text="withdrawn-teller").get_by_role("link").first.click()
        act(page, "Withdraw")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Withdraws a service of a provider")
        dialog.get_by_label("Name").fill("going")
        expect(dialog).to_contain_text("Withdraw going of provider")
        dialog.get_by_role("button", name="Withdraw").click()
        expect(dialog).to_contain_text("1")
        dialog.get_by_role("button", name="Close").click()
        expect(dialog).to_have_count(0)
        assert farm.call("GET", "/v1/services?pattern=going")["total"] == 0


def test_the_first_page_of_the_tutorial_is_done_by_the_page(farm: Farm, tabs: Tabs) -> None:
    page = tabs(farm.url())
    dialog = page.get_by_role("dialog")
    for name, values, shown in (
        ("Offer a service", {"Service": "first-shop", "Hostport": "192.0.2.9:8080"}, "Provider"),
        ("Publish a message", {"Topic": "first-news", "Text": "hello everybody"}, "Subscribers"),
        ("Put into a queue", {"Queue": "first-jobs", "Text": "the first job"}, "queued"),
    ):
        act(page, name)
        for label, value in values.items():
            dialog.get_by_label(label, exact=True).fill(value)
        dialog.get_by_role("button", name=name).click()
        expect(dialog).to_contain_text(shown)
        dialog.get_by_role("button", name="Close").click()
    page = tabs(farm.url("catalog?q=first-shop"))
    dialog = page.get_by_role("dialog")
    page.get_by_role("row").filter(has_text="first-shop").get_by_role("link").first.click()
    instance = page.get_by_role("row").filter(has_text="192.0.2.9:8080")
    expect(instance).to_contain_text("first-shop")
    provider = farm.call("GET", "/v1/services/first-shop")["services"][0]["provider"]
    instance.get_by_role("link", name=str(provider)).click()
    act(page, "Withdraw")
    dialog.get_by_label("Name").fill("first-shop")
    dialog.get_by_role("button", name="Withdraw").click()
    expect(dialog).to_contain_text("1")
    dialog.get_by_role("button", name="Close").click()
    page = tabs(farm.url("services?q=first-shop"))
    expect(page.locator(".total")).to_have_text("0")
    page = tabs(farm.url("view/mtl/queues"))
    dialog = page.get_by_role("dialog")
    page.get_by_role("row").filter(has_text="first-jobs").get_by_role("button").first.click()
    for name in ("Peek", "Get"):
        act(page, name)
        dialog.get_by_role("button", name=name).click()
        expect(dialog).to_contain_text("the first job")
        dialog.get_by_role("button", name="Close").click()


def test_a_message_keeps_its_spaces_and_lines(farm: Farm, tabs: Tabs) -> None:
    page = tabs(farm.url())
    dialog = page.get_by_role("dialog")
    text = "  two spaces\n\n\tand lines \n"
    act(page, "Put into a queue")
    dialog.get_by_label("Queue", exact=True).fill(" page-lines ")
    dialog.get_by_label("Text", exact=True).fill(text)
    dialog.get_by_role("button", name="Put into a queue").click()
    expect(dialog).to_contain_text("queued")
    dialog.get_by_role("button", name="Close").click()
    [found] = farm.call("POST", "/v1/actions/queue-peek", {"queue": "page-lines"})["messages"]
    assert found["text"] == text


def test_an_error_is_shown_and_the_parameters_stay(farm: Farm, tabs: Tabs) -> None:
    page = tabs(farm.url(), permitted=(404,))
    act(page, "Launch")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("nothing")
    dialog.get_by_role("button", name="Launch").click()
    expect(dialog.get_by_role("alert")).to_have_text("there is no launcher 'nothing'")
    expect(dialog.get_by_label("Name")).to_have_value("nothing")
    dialog.get_by_role("button", name="Cancel").click()


def test_levels_of_the_log_are_changed(farm: Farm, tabs: Tabs) -> None:
    page = tabs(farm.url())
    act(page, "Log")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Level").select_option("warn")
    dialog.get_by_label("Modules").fill("mtl=debug")
    dialog.get_by_role("button", name="Log").click()
    try:
        # The form has a choice "warn" as well: only the answer has the button that closes it.
        dialog.get_by_role("button", name="Close").click()
        assert farm.call("GET", "/v1/log") == {"level": "warn", "modules": {"mtl": "debug"}}
    finally:
        # The farm, which all tests of this file share, reads in its log of level "info" that it stopped.
        farm.call("PUT", "/v1/log", {"level": "info", "modules": {"mtl": None}})


def test_a_session_is_disconnected_from_its_row(farm: Farm, tabs: Tabs) -> None:
    with farm.bank("cut-teller", "cut") as peer:
        page = tabs(farm.url("view/elko/sessions"))
        page.get_by_role("row").filter(has_text="cut-teller").get_by_role("button").first.click()
        act(page, "Disconnect")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Wire: elko")
        dialog.get_by_role("button", name="Disconnect").click()
        expect(dialog).to_contain_text("the session was closed")
        assert "an operator" in peer.receive()["msg"]
        peer.closed()
        peer.sock.close()


def test_a_queue_is_looked_into_and_purged_from_its_row(farm: Farm, tabs: Tabs) -> None:
    farm.call("POST", "/v1/actions/queue-put", {"queue": "page-jobs", "text": "the first job"})
    page = tabs(farm.url("view/mtl/queues"))
    page.get_by_role("row").filter(has_text="page-jobs").get_by_role("button").first.click()
    act(page, "Peek")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Queue: page-jobs")
    dialog.get_by_role("button", name="Peek").click()
    expect(dialog).to_contain_text("the first job")
    dialog.get_by_role("button", name="Close").click()
    act(page, "Purge")
    expect(dialog).to_contain_text("Remove all messages of the queue page-jobs for good")
    dialog.get_by_role("button", name="Purge").click()
    dialog.get_by_role("button", name="Close").click()
    assert farm.call("POST", "/v1/actions/queue-peek", {"queue": "page-jobs"}) == {"messages": []}
