"""The endpoints of the capacity plan: the list of services, and the providers that one needs now, for autoscalers."""

from __future__ import annotations

import os
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from broker import small_file
from broker.access.identity import same_host
from broker.access.principal import Access, Principal, forbidden
from broker.access.rights import RegistryReading
from broker.blocking import blocking
from broker.core.errors import Reason
from broker.core.interfaces import InThread, IRegistry
from broker.core.plan import DAY, IPlan, ScheduleRecord
from broker.operate.broker_tables import REPORT, plan_view
from broker.operate.table_endpoints import ListQuery, Rows, listing
from broker.rest.http_endpoint import Call, Endpoint
from broker.rest.messages import Response, answer, moment
from broker.rest.problem import Problem


@attrs.frozen
class PlanAnswer(Rows):
    """The capacity plan as it was read last.

    ``made`` is the moment for which it was made, ``age`` the time since then in seconds; both are null without a
    plan. ``problem`` is the reason for which the file could not be read the last time; then the plan is an older one.
    Rows are the services, the worst first.
    """

    made: str | None
    age: float | None
    problem: str | None


OLDEST = 8 * DAY
"""Seconds. The schedule of a plan is for a week, and a run may be late by a day: an older plan decides nothing."""


@attrs.frozen
class ReplicasQuery:
    """``scale_in`` permits an answer below the present number."""

    scale_in: bool = False


@attrs.frozen
class Replicas:
    """The number of providers that a service is to have now.

    ``replicas`` is ``wanted``, and at least ``has`` unless scaling in was allowed. ``wanted`` is the need of the
    present hour and the next one by the schedule of the plan, within the limits of the policy; ``has`` are the
    providers that offer the service now, or another one of its pool: services that share servers have one need. After
    a restart of the broker they count before they have registered again, for a grace period.
    ``made`` is the moment of the plan, ``age`` the time since then in seconds.
    ``record`` has the hours of past weeks in which the schedule would have been short, and its saving.
    """

    service: str
    replicas: int
    wanted: int
    has: int
    made: str
    age: float
    record: ScheduleRecord


def plan_endpoints(plan: IPlan, registry: IRegistry, clock: Any) -> list[Endpoint]:
    """Return the endpoints of the plan."""
    view = plan_view(plan, clock)

    def replicas(call: Call) -> Response:
        name = call.path["name"]
        if not RegistryReading.of(call.grants).shows(name):
            raise forbidden(call.principal, "find", name)
        current, age = plan.current(), plan.age()
        if current is None or age is None:
            if (why := plan.problem()) is None:
                raise Problem(404, "there is no capacity plan: plan.file is not set")
            raise Problem(503, f"there is no capacity plan: {why}")
        if age > OLDEST:
            raise Problem(503, f"the capacity plan is {age / DAY:.0f} days old: run the jobs")
        planned = current.services.get(name)
        wanted = None if planned is None else planned.wanted(current.made + age)
        if planned is None or wanted is None:
            raise Problem(404, f"the capacity plan has no need of {name[:80]!r}", Reason.NO_SUCH_SERVICE)
        # With those from before a restart: their providers run, and a scaler would start others in their place.
        offered = (service for each in current.sharing(name) for service in registry.services_named(each))
        has = len({service.provider for service in offered})
        number = wanted if call.query.scale_in else max(wanted, has)
        return answer(Replicas(name, number, wanted, has, moment(current.made), round(age), planned.record))

    def handle(call: Call) -> Response:
        current, age = plan.current(), plan.age()
        about = {
            "made": None if current is None else moment(current.made),
            "age": None if age is None else round(age),
            "problem": plan.problem(),
        }
        return listing(call, view, registry, about)

    return [
        Endpoint(
            "GET",
            "/v1/plan",
            "get_plan",
            "Lists the verdict of the capacity plan on each service, the worst first.",
            handle,
            query=ListQuery,
            answer=PlanAnswer,
        ),
        Endpoint(
            "GET",
            "/v1/plan/{name}/replicas",
            "get_replicas",
            "Returns the number of providers that a service is to have now, for autoscalers; it is not acted upon.",
            replicas,
            query=ReplicasQuery,
            answer=Replicas,
        ),
    ]


# Tickets for the report of the capacity jobs, by which a browser opens it whose user is known by a token.
#
# A browser follows a link without the token of the page, and a page of the report follows its own links so, too. So the
# page asks for a *ticket* with the token of its user: a random segment of a path under which the report is served for
# `LIFETIME`.
#
# Rules:
# - A ticket serves the report and nothing else, to the address that it was given to, as long as its user may view the
#   state of the daemon and find all services.
# - It is no cookie: no other site has it, and no request carries it by itself. The report has no script and sends no
#   Referer, so that it cannot pass the path on.

