"""Records, before they have numbers: when, by which template, and the value that each has."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.spark.generator.broker_lives import ALIVE, SECOND, Boot, Floats, Ints
from tests.spark.generator.farm import Service


class Requests(NamedTuple):
    """Requests of a report: their number and that of those being handled, for each unit of its load, and the part of
    them that fails."""

    number: float
    failed: float
    in_flight: float


NO_REQUESTS = Requests(0.0, 0.0, 0.0)


class Stream:
    """The records of the run as arrays.

    A template is the text of a line in which only time, number, value and the provider's clock are open.
    """

    def __init__(self, broker: str, boots: Sequence[Boot]) -> None:
        self.broker = broker
        self.boots = boots
        self.templates: list[str] = []
        self.requests: dict[int, Requests] = {}
        """By template, where reports have requests."""
        self.unreadable: dict[int, str] = {}
        """Templates of lines that no reader can take, and why."""
        self.unknown = -1
        """The template with a member that readers do not know."""
        self._parts: list[tuple[Ints, int, Floats | Ints | None]] = []
        self._one_by_one: list[tuple[int, int]] = []

    def template(
        self, event: str, members: dict[str, Any], value: str = "", requests: str = "", version: int = 1
    ) -> int:
        """``value`` is a part of the line with one place for the value and one for the provider's clock, ``requests``
        one with places for the numbers of requests, of failed ones, and of those being handled."""
        middle = "".join(f",{json.dumps(key)}:{_text(member)}" for key, member in members.items() if member is not None)
        start = f'{{"v":{version},"ts":%d,"broker":{_text(self.broker)},"boot":"BOOT","seq":%d,"event":"{event}"'
        self.templates.append(start + middle + (value or "%.0s%.0s") + (requests or "%.0s%.0s%.0s") + "}\n")
        return len(self.templates) - 1

    def add(self, at: int, template: int) -> None:
        self._one_by_one.append((at, template))

    def extend(self, at: Ints, template: int, values: Floats | Ints | None = None) -> None:
        if len(at):
            self._parts.append((at, template, values))

    def sorted(self) -> tuple[Ints, Ints, Floats]:
        """Times, templates and values in the order of time."""
        singles = np.array(self._one_by_one, dtype=np.int64).reshape(-1, 2)
        at = np.concatenate([singles[:, 0], *(part[0] for part in self._parts)])
        template = np.concatenate([singles[:, 1], *(np.full(len(part[0]), part[1]) for part in self._parts)])
        value = np.concatenate(
            [np.zeros(len(singles)), *(np.zeros(len(a)) if v is None else v for a, _, v in self._parts)]
        )
        self._parts.clear()
        order = np.argsort(at, kind="stable")
        return at[order], template[order], value[order]


def _text(member: Any) -> str:
    """JSON, in which a percent sign does not look like a place of the template."""
    return json.dumps(member, ensure_ascii=False).replace("%", "%%")


def add_alive(stream: Stream, boots: Sequence[Boot]) -> None:
    """Let the broker say that it is there."""
    life = {"wire": "elkobroker"}
    plain = stream.template("alive", life)
    first = stream.template("alive", life | {"why": "start"})
    last = stream.template("alive", life | {"why": "stop"})
    for boot in boots:
        stream.add(boot.start, first)
        stream.extend(np.arange(boot.start + ALIVE * SECOND, boot.end, ALIVE * SECOND, dtype=np.int64), plain)
        if boot.how == "stopped":
            stream.add(boot.end - 1, last)


def members_of(service: Service, instance: str, ident: int) -> dict[str, Any]:
    """Return the members of all records of a registration."""
    return {
        "wire": service.wire,
        "service": service.name,
        "provider": ident,
        "label": instance if service.labelled else None,
        "endpoint": None if service.labelled else instance,
        "protocol": "tcp",
    }


def agreed(service: Service) -> dict[str, Any]:
    """Return the members of records that have the agreed interval."""
    return {} if service.interval is None else {"interval_ms": round(service.interval * 1000)}


def load_template(stream: Stream, service: Service, instance: str, ident: int) -> int:
    """The template of a provider's reports of its load."""
    end = "" if service.full_load is None else f',"full_load":{service.full_load!r}'
    members = members_of(service, instance, ident)
    if service.service_s is None or service.full_load is None:
        return stream.template("load", members, ',"load":%.2f%.0s' + end)
    told = f',"requests":%d,"errors":%d,"in_flight":%d,"latency_ms":{service.service_s * 1000!r}'
    made = stream.template("load", members, ',"load":%.2f%.0s' + end, told, version=2)
    in_flight = 1 / service.full_load
    stream.requests[made] = Requests(service.report / service.service_s * in_flight, service.failed, in_flight)
    return made
