"""The context in which a test opens a wire: a real core in memory, and no daemon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import maybeDeferred

from broker.access.logins import Logins
from broker.access.principal import NoAudit
from broker.access.rights import AnonymousAccess
from broker.config.checks_settings import Checks
from broker.config.daemon_settings import Broker
from broker.core.checks.check_rules import Outcome, Question
from broker.core.checks.check_schedule import Schedule
from broker.core.cluster.cluster_interfaces import SINGLE
from broker.core.damage import Damages
from broker.core.liveness import Leases
from broker.core.model import Provider, Snapshot
from broker.core.place_table import Pool
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.core.silent_peers import EndAtOnce
from broker.core.topics import Topics
from broker.net.child_processes import Launchers
from broker.net.outgoing_addresses import Outgoing
from broker.net.refusal_log import Counters, RefusalLog
from broker.net.scheduler import Scheduler
from broker.rest.http_endpoint import Routes
from broker.wires.interface import ClusterParts, CoreParts, NetworkParts, WireContext
from broker.wires.tables import AnyView, Row
from broker.wires.tables import page as page_of


class NoChecks:
    """An asker of health checks that makes none."""

    def ask(self, question: Question, answered: Callable[[Outcome], None]) -> None:
        """Make no check."""

    def unreachable(self, question: Question) -> bool:
        """No peer was asked."""
        return False

    def pings(self, wire: str) -> bool:
        """No wire has a ping."""
        return False


def context(clock: Any, known: Sequence[Provider] = (), **given: Any) -> WireContext:
    """A context on ``clock``, a reactor or a clock, whose store has the providers ``known``."""
    ids = count(1)
    leases = Leases(clock)
    parts: dict[str, Any] = {
        "broker": Broker(),
        "state": "",
        "known": Snapshot(1, tuple(known), {}),
        "registry": Registry(clock, lambda: next(ids), Restored([], 0, clock, lambda ids: None)),
        "topics": Topics(),
        "leases": leases,
        "outgoing": Outgoing(Checks().networks, list, lambda kind: None),
        "checks": Schedule(clock, leases, NoChecks(), lambda: 0.5),
        "launchers": Launchers([], {}, lambda *_: None, lambda *_: None),
        "recorder": None,
        "scheduler": Scheduler(clock),
        "refusal_log": RefusalLog(Counters(), clock),
        "clock": clock,
        "in_thread": None,
        "pool": Pool(),
        "control": None,
        "offer_own": lambda: None,
        "forget": lambda title: None,
        "access": AnonymousAccess(),
        "logins": Logins.open(clock.seconds, maybeDeferred),
        "audit": NoAudit(),
        "routes": Routes(),
        "damages": Damages(),
    }
    parts |= {"members": SINGLE, "owners": SINGLE, "links": SINGLE, "silence": EndAtOnce()} | given
    group = lambda *names: {name: parts.pop(name) for name in names}  # noqa: E731
    core = CoreParts(**group("registry", "topics", "leases", "launchers", "recorder", "in_thread", "damages"))
    network = NetworkParts(**group("clock", "pool", "scheduler", "refusal_log"))
    cluster = ClusterParts(**group("members", "owners", "links"))
    checks: Any = SimpleNamespace(schedule=parts.pop("checks"), **group("outgoing", "silence"))
    accounts: Any = SimpleNamespace(**group("access", "logins", "audit"))
    return WireContext(core=core, network=network, cluster=cluster, checks=checks, accounts=accounts, **parts)


def page(views: Sequence[AnyView], name: str, pattern: str = "*", **where: int) -> list[Row]:
    """A page of the view of that name."""
    [view] = [each for each in views if each.name == name]
    rows = page_of(view, pattern, **where)
    assert all(row.keys() <= {column.name for column in view.columns} for row in rows), "each column is documented"
    return rows
