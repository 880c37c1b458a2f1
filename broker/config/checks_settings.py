"""The section ``[checks]``: keys, checks, and the lines of ``--check``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Literal

import attrs

from broker.config import key_checks
from broker.config.key import REQUIRED, Resolves, Section, Settings, key
from broker.config.key_checks import Problem

CHECKED_WIRES = ("elko", "director", "dbp", "mtl", "http")
"""The wires on which services or servers register."""

PINGED_WIRES = ("elko", "director", "dbp")
"""The wires with a ping. On the others, silent peers are ended by the wire itself."""


_PATH = re.compile(r"/[!-~]{0,1000}")


def _path(here: str, path: str) -> Iterator[Problem]:
    if not _PATH.fullmatch(path):
        yield Problem(here, "must begin with / and have up to 1000 more visible ASCII characters")


def _statuses(here: str, statuses: tuple[int, ...]) -> Iterator[Problem]:
    if len(statuses) != 2:
        yield Problem(here, "must be two numbers, the least and the greatest status")
    else:
        least, most = statuses
        yield from key_checks.in_range(f"{here}[0]", least, 100, 599)
        yield from key_checks.in_range(f"{here}[1]", most, least, 599)


@attrs.frozen
class CheckRule(Settings):
    """A rule. The first one that matches a service applies. Without any, Elko's providers and the director's servers
    are sent a ping every 20 seconds; a section replaces that rule."""

    services: tuple[str, ...] = key(
        REQUIRED,
        'Names of services, as patterns (*, ?, [...]); on the wire "director", labels of Context Servers.',
        check=key_checks.services,
        example=("*",),
    )
    kind: Literal["ping", "tcp", "http"] = key(
        REQUIRED,
        '"ping" is that of the wire itself (elko, director, dbp); "tcp" a connection; "http" a GET request.',
        example="ping",
    )
    wires: tuple[str, ...] = key(
        (),
        "Wires on which the service is registered: elko, director, dbp, mtl, http. By default all of them. A ping "
        "counts on the wires that have one.",
        example=(
            "elko",
            "director",
        ),
    )
    protocols: tuple[str, ...] = key((), "Protocols of the service. By default all.", example=("tcp",))
    # Shorter intervals would cost more than the service itself; a day is as good as never.
    interval: float = key(
        30.0,
        "Time between two checks, with a random deviation of up to a quarter.",
        unit="s",
        within=(1, 86_400),
        example=20.0,
    )
    timeout: float = key(5.0, "Time for the answer, no longer than the interval.", unit="s", within=(0.1, 600))
    up: int = key(
        2,
        "Successes in a row after which a failing service passes.",
        within=(1, 100),
    )
    down: int = key(3, "Failures in a row after which a service fails.", within=(1, 100))
    policy: Literal["show", "last", "hide"] = key(
        "last",
        'Place of a failing service in finds and in the director\'s choice: "show" leaves it where it is, "last" puts'
        ' it behind all others, "hide" leaves it out.',
    )
    path: str = key("/", "Path of an HTTP request.", check=_path)
    statuses: tuple[int, ...] = key(
        (200, 399), "Least and greatest status of an HTTP response that is a success.", check=_statuses
    )

    def problems(self, here: str) -> Iterator[Problem]:
        """Yield wires without services or pings, and a timeout that is longer than the interval."""
        known = PINGED_WIRES if self.kind == "ping" else CHECKED_WIRES
        for number, wire in enumerate(self.wires):
            if wire not in known:
                what = "no wire with a ping" if wire in CHECKED_WIRES else "no wire with services"
                yield Problem(f"{here}.wires[{number}]", f'"{wire[:40]}" is {what}: {", ".join(known)}')
        if self.timeout > self.interval:
            text = f"{self.timeout:.15g} is longer than interval, {self.interval:.15g}"
            yield Problem(f"{here}.timeout", text, f"{here}.interval")


PINGS = CheckRule(services=("*",), kind="ping", wires=("elko", "director"), interval=20.0, up=1)
"""The default rule: servers that hang keep their connection, and Elko servers answer a ping. With the deviation of the
interval, and three timeouts, one that hangs is failing within 41 s."""


@attrs.frozen
class Checks(Settings):
    """Health checks of services. A server that hangs keeps its connection; checks find out that it does not answer.
    docs/checks.md has the details."""

    enabled: bool = key(True, "Enables the checks.", reload=True)
    rules: tuple[CheckRule, ...] = key((PINGS,), check=key_checks.rules, reload=True)
    concurrency: int = key(50, "Connections for checks at one time. Pings need none.", within=(1, 1_000), reload=True)
    panic: float = key(
        0.5,
        "Share of failing services of one name, above which none of them is hidden: they come last instead. With 1.0"
        " even the only service of a name is hidden.",
        within=(0, 1),
        reload=True,
    )
    silent_share: float = key(
        0.2,
        "Share of silent peers among all with a lease (DBP, HTTP, mc0, MTL), above which peers are verified before "
        "they end: they stay doubtful, last in finds, and are checked by connections. 1.0 switches that off.",
        within=(0, 1),
        reload=True,
    )
    # Less than two leases leave no time to verify; a hundred of the longest are months.
    silent_ttls: float = key(5.0, "Leases after which a doubtful peer ends in any case.", within=(2, 100), reload=True)
    networks: tuple[str, ...] = key(
        ("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
        "Networks in which services are checked by connections, DBP services by probes. Peers choose the addresses "
        "of their services. Link-local and multicast addresses and the broker's own listeners are refused in any "
        "case.",
        check=key_checks.networks,
        reload=True,
    )

    def summary(self) -> Iterator[str]:
        """Yield a line; none for the default, which every broker has."""
        if self == Checks():
            return
        if not self.enabled or not self.rules:
            yield "checks: off"
            return
        shown = (
            f"{rule.kind} of {', '.join(rule.services)} every {rule.interval:g} s ({rule.policy})"
            for rule in self.rules
        )
        yield f"checks: {'; '.join(shown)}"

    def warnings(self, resolves: Resolves) -> Iterator[str]:
        """Yield networks that are refused in any case, and rules that never apply."""
        for index, text in enumerate(self.networks):
            network = ip_network(text)
            if network.is_link_local or network.is_multicast:
                yield f"checks.networks[{index}]: {text} is never connected to: link-local and multicast are refused"
        for_all: str | None = None
        for index, rule in enumerate(self.rules if self.enabled else ()):
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


CHECKS = Section("checks", Checks())
"""The section."""
