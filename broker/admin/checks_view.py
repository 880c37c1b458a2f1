"""The view of health checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from twisted.internet.interfaces import IReactorTime

from broker.core.checks.check_rules import TargetInfo
from broker.wires.views import AnyView, Column, Row, View

CHECK_COLUMNS = (
    Column("kind", "Kind of the check: ping, tcp or http"),
    Column("subjects", "Names of the checked services, the first three, or the label of a Context Server"),
    Column("services", "Services, or Context Servers, that the check decides about", "services"),
    Column("wire", "Wire of a ping"),
    Column("peer", "Number of the pinged peer on that wire: the id of a provider, or of a connection of the director"),
    Column("hostport", "Address of a connection or request"),
    Column("state", "untested, passing, doubtful or failing"),
    Column("reason", "Reason of the state: the outcome that led to it"),
    Column("since", "Time since the state began", "seconds"),
    Column("streak", "Outcomes in a row that contradict the state", "checks"),
    Column("interval", "Time between two checks", "seconds"),
    Column("policy", "Place of failing services in finds: show, last or hide"),
)


def checks_view(targets: Callable[[], Iterable[TargetInfo]], clock: IReactorTime) -> AnyView:
    """Return the view of all health checks."""
    return View(
        "broker checks",
        "Shows the health checks, the oldest first. A pattern selects services, addresses, states or wires.",
        CHECK_COLUMNS,
        targets,
        partial(_target, clock),
        lambda info: (*info.subjects, info.question.hostport, info.check.state.value, info.question.wire),
        shown=lambda reading, info: all(map(reading.shows, info.subjects)),
    )


def _target(clock: IReactorTime, info: TargetInfo) -> Row:
    question = info.question
    row: dict[str, object] = {"kind": question.rule.kind.value, "subjects": list(info.subjects), "services": info.count}
    if question.wire:
        row |= {"wire": question.wire, "peer": question.number}
    else:
        row["hostport"] = question.hostport
    return row | {
        "state": info.check.state.value,
        "reason": info.check.reason,
        "since": round(clock.seconds() - info.check.since, 1),
        "streak": info.streak,
        "interval": question.rule.interval,
        "policy": info.policy.value,
    }
