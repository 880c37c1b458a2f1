"""What flows of MTL put into the registry: a flow is a provider, from its first word on until it ends.

Rules:
- What is offered is a descriptor of the very name that the resource says, with a hostport.
- A flow offers a name once: a second offer takes the place of the first, and one that says the same changes nothing.
  One that is refused leaves the first where it was.
- There may be no password in a descriptor: the registry would have to keep it from readers, but not from who asks by
  Elko.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import attrs
import msgspec

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IRegistry
from broker.core.model import Rights, Service, checked_load
from broker.net.interfaces.router import Part
from broker.wires.common.descriptors import offered, read_offer

WIRE = "mtl"
"""How the registry calls where providers come from, and the label of one that says none and has no name."""

MAX_BODY = 65_536
"""Bytes of a descriptor, or of a report of a load: the texts of a descriptor may have a thousand characters each."""


class LoadBody(msgspec.Struct, frozen=True):
    """How much a provider has to do."""

    load: float


_read_load = msgspec.json.Decoder(LoadBody).decode

T = TypeVar("T")


class FlowProvider:
    """What a flow is in the registry: nothing until it offers something or reports a load.

    ``rights`` are its user's. ``label`` is the provider's where its first descriptor has none, ``address`` where it
    comes from.
    """

    def __init__(self, registry: IRegistry, rights: Rights, label: str, address: str) -> None:
        self._registry = registry
        self._rights = rights
        self._label = label
        self._address = address
        self._services: dict[str, Service] = {}
        """By name."""
        self.id: int | None = None

    def offer(self, service: Service) -> None:
        """Offer a service, in the place of one of the same name. Raises `Refusal`, and then nothing has changed."""
        self._registry.check(service, self._rights)  # now: later the one before it would have been withdrawn
        service = attrs.evolve(service, provider=self._joined(service.label))
        if self._services.get(service.name) == service:
            return
        self.withdraw(service.name)
        self._registry.offer([service], self._rights)
        self._services[service.name] = service

    def withdraw(self, name: str) -> None:
        """Offer that no longer. Harmless if it is not offered."""
        if self.id is not None and self._services.pop(name, None) is not None:
            self._registry.withdraw(self.id, (name,))

    def load(self, load: float) -> None:
        """Report the load. Raises `Refusal` for one that is none."""
        self._registry.load(self._joined(None), load)

    def heartbeat(self) -> None:
        """Record a heartbeat. No-op for a flow that is not in the registry yet."""
        if self.id is not None:
            self._registry.beat(self.id)

    def leave(self) -> None:
        """The flow is over."""
        if self.id is not None:
            self._registry.leave(self.id)

    def _joined(self, label: str | None) -> int:
        if self.id is None:
            self.id = self._registry.join(label or self._label or WIRE, WIRE, self._address)
        return self.id


def read_service(body: Part, name: str) -> Service:
    """The service of that name that a body describes, as nobody's yet. Raises `Refusal`."""
    service = offered(_decoded(read_offer, body, "the body is no descriptor of a service"), 0)
    if service is None or service.name != name:
        raise Refusal(Reason.PARAMETER, "the descriptor has no hostport, or is of another service")
    if service.auth is not None and service.auth.code is not None:
        raise Refusal(Reason.PARAMETER, "the descriptor has a password, which no reader may see")
    return service


def read_load(body: Part) -> float:
    """The load that a body reports. Raises `Refusal`."""
    return checked_load(_decoded(_read_load, body, 'a load is reported by {"load": NUMBER}').load)


def _decoded(read: Callable[[bytes], T], body: Part, wrong: str) -> T:
    if len(body) > MAX_BODY:
        raise Refusal(Reason.PARAMETER, f"the body has more than {MAX_BODY} bytes")
    try:
        return read(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Refusal(Reason.PARAMETER, wrong) from None
