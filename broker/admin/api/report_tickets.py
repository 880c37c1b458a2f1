"""Tickets for the report of the capacity jobs: how a browser opens it whose user is known by a token.

A browser follows a link without the token of the page, and a page of the report follows its own links so, too. So the
page asks for a *ticket* with the token of its user: a random segment of a path under which the report is served for
`LIFETIME`.

Rules:
- A ticket serves the report and nothing else, to the address that it was given to, as long as its user may view the
  state of the daemon and find all services.
- It is no cookie: no other site has it, and no request carries it by itself. The report has no script and sends no
  Referer, so that it cannot pass the path on.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict

import attrs
from twisted.internet.interfaces import IReactorTime

from broker.access.identity import same_host
from broker.access.principal import Access, Principal
from broker.access.registry_reading import RegistryReading
from broker.core.errors import Reason
from broker.web.problem import Problem

LIFETIME = 900.0
"""Seconds for which a ticket is good: the time to read the report, and to follow its links."""

MOST = 1_000
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
        while self._given and (len(self._given) >= MOST or next(iter(self._given.values())).end <= now):
            self._given.popitem(last=False)
        ticket = secrets.token_urlsafe(RANDOM)
        self._given[ticket] = _Ticket(principal, now + LIFETIME)
        return ticket

    def check(self, ticket: str, address: str) -> None:
        """Raise `Problem` 404 unless the ticket permits a peer at that address to read the report now."""
        found = self._given.get(ticket)
        if found is None or found.end <= self._clock.seconds() or not same_host(found.principal.address, address):
            raise _unknown()
        principal = found.principal
        grants = self._access.grants(principal, self._listener)
        may = grants.may(OPERATION) and RegistryReading.of(grants).every
        if not may or not self._access.stands(principal):
            del self._given[ticket]
            raise _unknown()


def _unknown() -> Problem:
    return Problem(404, "this link has ended: open the report from the page again", Reason.UNKNOWN_TARGET)
