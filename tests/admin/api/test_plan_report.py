"""The report of the capacity jobs over HTTP: pages beside plan.json, and nothing else of the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred

from broker.admin.api import plan_report
from broker.admin.plan_views import REPORT
from broker.web.endpoint import Call, NoParameters
from broker.web.messages import Request, Response
from broker.web.problem import Problem
from broker.web.routes import Routes
from tests.admin.api.calls import BOB


def at_once(function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
    """Call a function as the thread of the disk does."""
    return maybeDeferred(function, *arguments)


class Desk:
    """The endpoints over a plan in ``directory``."""

    def __init__(self, plan: Path | None) -> None:
        routes = Routes(lambda: endpoints)
        endpoints = plan_report.endpoints(lambda: None if plan is None else str(plan), at_once)
        routes.refresh()
        self._routes = routes

    def get(self, path: str) -> Response:
        """The response, or the problem raised."""
        endpoint, variables = self._routes.find("GET", path)
        results: list[Any] = []
        answer = endpoint.handler(Call(Request("GET", path), BOB, variables, NoParameters()))
        assert isinstance(answer, Deferred)
        answer.addBoth(results.append)
        [result] = results
        if isinstance(result, Response):
            return result
        raise result.value

    def status(self, path: str) -> int:
        """The status of the answer."""
        try:
            return self.get(path).status
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
        file.truncate(plan_report.MAX_PAGE + 1)
    assert Desk(plan).status(REPORT) == 404
    report.unlink()
    report.mkdir()
    assert Desk(plan).status(REPORT) == 404
