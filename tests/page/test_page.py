"""The page in a real browser: services, live changes, sorting, search, details, keyboard, narrow screens."""

from __future__ import annotations

import re
import resource
import socket
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.integration.configurations import listener
from tests.integration.daemon import Daemon
from tests.page.conftest import PHONE, Tabs
from tests.page.farm import Farm, configuration
from tests.patience import PATIENCE, until

pytestmark = pytest.mark.long


def row(page: Page, text: str) -> Locator:
    """The rows of the table that have a text."""
    return page.get_by_role("row").filter(has_text=text)


def done(farm: Farm) -> None:
    """Return when the broker has handled the end of all connections of peers."""
    while farm.call("GET", "/v1/providers?pattern=many-*")["total"]:
        pass


def names(page: Page) -> list[str]:
    """The names in the visible rows, in order."""
    return page.locator("tbody tr td.main").all_inner_texts()


def test_a_service_is_shown_as_it_comes_and_goes(farm: Farm, tabs: Tabs) -> None:
    page = tabs(farm.url("services"))
    expect(page.locator("#connection")).to_have_text("Live")
    with farm.bank("teller", "coming", "10.1.2.3:80"):
        expect(row(page, "coming")).to_contain_text("10.1.2.3:80")
        expect(row(page, "coming")).to_contain_text("tcp")
    expect(row(page, "coming")).to_have_count(0)


def test_a_service_that_was_put_by_http_is_shown_too(farm: Farm, tabs: Tabs) -> None:
    page = tabs(farm.url("services"))
    farm.put("by-http", "10.1.2.4:80")
    expect(row(page, "by-http")).to_contain_text("10.1.2.4:80")
    farm.call("DELETE", "/v1/services/by-http/1")
    expect(row(page, "by-http")).to_have_count(0)


def test_a_service_that_is_offered_anew_is_never_shown_as_gone(farm: Farm, tabs: Tabs) -> None:
    farm.put("renamed", "10.1.2.5:80", label="before")
    page = tabs(farm.url("services"))
    expect(row(page, "renamed")).to_contain_text("before")
    expect(page.locator("#connection")).to_have_text("Live")
    seen = "new MutationObserver(() => { if (document.querySelector('tr.gone')) document.title = 'gone'; })"
    page.evaluate(f"{seen}.observe(document.querySelector('tbody'), {{attributes: true, subtree: true}})")
    farm.put("renamed", "10.1.2.5:80", label="after")
    expect(row(page, "renamed")).to_contain_text("after")
    assert "gone" not in page.title()
    farm.call("DELETE", "/v1/services/renamed/1")
    expect(row(page, "renamed")).to_have_count(0)
    assert page.title() == "gone"


def test_the_first_screen_has_the_farm_at_a_glance(farm: Farm, tabs: Tabs) -> None:
    page = tabs(farm.url())
    expect(page.get_by_role("heading", level=1)).not_to_have_text("Looking at the farm…")
    with farm.bank(name="glanced"):
        news = page.get_by_role("region", name="New")
        expect(news).to_contain_text("glanced")
        expect(news).to_contain_text("offered")
        wires = page.get_by_role("region", name="Wires")
        for wire in ("elko", "mc0", "mtl", "dbp", "http"):
            expect(wires).to_contain_text(wire)
        expect(page.get_by_role("region", name="Listeners")).to_contain_text("ready")


def test_a_load_changes_in_its_row(farm: Farm, tabs: Tabs) -> None:
    with farm.bank("busy-teller") as peer:
        page = tabs(farm.url("loads"))
        cell = row(page, "busy-teller").locator("td").nth(2)
        expect(cell).to_have_text("0")
        peer.send(to="client", op="load", factor=2.5)
        expect(cell).to_have_text("2.5")


def test_a_provider_has_the_number_of_its_services_of_now(farm: Farm, tabs: Tabs) -> None:
    with farm.bank("growing-teller") as peer:
        page = tabs(farm.url("providers"))
        cell = row(page, "growing-teller").locator("td").nth(4)
        expect(cell).to_have_text("1")
        peer.send(to="client", op="willserve", services=[{"service": "vault", "hostport": "10.0.0.1:81"}])
        expect(cell).to_have_text("2")


