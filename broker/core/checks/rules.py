"""Rules of health checks: which services are checked, by what, how often, and what follows from a failure."""

from __future__ import annotations

import enum
from collections.abc import Callable
from fnmatch import fnmatchcase

import attrs

from broker.core.model import Policy


class CheckKind(enum.StrEnum):
    """Kind of a check: the ping of the service's own wire, a TCP connection, or an HTTP request."""

    PING = "ping"
    TCP = "tcp"
    HTTP = "http"


ALL = "*"
"""The pattern of every name: that of the default rule."""


@attrs.frozen(cache_hash=True)
class CheckRule:
    """Rule for the services whose name matches one of the shell patterns ``services``.

    ``wires`` and ``protocols`` restrict it to services of these; empty ones do not. A check is made every ``interval``
    seconds, with a random deviation, and fails without an answer in ``timeout`` seconds. A service is failing after
    ``down`` failures in a row, and passing again after ``up`` successes in a row; ``policy`` is its place in finds
    while it is failing. ``path`` and ``statuses`` (least and most) belong to HTTP requests.
    """

    services: tuple[str, ...]
    kind: CheckKind
    wires: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    interval: float = 30.0
    timeout: float = 5.0
    up: int = 2
    down: int = 3
    policy: Policy = Policy.LAST
    path: str = "/"
    statuses: tuple[int, int] = (200, 399)

    def matches(self, name: str, protocol: str, wire: str) -> bool:
        """Return True if the rule is for a service of that name and protocol, registered on that wire."""
        return (
            (not self.wires or wire in self.wires)
            and (not self.protocols or protocol in self.protocols)
            and (ALL in self.services or any(fnmatchcase(name, pattern) for pattern in self.services))
        )


@attrs.frozen
class CheckSettings:
    """All rules, in their order: the first one that matches a service counts.

    ``concurrency`` is the number of connections for checks at one time; ``panic`` as in
    `broker.core.service_group`.
    """

    rules: tuple[CheckRule, ...] = ()
    concurrency: int = 50
    panic: float = 0.5

    def rule_for(self, name: str, protocol: str, wire: str, pings: Callable[[str], bool]) -> CheckRule | None:
        """Return the rule of a service, None if it is not checked. ``pings`` tells if a wire has a ping: rules for
        pings do not count on others."""
        for rule in self.rules:
            if rule.matches(name, protocol, wire) and (rule.kind is not CheckKind.PING or pings(wire)):
                return rule
        return None
