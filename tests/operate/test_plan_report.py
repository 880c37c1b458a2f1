"""The report of the capacity jobs over HTTP: pages beside plan.json, and nothing else of the disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock

from broker.access.principal import Principal
from broker.access.rights import SERVICE, AnonymousAccess, Grants, NameSet
from broker.operate import plan_endpoints
from broker.operate.broker_tables import REPORT
from broker.operate.plan_endpoints import LIFETIME, MAX_TICKETS, NewTicket, ReportTickets
from broker.rest.http_endpoint import Call, NoParameters, Routes
from broker.rest.messages import Request, Response
from broker.rest.problem import Problem
from tests.operate.calls import BOB


def at_once(function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
    """Call a function as the thread of the disk does."""
    return maybeDeferred(function, *arguments)


def grants(*operations: str, names: str = "*") -> Grants:
    return Grants({(operation, SERVICE): NameSet(frozenset([names])) for operation in operations})


class Changing(AnonymousAccess):
    """Access that ends when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.valid = True
        self.of_bob = grants("view", "find")

    def stands(self, principal: Principal) -> bool:
        return self.valid

    def grants(self, principal: Principal, listener: str) -> Grants:
        return self.of_bob if (principal, listener) == (BOB, "http") else Grants()


class Desk:
    """The endpoints over a plan in ``directory``."""

    def __init__(self, plan: Path | None) -> None:
        self.clock = Clock()
        self.access = Changing()
        self.tickets = ReportTickets(self.access, self.clock, "http")
        endpoints = plan_endpoints.report_endpoints(lambda: None if plan is None else str(plan), at_once, self.tickets)
        self._routes = Routes(endpoints)

    def ticket(self) -> str:
        """The path below which bob reads the report by a new ticket."""
        endpoint, _ = self._routes.find("POST", "/v1/plan/tickets")
        assert (endpoint.operation, endpoint.writes) == ("view", True)
        made = endpoint.handler(Call(Request("POST", "/v1/plan/tickets"), BOB, {}, NoParameters(), NewTicket()))
        assert isinstance(made, Response)
        assert isinstance(made.body, bytes)
        root: str = json.loads(made.body)["root"]
        return root

    def get(self, path: str, address: str = BOB.address) -> Response:
        """The response, or the problem raised."""
        endpoint, variables = self._routes.find("GET", path)
        results: list[Any] = []
        answer = endpoint.handler(Call(Request("GET", path, address=address), Principal(), variables, NoParameters()))
        assert isinstance(answer, Deferred)
        answer.addBoth(results.append)
        [result] = results
        if isinstance(result, Response):
            return result
        raise result.value

    def status(self, path: str, address: str = BOB.address) -> int:
        """The status of the answer."""
        try:
            return self.get(path, address).status
        except Problem as problem:
            return problem.status


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    directory = tmp_path / "plan"
    (directory / "services").mkdir(parents=True)
    (directory / "report.html").write_text("<p>the report")
    (directory / "services" / "bank-1.html").write_text("<p>the bank")
    (directory / "services" / "secret.txt").write_text("secret")
    (tmp_path / "outside.html").write_text("outside")
    return directory / "plan.json"


def test_the_report_and_its_pages_are_served(plan: Path) -> None:
    desk = Desk(plan)
    report = desk.get(REPORT)
    assert (report.body, report.content_type) == (b"<p>the report", "text/html; charset=utf-8")
    assert desk.get("/plan/services/bank-1.html").body == b"<p>the bank"


def test_a_page_has_no_script_and_no_origin(plan: Path) -> None:
    policy = dict(Desk(plan).get(REPORT).headers)["Content-Security-Policy"]
    assert policy.startswith("sandbox allow-popups; default-src 'none';")
    assert "script" not in policy


@pytest.mark.parametrize(
    "path",
    [
        "/plan/services/other.html",
        "/plan/services/secret.txt",
        "/plan/services/..%2Freport.html",
        "/plan/services/..%2F..%2Foutside.html",
        "/plan/services/.html",
        "/plan/services/%00.html",
        "/plan/plan.json",
    ],
)
def test_nothing_else_is_served(plan: Path, path: str) -> None:
    plan.write_text("{}")
    assert Desk(plan).status(path) == 404


def test_without_a_plan_there_is_no_report(tmp_path: Path) -> None:
    assert Desk(None).status(REPORT) == 404
    assert Desk(tmp_path / "plan.json").status(REPORT) == 404


def test_a_directory_or_an_enormous_page_is_no_report(plan: Path) -> None:
    report = plan.with_name("report.html")
    with report.open("r+b") as file:
        file.truncate(plan_endpoints.MAX_PAGE + 1)
    assert Desk(plan).status(REPORT) == 404
    report.unlink()
    report.mkdir()
    assert Desk(plan).status(REPORT) == 404


# tickets


def test_a_ticket_opens_the_report_and_its_pages_and_nothing_else(plan: Path) -> None:
    desk = Desk(plan)
    root = desk.ticket()
    assert root.startswith("/plan/ticket/")
    report = desk.get(f"{root}report.html")
    assert report.body == b"<p>the report"
    assert dict(report.headers)["Content-Security-Policy"].startswith("sandbox ")
    assert dict(report.headers)["Referrer-Policy"] == "no-referrer"
    assert desk.get(f"{root}services/bank-1.html").body == b"<p>the bank"
    for path in ("services/secret.txt", "services/..%2Freport.html", "plan.json", "", "v1/plan"):
        assert desk.status(root + path) == 404


def test_a_ticket_is_of_one_address_and_ends(plan: Path) -> None:
    desk = Desk(plan)
    path = f"{desk.ticket()}report.html"
    assert desk.status(path, "192.0.2.99") == 404
    desk.clock.advance(LIFETIME - 1)
    assert desk.status(path) == 200
    desk.clock.advance(1)
    assert desk.status(path) == 404
    assert desk.status("/plan/ticket/guessed/report.html") == 404


@pytest.mark.parametrize(
    ("attribute", "less"),
    [
        ("valid", False),
        ("of_bob", grants("view")),
        ("of_bob", grants("find")),
        ("of_bob", grants("view", "find", names="b*")),
    ],
)
def test_a_ticket_ends_with_the_rights_of_its_user(plan: Path, attribute: str, less: object) -> None:
    desk = Desk(plan)
    path = f"{desk.ticket()}report.html"
    assert desk.status(path) == 200
    before = getattr(desk.access, attribute)
    setattr(desk.access, attribute, less)
    assert desk.status(path) == 404
    setattr(desk.access, attribute, before)
    assert desk.status(path) == 404, "once it has ended, it stays so"


def test_tickets_are_bounded_and_forgotten(plan: Path) -> None:
    desk = Desk(plan)
    first, second = desk.ticket(), desk.ticket()
    for _ in range(MAX_TICKETS - 1):
        desk.ticket()
    assert len(desk.tickets) == MAX_TICKETS
    assert [desk.status(f"{root}report.html") for root in (first, second)] == [404, 200]
    desk.clock.advance(LIFETIME)
    desk.ticket()
    assert len(desk.tickets) == 1