@pytest.mark.parametrize("place", ["providers", "loads"])
def test_a_provider_has_its_label_of_now(farm: Farm, tabs: Tabs, place: str) -> None:
    with farm.bank("early-teller") as peer:
        page = tabs(farm.url(place))
        expect(row(page, "early-teller")).to_have_count(1)
        expect(page.locator("#connection")).to_have_text("Live")
        peer.send(to="admin", op="auth", label="late-teller")
        expect(row(page, "late-teller")).to_have_count(1)
        expect(row(page, "early-teller")).to_have_count(0)


@pytest.mark.parametrize("place", ["providers", "loads", "view/http/instances"])
def test_an_id_is_written_as_commands_take_it(farm: Farm, tabs: Tabs, place: str) -> None:
    provider = farm.put("numbered", "10.0.0.9:80")["provider"]
    page = tabs(farm.url(f"{place}?q=numbered"))
    expect(row(page, "numbered")).to_contain_text(str(provider))
    if place == "providers":
        row(page, "numbered").get_by_role("link").first.click()
        expect(page.get_by_role("complementary", name="Details")).to_contain_text(str(provider))


def test_loads_stay_in_their_order(farm: Farm, tabs: Tabs) -> None:
    with farm.bank("first-teller") as first, farm.bank("second-teller") as second:
        first.send(to="client", op="load", factor=20)
        second.send(to="client", op="load", factor=10)
        second.done()
        page = tabs(farm.url("loads?q=-teller"))
        expect(page.locator("tbody tr").first).to_contain_text("first-teller")
        second.send(to="client", op="load", factor=30)
        expect(page.locator("tbody tr").first).to_contain_text("second-teller")


def test_columns_are_sorted_by_the_server(farm: Farm, tabs: Tabs) -> None:
    services = [{"service": f"sorted-{name}", "hostport": "h:1"} for name in ("b", "c", "a")]
    with farm.provider("sorter", services):
        page = tabs(farm.url("services?q=sorted-"))
        expect(page.locator(".total")).to_have_text("3")
        expect(page.get_by_role("columnheader", name="Service")).to_have_attribute("aria-sort", "ascending")
        assert names(page) == ["sorted-a", "sorted-b", "sorted-c"]
        page.get_by_role("columnheader", name="Service").get_by_role("button").click()
        expect(page.get_by_role("columnheader", name="Service")).to_have_attribute("aria-sort", "descending")
        expect(page.locator("tbody tr").first).to_contain_text("sorted-c")
        assert names(page) == ["sorted-c", "sorted-b", "sorted-a"]


@pytest.mark.parametrize("name", ["Needle-In-Hay", "Needle-" + "x" * 248])
def test_a_search_finds_names_in_either_case(farm: Farm, tabs: Tabs, name: str) -> None:
    with farm.bank(name=name), farm.bank(name="other"):
        page = tabs(farm.url("services"))
        expect(row(page, "other")).to_have_count(1)
        page.keyboard.press("/")
        page.keyboard.insert_text(name.lower())
        expect(page.locator(".total")).to_have_text("1")
        assert names(page) == [name]
        page.keyboard.press("Escape")
        expect(row(page, "other")).to_have_count(1)


def test_details_tell_why_a_service_is_here(farm: Farm, tabs: Tabs) -> None:
    with farm.bank("explained-1", "explained", "10.0.0.9:1"), farm.bank("explained-2", "explained", "10.0.0.9:2"):
        # A provider that has left is 404.
        page = tabs(farm.url("services"), permitted=[404])
        row(page, "10.0.0.9:2").get_by_role("link", name="explained").click()
        detail = page.get_by_role("complementary", name="Details")
        expect(detail).to_contain_text(re.compile(r"2 instances, as of \d\d:\d\d:\d\d"))
        first = detail.get_by_role("region", name="Instance 10.0.0.9:1")
        expect(first).to_contain_text("explained-1")
        expect(first).to_contain_text("Alive by")
        expect(first).to_contain_text("connection")
        expect(first).to_contain_text("Ends")
        first.get_by_role("link").click()
        expect(detail).to_contain_text(re.compile(r"1 service, as of \d\d:\d\d:\d\d"))
        expect(detail).to_contain_text("explained-1")
    expect(detail).to_contain_text("has left")


