"""Checks of the section of health checks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_network

from broker.config.checks import networks
from broker.config.problem import Problem, in_range, in_ranges
from broker.config.section import Resolves
from broker.config.values import CheckRule, Checks

MAX_RULES = 100
"""Rules: each registration goes through them in order."""

CHECKED_WIRES = ("elko", "director", "dbp", "mtl", "http")
"""The wires on which services or servers register."""

PINGED_WIRES = ("elko", "director", "dbp")
"""The wires with a ping. On the others, silent peers are ended by the wire itself."""

RULE_RANGES: dict[str, tuple[float, float]] = {
    # Shorter intervals would cost more than the service itself; a day is as good as never.
    "interval": (1, 86_400),
    "timeout": (0.1, 600),
    "up": (1, 100),
    "down": (1, 100),
}
"""The least and the most of each number of a rule."""

RANGES: dict[str, tuple[float, float]] = {
    "concurrency": (1, 1_000),
    "panic": (0, 1),
    "silent_share": (0, 1),
    # Less than two leases leave no time to verify; a hundred of the longest are months.
    "silent_ttls": (2, 100),
}
"""The least and the most of each number of the section."""

_PATH = re.compile(r"/[!-~]{0,1000}")


def checks_problems(checks: Checks) -> Iterator[Problem]:
    """Yield the problems of the section."""
    yield from in_ranges("checks", checks, RANGES)
    if len(checks.rules) > MAX_RULES:
        yield Problem("checks.rules", f"has more than {MAX_RULES} rules")
    yield from networks("checks.networks", checks.networks)
    for index, rule in enumerate(checks.rules):
        yield from _rule(f"checks.rules[{index}]", rule)


def _rule(here: str, rule: CheckRule) -> Iterator[Problem]:
    if not rule.services:
        yield Problem(f"{here}.services", 'is for no service; "*" is every one')
    for number, pattern in enumerate(rule.services):
        if not pattern:
            yield Problem(f"{here}.services[{number}]", 'is empty; "*" is every name')
    known = PINGED_WIRES if rule.kind == "ping" else CHECKED_WIRES
    for number, wire in enumerate(rule.wires):
        if wire not in known:
            what = "no wire with a ping" if wire in CHECKED_WIRES else "no wire with services"
            yield Problem(f"{here}.wires[{number}]", f'"{wire[:40]}" is {what}: {", ".join(known)}')
    outside = list(in_ranges(here, rule, RULE_RANGES))
    yield from outside
    if not outside and rule.timeout > rule.interval:
        text = f"{rule.timeout:.15g} is longer than interval, {rule.interval:.15g}"
        yield Problem(f"{here}.timeout", text, f"{here}.interval")
    if not _PATH.fullmatch(rule.path):
        yield Problem(f"{here}.path", "must begin with / and have up to 1000 more visible ASCII characters")
    if len(rule.statuses) != 2:
        yield Problem(f"{here}.statuses", "must be two numbers, the least and the greatest status")
    else:
        least, most = rule.statuses
        yield from in_range(f"{here}.statuses[0]", least, 100, 599)
        yield from in_range(f"{here}.statuses[1]", most, least, 599)


def checks_summary(checks: Checks) -> Iterator[str]:
    """Yield the lines of ``--check``: none for the default, which every broker has."""
    if checks == Checks():
        return
    if not checks.enabled or not checks.rules:
        yield "checks: off"
        return
    shown = (
        f"{rule.kind} of {', '.join(rule.services)} every {rule.interval:g} s ({rule.policy})" for rule in checks.rules
    )
    yield f"checks: {'; '.join(shown)}"


def checks_warnings(checks: Checks, resolves: Resolves) -> Iterator[str]:
    """Yield what may surprise."""
    for index, text in enumerate(checks.networks):
        network = ip_network(text)
        if network.is_link_local or network.is_multicast:
            yield f"checks.networks[{index}]: {text} is never connected to: link-local and multicast are refused"
    for_all: str | None = None
    for index, rule in enumerate(checks.rules if checks.enabled else ()):
        here = f"checks.rules[{index}]"
        if for_all is not None:
            yield f"{here}: never counts, since {for_all} is for every service"
        elif (
            rule.kind != "ping"
            and not rule.wires
            and not rule.protocols
            and not all(pattern.strip("*") for pattern in rule.services)
        ):
            for_all = here
