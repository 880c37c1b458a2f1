"""Health checks of the director's Context Servers, which are in no registry.

Rules:
- Each connection of a server is checked by itself; that of the newest one decides, since messages are sent over it.
- The first rule that matches the server's label on the wire ``director`` counts. A ping goes over the connection; a TCP
  or HTTP check goes to the address that the connection reported last.
- A server that reports its load regularly, and misses a report, is checked at once
  (`broker.core.checks.registered_checks`).
- A failing server is placed by the policy of the rule (`broker.core.director.farm`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from broker.access.identity import is_local
from broker.core.checks.check_rules import CheckKind, Question
from broker.core.checks.check_schedule import Schedule, Target
from broker.core.checks.registered_checks import MissedReports
from broker.core.director.director_interfaces import IContextServer
from broker.core.interfaces import ILeases
from broker.core.model import Check, CheckState, Policy
from broker.wires.elko.sessions.director_session import DirectorSession

WIRE = "director"
"""The wire in rules."""

DEFAULT_PROTOCOL = "tcp"
"""The protocol of a server that has reported no address yet."""


class _CheckedLink:
    """One connection of a server as a subject."""

    def __init__(self, number: int, session: DirectorSession, server: IContextServer, label: str, peer: str) -> None:
        self.number = number
        self.session = session
        self.label = label
        self.peer = peer
        self.protocol = DEFAULT_PROTOCOL
        self.hostport = ""
        self.target: Target | None = None
        self._server = server

    def judged(self, check: Check | None, policy: Policy) -> None:
        state = CheckState.UNTESTED if check is None else check.state
        if state is CheckState.DOUBTFUL and policy is not Policy.SHOW:
            self._server.judged(Policy.LAST)
        else:
            self._server.judged(policy if state is CheckState.FAILING else Policy.SHOW)

    def __str__(self) -> str:
        return self.label


class ServerChecks:
    """The checked connections, by session. It is the ping of the wire, too."""

    def __init__(self, schedule: Schedule, leases: ILeases) -> None:
        self._schedule = schedule
        self._reports = MissedReports(leases, self._missed)
        self._numbers = count(1)
        self._links: dict[DirectorSession, _CheckedLink] = {}
        self._by_number: dict[int, _CheckedLink] = {}

    # from sessions

    def begin(self, session: DirectorSession, server: IContextServer, label: str, peer: str) -> None:
        """Check a server over a new connection, whose peer has that address."""
        link = _CheckedLink(next(self._numbers), session, server, label, peer)
        self._links[session] = self._by_number[link.number] = link
        self._settle(link)

    def relabel(self, session: DirectorSession, label: str) -> None:
        """Check a server by the rule for its new label."""
        link = self._links[session]
        link.label = label
        self._settle(link)

    def address(self, session: DirectorSession, protocol: str, hostport: str) -> None:
        """Take an address that a server has reported."""
        link = self._links[session]
        link.protocol, link.hostport = protocol, hostport
        self._settle(link)

    def reported(self, session: DirectorSession) -> None:
        """Process a load report."""
        link = self._links.get(session)
        if link is not None and link.target is not None:
            self._reports.reported(link.number)

    def end(self, session: DirectorSession) -> None:
        """Check a connection no longer, since it has ended. No-op for one that is not checked."""
        link = self._links.pop(session, None)
        if link is not None:
            del self._by_number[link.number]
            self._reports.forget(link.number)
            self._release(link)

    # from the wire

    def refresh(self) -> None:
        """Apply the present rules to all connections."""
        for link in list(self._links.values()):
            self._settle(link)

    def ping(self, peer: int, seconds: float, answered: Callable[[bool | None], object]) -> bool:
        """Ping a connection, by its number here; see `broker.core.checks.check_rules.Pinger`."""
        link = self._by_number.get(peer)
        if link is None:
            return False
        link.session.ping("provider", answered)
        return True

    def unreachable(self, peer: int) -> bool:
        """Return True if the host of a connection acknowledges nothing."""
        link = self._by_number.get(peer)
        return link is not None and link.session.unreachable

    # internals

    def _missed(self, number: int) -> None:
        target = self._by_number[number].target
        if target is not None:
            self._schedule.hasten(target)

    def _settle(self, link: _CheckedLink) -> None:
        question = self._question(link)
        before = None if link.target is None else link.target.question
        if question != before:
            self._release(link)
            if question is not None:
                link.target = self._schedule.supervise(question, link)

    def _release(self, link: _CheckedLink) -> None:
        target, link.target = link.target, None
        if target is not None:
            self._schedule.release(target, link)

    def _question(self, link: _CheckedLink) -> Question | None:
        rule = self._schedule.settings.rule_for(link.label, link.protocol, WIRE, lambda wire: True)
        if rule is None:
            return None
        if rule.kind is CheckKind.PING:
            return Question(rule, WIRE, link.number)
        return Question(rule, hostport=link.hostport, local=is_local(link.peer)) if link.hostport else None