def test_the_keyboard_moves_opens_and_closes(farm: Farm, tabs: Tabs) -> None:
    with farm.provider("keys", [{"service": f"key-{each}", "hostport": "h:1"} for each in "abc"]):
        page = tabs(farm.url("services?q=key-"))
        expect(page.locator(".total")).to_have_text("3")
        for key, name in (("j", "key-a"), ("j", "key-b"), ("ArrowDown", "key-c"), ("k", "key-b")):
            page.keyboard.press(key)
            expect(page.get_by_role("link", name=name)).to_be_focused()
        page.keyboard.press("Enter")
        detail = page.get_by_role("complementary", name="Details")
        expect(detail.get_by_role("heading", name="key-b")).to_be_visible()
        page.keyboard.press("Escape")
        expect(detail).to_be_hidden()
        expect(page.get_by_role("link", name="key-b")).to_be_focused()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("4")
        expect(page.get_by_role("heading", level=1)).to_have_text("Providers")


def test_the_catalogue_leads_from_a_name_to_its_instances(farm: Farm, tabs: Tabs) -> None:
    offers = [{"service": "listed", "hostport": f"h:{port}"} for port in (1, 2)]
    with farm.provider("lister", offers), farm.bank("teller", "unlisted"):
        page = tabs(farm.url("catalog?q=listed"))
        expect(row(page, "listed").first.locator("td").nth(1)).to_have_text("2")
        page.get_by_role("link", name="listed", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Services")
        expect(page.locator(".total")).to_have_text("2")
        assert names(page) == ["listed", "listed"]


def test_events_are_shown_as_they_happen(farm: Farm, tabs: Tabs) -> None:
    page = tabs(farm.url("events"))
    expect(page.locator("#connection")).to_have_text("Live")
    with farm.bank("herald", "eventful"):
        expect(row(page, "eventful").filter(has_text="offered")).to_have_count(1)
        expect(row(page, "herald").filter(has_text="joined")).to_have_count(1)
    expect(row(page, "eventful")).to_have_count(2)
    # The reason is not said twice.
    left = row(page, "herald").filter(has_text="left")
    expect(left.locator('td[data-label="Reason"]')).to_have_text("")


def test_each_view_of_a_wire_is_a_table(farm: Farm, tabs: Tabs) -> None:
    with farm.bank("session-of-elko"):
        page = tabs(farm.url())
        links = page.get_by_role("navigation").get_by_role("link")
        expect(links.filter(has_text="Queues")).to_have_count(1)
        for name in [view["name"] for view in farm.call("GET", "/v1/views")["rows"] if view["name"][:7] != "broker "]:
            page.goto(farm.url(f"view/{name.replace(' ', '/')}"))
            expect(page.get_by_role("table")).to_have_attribute("aria-rowcount", re.compile("[0-9]+"))
            if name == "elko sessions":
                row(page, "session-of-elko").get_by_role("button").click()
                expect(page.get_by_role("complementary", name="Details")).to_contain_text("session-of-elko")


def test_a_phone_shows_a_service_in_two_lines(farm: Farm, tabs: Tabs) -> None:
    with farm.bank("pocket-teller", "pocket", "10.0.0.7:1"):
        page = tabs(farm.url("services?q=pocket"), PHONE)
        expect(row(page, "10.0.0.7:1")).to_be_visible()
        box = row(page, "10.0.0.7:1").bounding_box()
        assert box is not None
        assert box["width"] <= PHONE[0]
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
        page.get_by_role("button", name="Menu").click()
        page.get_by_role("navigation").get_by_role("link", name="Loads").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Loads")
        expect(page.get_by_role("navigation")).to_be_hidden()


def test_the_colour_scheme_is_that_of_the_system_or_the_chosen_one(farm: Farm, tabs: Tabs) -> None:
    page = tabs(farm.url(), color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Colour scheme: system").click()
    expect(page.get_by_role("button", name="Colour scheme: light")).to_be_visible()
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    assert page.evaluate(ground) == light
    page.get_by_role("button", name="Colour scheme: light").click()
    assert page.evaluate(ground) == dark


@pytest.fixture
def logging_farm(tmp_path: Path) -> Iterator[Farm]:
    """A daemon that collects logs."""
    file = tmp_path / "x.toml"
    file.write_text(configuration("[log]\ncollect = true\n"))
    with Daemon(tmp_path, "--config", str(file)) as daemon:
        yield Farm(daemon)


@pytest.fixture
def large_farm(tmp_path: Path) -> Iterator[Farm]:
    """A daemon at which one address may offer more services than by default."""
    file = tmp_path / "x.toml"
    file.write_text(configuration("[broker]\nmemory_per_address = 134217728\n"))
    with Daemon(tmp_path, "--config", str(file)) as daemon:
        daemon.http_port()
        yield Farm(daemon)


def test_ten_thousand_services_are_a_window_of_rows(large_farm: Farm, tabs: Tabs) -> None:
    farm = large_farm
    peers = [
        farm.provider(f"many-{each}", [{"service": f"many-{each}-{n:03}", "hostport": "h:1"} for n in range(500)])
        for each in range(20)
    ]
    page = tabs(farm.url("services?q=many-"))
    expect(page.locator(".total")).to_have_text("10,000")
    expect(page.get_by_role("table")).to_have_attribute("aria-rowcount", "10001")
    page.keyboard.press("End")
    # A long list is in the order of the broker until somebody sorts it.
    expect(page.get_by_role("link", name="many-19-499")).to_be_focused()
    assert page.locator("tbody tr").count() < 60
    for name in ("many-0-000", "many-9-499"):
        page.get_by_role("columnheader", name="Service").get_by_role("button").click()
        expect(page.locator("tbody tr").first).to_contain_text(name)
    again = page.locator(".again")
    again.evaluate("button => button.textContent = ''")
    again.click()
    # The rows of this answer are those that the end of the peer marks: a later answer would not have them.
    expect(again).to_contain_text("as of")
    peers[9].sock.close()
    # It is loaded again after a minute; what has gone is marked at once.
    expect(page.locator("tbody tr.gone").first).to_contain_text("many-9-499")
    for peer in peers:
        peer.sock.close()
    done(farm)
    page.keyboard.press("r")
    expect(page.locator(".total")).to_have_text("0")


def test_a_search_and_its_filter_survive_the_opening_of_a_row(farm: Farm, tabs: Tabs) -> None:
    for name in ("kept-a", "kept-b"):
        farm.put(name, "10.1.4.1:80", zone=name[-1])
    page = tabs(farm.url("services?q=kept"))
    expect(page.locator(".total")).to_have_text("2")
    # The first row stays as it is, with the address of its details.
    for typed in ("kept-a", "service=kept-a", "zone=a and not service=other"):
        page.get_by_role("searchbox").fill(typed)
        expect(page.locator(".total")).to_have_text("1")
        row(page, "kept-a").get_by_role("link", name="kept-a").click()
        expect(page.get_by_role("complementary", name="Details")).to_contain_text("1 instance")
        expect(page.get_by_role("searchbox")).to_have_value(typed)
        expect(page.locator(".total")).to_have_text("1")
        page.get_by_role("button", name="Close details").click()


def test_a_filter_that_does_not_parse_is_explained(farm: Farm, tabs: Tabs) -> None:
    page = tabs(farm.url("catalog"), permitted=[400])
    page.get_by_role("searchbox").fill("zone=")
    expect(page.get_by_role("alert")).to_contain_text("position 6: expected a value")


def test_columns_without_a_value_are_hidden(farm: Farm, tabs: Tabs) -> None:
    farm.put("columned", "10.1.4.2:80")
    page = tabs(farm.url("services?q=columned"))
    expect(row(page, "columned")).to_have_count(1)
    head = page.get_by_role("columnheader")
    expect(head.filter(has_text="Address")).to_have_count(1)
    expect(head.filter(has_text="Zone")).to_have_count(0)
    farm.put("columned", "10.1.4.2:80", zone="east")
    expect(head.filter(has_text="Zone")).to_have_count(1)
    expect(row(page, "columned")).to_contain_text("east")


def test_the_collected_log_is_shown_as_it_grows(logging_farm: Farm, tabs: Tabs) -> None:
    farm = logging_farm

    def publish(topic: str, text: str) -> None:
        farm.call("POST", "/v1/actions/publish", {"topic": topic, "text": text})

    publish("log.rohan.error", "the first beacon is lit")
    page = tabs(farm.url("logs"))
    found = row(page, "the first beacon is lit")
    expect(found).to_contain_text("rohan")
    expect(found).to_contain_text("error")
    publish("log.gondor.info", "the second beacon is lit")
    expect(row(page, "the second beacon")).to_have_count(1)
    assert names(page) == ["the second beacon is lit", "the first beacon is lit"]
    page.get_by_role("combobox", name="From level").select_option("warning")
    expect(row(page, "the second beacon")).to_have_count(0)
    page.get_by_role("searchbox").fill("mordor")
    expect(page.locator(".empty")).to_have_text("Nothing matches.")
    page.get_by_role("searchbox").fill("rohan")
    row(page, "the first beacon").get_by_role("button").click()
    expect(page.get_by_role("complementary", name="Details")).to_contain_text("the first beacon is lit")


def test_records_that_are_left_out_of_the_log_stay_counted(logging_farm: Farm, tabs: Tabs) -> None:
    def leave_out(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), "missed": 3})

    page = tabs(logging_farm.url())
    page.route("**/v1/logs?*after=*", leave_out, times=2)
    page.goto(logging_farm.url("logs"))
    expect(page.locator(".screen .strip")).to_contain_text("6 records left out")


