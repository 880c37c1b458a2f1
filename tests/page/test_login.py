"""The form for a token: its appearance, the place of the token, refusals."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from broker.access import users_document
from tests.access.users import ACCESS, ANN, put
from tests.integration.daemon import Daemon
from tests.page.conftest import Tabs
from tests.page.farm import Farm, configuration

pytestmark = pytest.mark.long

TOKEN, NARROW_TOKEN = users_document.new_token(), users_document.new_token()

USERS = f"""\
[[users]]
name = "carol"
[[users.tokens]]
label = "page"
hash = "{users_document.token_hash(TOKEN)}"

[[users]]
name = "narrow"
[[users.tokens]]
label = "page"
hash = "{users_document.token_hash(NARROW_TOKEN)}"

[[users]]
name = "dora"
passwords = ["{ANN.text()}"]

[[rights]]
users = ["carol", "dora"]
operations = ["view", "find", "offer"]

[[rights]]
users = ["narrow"]
operations = ["find"]
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A daemon that shows itself to its users only."""
    folder = tmp_path_factory.mktemp("guarded")
    put(folder / "users.toml", USERS)
    (folder / "x.toml").write_text(configuration(ACCESS))
    with Daemon(folder, "--config", "x.toml") as daemon:
        daemon.http_port()
        yield Farm(daemon)


def test_a_token_opens_the_page_and_is_kept_for_the_tab(guarded: Farm, tabs: Tabs) -> None:
    guarded.call("PUT", "/v1/services/bank/1", {"hostport": "10.0.0.1:80", "ttl": 600}, TOKEN)
    page = tabs(guarded.url("services"), permitted=[401])
    form = page.get_by_role("dialog", name="Sign in")
    expect(form).to_be_visible()
    assert "10.0.0.1" not in page.content()
    page.get_by_label("Password or token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("row").filter(has_text="10.0.0.1:80")).to_be_visible()
    expect(form).to_be_hidden()
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.get_by_role("navigation")).to_contain_text("Signed in as carol")
    assert TOKEN not in page.content()
    assert TOKEN not in page.url
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    page.reload()
    expect(page.get_by_role("row").filter(has_text="10.0.0.1:80")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(form).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_wrong_token_is_refused_and_forgotten(guarded: Farm, tabs: Tabs) -> None:
    page = tabs(guarded.url("services"), permitted=[401])
    form = page.get_by_role("dialog", name="Sign in")
    page.get_by_label("Password or token").fill("nöt ascii")
    page.get_by_role("button", name="Sign in").click()
    expect(form).to_contain_text("without spaces")
    page.get_by_label("Password or token").fill(users_document.new_token())
    page.get_by_role("button", name="Sign in").click()
    expect(form.get_by_role("alert")).to_contain_text("token")
    expect(form).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_late_refusal_does_not_end_the_credentials_entered_since(guarded: Farm, tabs: Tabs) -> None:
    page = tabs(guarded.url("services"), permitted=[401])
    form = page.get_by_role("dialog", name="Sign in")
    expect(form).to_be_visible()
    late: list[Route] = []
    for path in ("**/v1/watch*", "**/v1/status"):
        page.route(path, lambda route: late.append(route))
    with page.expect_request("**/v1/watch*"):
        # As a tab that comes to the front.
        page.evaluate('document.dispatchEvent(new Event("visibilitychange"))')
    page.get_by_label("Password or token").fill(TOKEN)
    with page.expect_request("**/v1/status"):
        page.keyboard.press("Enter")
    while len(late) < 2:
        page.evaluate("0")
    watch, status = late
    page.unroute("**/v1/watch*")
    with page.expect_response("**/v1/watch*"):
        watch.fulfill(status=401, json={"detail": "late"})
    status.continue_()
    expect(page.locator("#connection")).to_have_text("Live")
    expect(form).to_be_hidden()


def test_a_password_opens_the_page_and_is_kept_nowhere(guarded: Farm, tabs: Tabs) -> None:
    page = tabs(guarded.url("services"), permitted=[401])
    form = page.get_by_role("dialog", name="Sign in")
    for password in ("crayon", "pencil"):
        page.get_by_label("User").fill("dora")
        page.get_by_label("Password or token").fill(password)
        page.get_by_role("button", name="Sign in").click()
        if password == "crayon":
            expect(form.get_by_role("alert")).not_to_be_empty()
    expect(page.get_by_role("navigation")).to_contain_text("Signed in as dora")
    expect(page.locator("#connection")).to_have_text("Live")
    assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [0, 0, ""]
    page.reload()
    expect(form).to_be_visible()


def test_a_user_without_the_right_is_told_and_signs_out(guarded: Farm, tabs: Tabs) -> None:
    page = tabs(guarded.url("services"), permitted=[401, 403])
    form = page.get_by_role("dialog", name="Sign in")
    page.get_by_label("Password or token").fill(NARROW_TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("view")
    expect(page.get_by_role("main").get_by_role("heading")).to_have_text("Forbidden")
    page.get_by_role("button", name="Sign out").click()
    expect(form).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_page_that_is_open_follows_the_rights_of_its_user(tmp_path: Path, tabs: Tabs) -> None:
    def users(*operations: str) -> str:
        return USERS.replace('["view", "find", "offer"]', json.dumps(operations))

    file = tmp_path / "users.toml"
    put(file, users("view", "find", "offer", "admin.withdraw"))
    (tmp_path / "x.toml").write_text(configuration(ACCESS))
    with Daemon(tmp_path, "--config", "x.toml") as daemon:
        farm = Farm(daemon)
        farm.call("PUT", "/v1/services/bank/1", {"hostport": "10.0.0.1:80", "ttl": 600}, TOKEN)
        page = tabs(farm.url("providers"), permitted=[401, 403])
        page.get_by_label("Password or token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="bank/1").click()
        withdraw = page.get_by_role("button", name="Withdraw")
        connection = page.locator("#connection")
        expect(withdraw).to_be_visible()
        put(file, users("find", "offer"))
        daemon.signal(signal.SIGHUP)
        expect(connection).to_contain_text("Connection lost")
        with page.expect_response(lambda response: "/v1/watch" in response.url and response.status == 403):
            pass
        put(file, users("view", "find", "offer"))
        daemon.signal(signal.SIGHUP)
        expect(connection).to_have_text("Live")
        expect(withdraw).to_have_count(0)
        expect(page.get_by_role("complementary", name="Details")).to_contain_text("10.0.0.1:80")