LIFETIME = 900.0
"""Seconds for which a ticket is good: the time to read the report, and to follow its links."""

MAX_TICKETS = 1_000
"""Tickets at a time, of some 500 bytes each. Beyond it the oldest one ends: the page gets another for each click."""

RANDOM = 16
"""Random bytes of a ticket: it cannot be guessed."""

OPERATION = "view"
"""The right that a ticket needs and carries."""


@attrs.frozen
class _Ticket:
    principal: Principal
    end: float


class ReportTickets:
    """The tickets of one listener, whose title is ``listener``."""

    def __init__(self, access: Access, clock: IReactorTime, listener: str) -> None:
        self._access = access
        self._clock = clock
        self._listener = listener
        self._given: OrderedDict[str, _Ticket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._given)

    def give(self, principal: Principal) -> str:
        """Return a new ticket for that user at their address."""
        now = self._clock.seconds()
        while self._given and (len(self._given) >= MAX_TICKETS or next(iter(self._given.values())).end <= now):
            self._given.popitem(last=False)
        ticket = secrets.token_urlsafe(RANDOM)
        self._given[ticket] = _Ticket(principal, now + LIFETIME)
        return ticket

    def check(self, ticket: str, address: str) -> None:
        """Raise `Problem` 404 unless the ticket permits a peer at that address to read the report now."""
        found = self._given.get(ticket)
        if found is None or found.end <= self._clock.seconds() or not same_host(found.principal.address, address):
            raise _unknown_ticket()
        principal = found.principal
        grants = self._access.grants(principal, self._listener)
        may = grants.may(OPERATION) and RegistryReading.of(grants).every
        if not may or not self._access.stands(principal):
            del self._given[ticket]
            raise _unknown_ticket()


def _unknown_ticket() -> Problem:
    return Problem(404, "this link has ended: open the report from the page again", Reason.UNKNOWN_TARGET)


# The report of the capacity jobs, served as files: the HTML pages beside plan.json.
#
# Rules:
# - Only ``report.html``, and pages of single services in ``services``, are served. A page is read whole in the thread
#   of the disk.
# - A page is a document of another program: it runs no script, loads nothing, and has no origin (CSP ``sandbox``), so
#   that it can neither read nor call this server.
# - The pages name all services of the plan. A user who may not find every service is refused them.
# - Each page has two paths: one for clients that have the right by their credentials, and one below a ticket, for
#   browsers whose user has a token.

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


@attrs.frozen
class NewTicket:
    """The request of a ticket, which has no parameters."""


@attrs.frozen
class TicketAnswer:
    """A ticket: the report is at the path ``root`` and its own name, ``report.html``, for so many ``seconds``."""

    root: str
    seconds: float


def report_endpoints(plan: Callable[[], str | None], in_thread: InThread, tickets: ReportTickets) -> list[Endpoint]:
    """Return the endpoints. ``plan`` returns the path of plan.json, None without one."""

    def serve(*names: str) -> Deferred[Response]:
        path = plan()
        if path is None:
            raise _missing_report()
        reading: Deferred[Response] = in_thread(read_report, os.path.join(os.path.dirname(path), *names))
        return reading

    def report(call: Call) -> Deferred[Response]:
        return serve("report.html")

    def by_credentials(handler: Callable[[Call], Deferred[Response]]) -> Callable[[Call], Deferred[Response]]:
        def checked(call: Call) -> Deferred[Response]:
            _check_reading(call)
            return handler(call)

        return checked

    def by_ticket(handler: Callable[[Call], Deferred[Response]]) -> Callable[[Call], Deferred[Response]]:
        def checked(call: Call) -> Deferred[Response]:
            tickets.check(call.path["ticket"], call.request.address)
            return handler(call)

        return checked

    def ticket(call: Call) -> Response:
        _check_reading(call)
        return answer(TicketAnswer(f"{TICKETS}/{tickets.give(call.principal)}/", LIFETIME), 201)

    def service(call: Call) -> Deferred[Response]:
        page = call.path["page"]
        if _PAGE.fullmatch(page) is None:
            raise _missing_report()
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
def read_report(path: str) -> Response:
    """Return the page at ``path``. Blocks on the disk. Raises `Problem` 404 if there is none, or none of its size."""
    try:
        with small_file.opened(path) as file:
            body = file.read(MAX_PAGE + 1)
    except (OSError, ValueError):
        raise _missing_report() from None
    if len(body) > MAX_PAGE:
        raise _missing_report()
    return Response(200, body, "text/html; charset=utf-8", _HEADERS)


def _check_reading(call: Call) -> None:
    if not RegistryReading.of(call.grants).every:
        raise Problem(403, "the report names all services: this user may not find all of them", Reason.FORBIDDEN)


def _missing_report() -> Problem:
    return Problem(404, "there is no such report beside the plan", Reason.UNKNOWN_TARGET)