LABELS = {"label-content-name-mismatch": {"enabled": True}}

PLACES = ("", "catalog", "services?open=judged", "loads", "events", "logs", "view/elko/sessions")


@pytest.mark.parametrize(
    ("places", "options", "rules"),
    [
        (PLACES, {}, None),
        (("services?open=judged",), {"size": PHONE}, None),
        (("", "services?open=judged"), {"color_scheme": "dark"}, ["color-contrast"]),
    ],
    ids=["wide", "phone", "dark"],
)
def test_axe_finds_nothing(
    farm: Farm, tabs: Tabs, axe: str, places: Sequence[str], options: Mapping[str, Any], rules: object
) -> None:
    with farm.bank("judged", "judged") as peer:
        peer.send(to="client", op="load", factor=0.5)
        page = tabs(farm.url(), **options)
        expect(page.locator("#connection")).to_have_attribute("data-state", "live")
        page.evaluate(axe)
        for place in places:
            page.goto(farm.url(place))
            # The screen before it stays until the browser has told the page of its new address.
            shown = page.locator("[data-place][aria-current=page]")
            expect(shown).to_have_attribute("data-place", place.partition("?")[0] or "overview")
            expect(page.locator("main")).to_contain_text("No record" if place == "logs" else "judged")
            # The chip of the time is shown for long lists only.
            page.evaluate("for (const chip of document.querySelectorAll('.again')) chip.hidden = false")
            if "open=" in place:
                expect(page.get_by_role("complementary", name="Details")).to_contain_text("1 instance")
            # axe runs the rule of labels on request only.
            only = {"runOnly": {"type": "rule", "values": rules}} if rules else {"rules": LABELS}
            found = page.evaluate("only => axe.run(only)", only)["violations"]
            assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


