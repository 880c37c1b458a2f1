"""Data flows as providers of the registry. A flow is a provider from its first offer or report until it ends.

Rules:
- An offer is a descriptor with a hostport, whose name is that of the resource.
- A flow offers each name once: a further offer replaces the former one, and amends it if it differs as
  `IRegistry.amend` permits; an equal one changes nothing. A refused offer leaves the former one in place.
- A descriptor must not have a password: the registry would have to hide it from readers of MTL, but not from peers that
  ask by Elko.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import msgspec

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IRegistry
from broker.core.model import LoadDetails, Rights, Service, checked_load, is_amended, load_details
from broker.net.peer_interfaces import Part
from broker.wires.common.descriptors import offered, read_offer
from broker.wires.mtl.sessions.profile_interface import ProfileReader, ProfileWriter, payer_of

WIRE = "mtl"
"""Wire of the providers in the registry, and the label of a provider without label and user."""

MAX_BODY = 65_536
"""Bytes of a descriptor, or of a report of a load: the texts of a descriptor may have a thousand characters each."""


class LoadBody(msgspec.Struct, frozen=True):
    """Report of the load of a provider, with optional details."""

    load: float
    requests: Any = None
    errors: Any = None
    in_flight: Any = None
    latency_ms: Any = None


_read_load = msgspec.json.Decoder(LoadBody).decode

T = TypeVar("T")


class FlowProvider:
    """A flow in the registry. It joins with its first offer or report.

    ``rights`` are those of its user. The name of the user is the label if the first descriptor has none.
    """

    def __init__(self, registry: IRegistry, rights: Rights, flow: ProfileReader | ProfileWriter) -> None:
        self._registry = registry
        self._rights = rights
        self._flow = flow
        self.id: int | None = None

    def offer(self, service: Service) -> None:
        """Offer a service in place of the one of the same name. Raises `Refusal`; nothing has changed then."""
        # Before the former service is withdrawn.
        self._registry.check(attrs.evolve(service, provider=self.id or 0), self._rights, self.id)
        service = attrs.evolve(service, provider=self._joined(service.label))
        # As the registry has it: an operator may have withdrawn it.
        present = self._registry.services_of(service.provider)
        if any(each.name == service.name and is_amended(each, service) for each in present):
            self._registry.amend(service)
            return
        self.withdraw(service.name)
        self._registry.offer([service], self._rights)

    def withdraw(self, name: str) -> None:
        """Withdraw the service of that name. No-op if there is none."""
        if self.id is not None:
            self._registry.withdraw(self.id, (name,))

    def load(self, load: float, details: LoadDetails | None = None) -> None:
        """Report the load. Raises `Refusal` for an invalid one."""
        self._registry.load(self._joined(None), load, details)

    def heartbeat(self) -> None:
        """Record a heartbeat. No-op for a flow that is not in the registry yet."""
        if self.id is not None:
            self._registry.beat(self.id)

    def leave(self) -> None:
        """Leave the registry, when the flow ends."""
        if self.id is not None:
            self._registry.leave(self.id)

    def _joined(self, label: str | None) -> int:
        if self.id is None:
            flow = self._flow
            label = label or flow.grant.principal.user or WIRE
            self.id = self._registry.join(label, WIRE, flow.address, payer=payer_of(flow))
        return self.id


def read_service(body: Part, name: str) -> Service:
    """Return the service of that name that a body describes, without provider. Raises `Refusal`."""
    service = offered(_decoded(read_offer, body, "the body is no descriptor of a service"), 0)
    if service is None or service.name != name:
        raise Refusal(Reason.PARAMETER, "the descriptor has no hostport, or is of another service")
    if service.auth is not None and service.auth.code is not None:
        raise Refusal(Reason.PARAMETER, "the descriptor has a password, which no reader may see")
    return service


def read_load(body: Part) -> tuple[float, LoadDetails | None]:
    """Return the load that a body reports, and the details. Raises `Refusal`."""
    report = _decoded(_read_load, body, 'a load is reported by {"load": NUMBER}')
    return checked_load(report.load), load_details(report.requests, report.errors, report.in_flight, report.latency_ms)


def _decoded(read: Callable[[bytes], T], body: Part, wrong: str) -> T:
    if len(body) > MAX_BODY:
        raise Refusal(Reason.PARAMETER, f"the body has more than {MAX_BODY} bytes")
    try:
        return read(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Refusal(Reason.PARAMETER, wrong) from None
