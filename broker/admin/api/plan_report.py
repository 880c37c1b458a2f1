"""The report of the capacity jobs, served as files: the HTML pages beside plan.json.

Rules:
- Only ``report.html``, and pages of single services in ``services``, are served. A page is read whole in the thread of
  the disk.
- A page is a document of another program: it runs no script, loads nothing, and has no origin (CSP ``sandbox``), so
  that it can neither read nor call this server.
- The pages name all services of the plan. A user who may not find every service is refused them.
- Each page has two paths: one for clients that have the right by their credentials, and one below a ticket, for
  browsers whose user has a token (`report_tickets`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred

from broker.access.registry_reading import RegistryReading
from broker.admin.api.pieces import answer
from broker.admin.api.report_tickets import LIFETIME, OPERATION, ReportTickets
from broker.admin.plan_views import REPORT
from broker.blocking import blocking
from broker.core.errors import Reason
from broker.web.http_endpoint import Call, Endpoint
from broker.web.messages import Response
from broker.web.problem import Problem

MAX_PAGE = 32 * 1024 * 1024
"""Bytes of a page: ten times the report of 60 services, which is the most that one page has."""

_PAGE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,250}\.html")

_HEADERS = (
    (
        "Content-Security-Policy",
        "sandbox allow-popups; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
)

TICKETS = "/plan/ticket"
"""Path below which each ticket is a segment. `broker.net.traces` hides what follows ``/ticket/``."""

InThread = Callable[..., Deferred[Any]]


@attrs.frozen
class NewTicket:
    """The request of a ticket, which has no parameters."""


@attrs.frozen
class TicketAnswer:
    """A ticket: the report is at the path ``root`` and its own name, ``report.html``, for so many ``seconds``."""

    root: str
    seconds: float


def endpoints(plan: Callable[[], str | None], in_thread: InThread, tickets: ReportTickets) -> list[Endpoint]:
    """Return the endpoints. ``plan`` returns the path of plan.json, None without one."""

    def serve(*names: str) -> Deferred[Response]:
        path = plan()
        if path is None:
            raise _missing()
        reading: Deferred[Response] = in_thread(read, os.path.join(os.path.dirname(path), *names))
        return reading

    def report(call: Call) -> Deferred[Response]:
        return serve("report.html")

    def by_credentials(handler: Callable[[Call], Deferred[Response]]) -> Callable[[Call], Deferred[Response]]:
        def checked(call: Call) -> Deferred[Response]:
            _check(call)
            return handler(call)

        return checked

    def by_ticket(handler: Callable[[Call], Deferred[Response]]) -> Callable[[Call], Deferred[Response]]:
        def checked(call: Call) -> Deferred[Response]:
            tickets.check(call.path["ticket"], call.request.address)
            return handler(call)

        return checked

    def ticket(call: Call) -> Response:
        _check(call)
        return answer(TicketAnswer(f"{TICKETS}/{tickets.give(call.principal)}/", LIFETIME), 201)

    def service(call: Call) -> Deferred[Response]:
        page = call.path["page"]
        if _PAGE.fullmatch(page) is None:
            raise _missing()
        return serve("services", page)

    return [
        Endpoint("GET", REPORT, "get_report", "Returns the report of the capacity plan.", by_credentials(report)),
        Endpoint(
            "GET",
            "/plan/services/{page}",
            "get_report_page",
            "Returns the report on one service.",
            by_credentials(service),
        ),
        Endpoint(
            "POST",
            "/v1/plan/tickets",
            "make_report_ticket",
            "Makes a path under which a browser reads the report without credentials for a while.",
            ticket,
            body=NewTicket,
            answer=TicketAnswer,
            operation=OPERATION,
            writes=True,
            status=201,
        ),
        Endpoint(
            "GET",
            f"{TICKETS}/{{ticket}}/report.html",
            "get_report_by_ticket",
            "Returns the report of the capacity plan to the holder of a ticket.",
            by_ticket(report),
            operation=None,
        ),
        Endpoint(
            "GET",
            f"{TICKETS}/{{ticket}}/services/{{page}}",
            "get_report_page_by_ticket",
            "Returns the report on one service to the holder of a ticket.",
            by_ticket(service),
            operation=None,
        ),
    ]


@blocking
def read(path: str) -> Response:
    """Return the page at ``path``. Blocks on the disk. Raises `Problem` 404 if there is none, or none of its size."""
    try:
        # A pipe or a device at this path would block the thread.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _missing()
            body = file.read(MAX_PAGE + 1)
    except OSError:
        raise _missing() from None
    if len(body) > MAX_PAGE:
        raise _missing()
    return Response(200, body, "text/html; charset=utf-8", _HEADERS)


def _check(call: Call) -> None:
    if not RegistryReading.of(call.grants).every:
        raise Problem(403, "the report names all services: this user may not find all of them", Reason.FORBIDDEN)


def _missing() -> Problem:
    return Problem(404, "there is no such report beside the plan", Reason.UNKNOWN_TARGET)