@pytest.mark.parametrize("place", ["events", "services"])
def test_titles_that_sort_nothing_take_no_room_on_a_phone(farm: Farm, tabs: Tabs, place: str) -> None:
    with farm.bank("narrow-teller", "narrow"):
        page = tabs(farm.url(f"{place}?q=narrow"), PHONE)
        expect(page.locator("#connection")).to_have_attribute("data-state", "live")
        if place == "events":
            farm.put("narrow", "10.1.2.8:80")
        expect(row(page, "narrow").first).to_be_visible()
        head = page.locator("thead")
        # In the other lists the titles are buttons, which the reader moves into view.
        assert head.evaluate("head => head.getBoundingClientRect().height > 1") == (place == "services")
        assert head.get_by_role("columnheader").count() > 0, "a screen reader has them all the same"
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


def test_a_value_of_a_view_has_its_title_on_a_phone(farm: Farm, tabs: Tabs) -> None:
    with farm.bank("bare-teller", "bare") as peer:
        peer.send(to="client", op="load", factor=1.5)
        page = tabs(farm.url("view/elko/sessions"), PHONE)
        found = row(page, "bare-teller")
        expect(found.locator("td", has_text="yes")).to_be_visible()
        before = "cell => getComputedStyle(cell, '::before').content"
        assert found.locator("td", has_text="yes").evaluate(before) == '"Trusted "'
        assert found.locator("td", has_text="1.5").evaluate(before) == '"Load "'
        assert found.locator("td", has_text="bare-teller").evaluate(before) == "none"


def test_ages_are_not_cut_and_wires_have_their_names(farm: Farm, tabs: Tabs) -> None:
    farm.put("aged", "10.1.2.9:80")
    page = tabs(farm.url("view/http/instances"))
    expect(page.get_by_role("heading", level=1)).to_have_text("HTTP instances")
    page.goto(farm.url("view/mc0/topics"))
    expect(page.get_by_role("heading", level=1)).to_have_text("mc0 topics")
    page.goto(farm.url("providers?q=aged"))
    cell = row(page, "aged/1").locator('td[data-label="Heard"]')
    # In one step, since the page may draw the row again.
    assert cell.evaluate(
        "cell => { cell.textContent = '59 min 59 s ago'; return cell.scrollWidth <= cell.clientWidth }"
    )


def test_an_address_that_is_entered_while_the_page_starts_is_opened(farm: Farm, tabs: Tabs) -> None:
    page = tabs(farm.url())
    held: list[Route] = []
    page.route("**/v1/views", lambda route: held.append(route))
    with page.expect_request("**/v1/views"):
        page.reload()
    page.goto(farm.url("view/mtl/queues"))
    held[0].continue_()
    expect(page.get_by_role("heading", level=1)).to_have_text("MTL queues")


DURATIONS = {0.9996: "1 s", 9.94: "9.9 s", 59.7: "1 min", 3_599.7: "1 h", 86_369: "23 h 59 min", 86_399: "1 d"}
SIZES = {1_023: "1,023 B", 1_048_000: "1,023 KiB", 1_048_575: "1 MiB"}


@pytest.mark.parametrize(
    ("place", "column", "texts"), [("listeners", "seconds", DURATIONS), ("view/mtl/queues", "bytes", SIZES)]
)
def test_a_rounded_value_has_the_larger_unit(
    farm: Farm, tabs: Tabs, place: str, column: str, texts: dict[float, str]
) -> None:
    rows = [{"name": str(value), "host": str(value), column: value} for value in texts]
    page = tabs(farm.url())
    answer = {"rows": rows, "total": len(rows)}
    page.route(f"**/v1/{place.replace('view', 'views')}?*", lambda route: route.fulfill(json=answer))
    page.goto(farm.url(place))
    expect(page.locator(f'td[data-label="{"Since" if column == "seconds" else "Bytes"}"]')).to_have_text(
        list(texts.values())
    )


def test_the_header_has_the_version(farm: Farm, tabs: Tabs) -> None:
    version = farm.call("GET", "/v1/status")["version"]
    expect(tabs(farm.url()).locator("#about")).to_contain_text(version)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the size of another process's files cannot be limited")
def test_everything_is_up_only_without_a_full_listener_a_failing_service_and_a_degraded_store(
    tmp_path: Path, tabs: Tabs
) -> None:
    tight = listener("tight", "[elko.listeners.limits]", "connections = 1")
    check = '[[checks.rules]]\nservices = ["bank"]\nkind = "tcp"\ninterval = 1.0\ntimeout = 0.5\ndown = 1\nup = 1\n'
    (tmp_path / "x.toml").write_text(configuration(tight, check))
    with Daemon(tmp_path, "--config", "x.toml") as daemon, ExitStack() as held:
        farm = Farm(daemon)
        held.enter_context(farm.provider("idle", [{"service": "idle", "hostport": "10.0.0.1:80"}]))
        page = tabs(farm.url())
        verdict, causes = page.get_by_role("heading", level=1), page.locator(".verdict ul")
        expect(verdict).to_have_text("Everything is up")

        peers = deque[socket.socket]()

        def full() -> bool:
            """Connect: the newcomer takes the place of the one before. Return whether the page shows that."""
            peers.append(socket.create_connection(("127.0.0.1", daemon.port("tight")), PATIENCE))
            if len(peers) > 2:
                peers.popleft().close()
            return causes.is_visible() and "listener elko tight: it is full" in causes.inner_text()

        until(full)
        expect(verdict).to_contain_text("attention")
        for peer in peers:
            peer.close()
        expect(verdict).to_have_text("Everything is up")

        with socket.socket() as closed, farm.bank(hostport=f"127.0.0.1:{bound(closed)}"):
            expect(causes).to_contain_text("1 health check fails")
            expect(verdict).to_contain_text("attention")
        expect(verdict).to_have_text("Everything is up")

        limits = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
        held.enter_context(farm.bank(name="unwritten"))
        expect(causes).to_contain_text("store: ")
        expect(verdict).to_contain_text("attention")
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, limits)
        expect(verdict).to_have_text("Everything is up")


def bound(free: socket.socket) -> int:
    """A port of this machine at which nothing listens."""
    free.bind(("127.0.0.1", 0))
    return int(free.getsockname()[1])
