"""Services that are registered at other brokers of the cluster.

Rules:
- A heartbeat or a DISCONNECT of a service that another broker holds is forwarded to it, if it comes from the address of
  the service, as that broker knows it. It is handled there like one that arrived there, by the same rules. Only named
  ones are forwarded: without a name, the source identifies a service at its own broker only.
- Forwarded messages may be lost, like the datagrams that they mostly are; and those of one service are limited, so that
  a flood at one broker is none at another.
- A service that registers here while another broker holds it has *moved*: that broker gives it up, without a DISCONNECT
  or further probes, as soon as its own registry shows the new one, or after `MOVE_SECONDS`. A service under contract
  moves from its own address only, as it may be replaced at one broker.
- The holder that missed the notice gives a service up when its heartbeats stop and another broker has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from broker.access.identity import same_host
from broker.core.cluster.cluster_interfaces import ILinks
from broker.core.errors import Malformed, Reason, Refusal
from broker.core.interfaces import IRegistry, IWait
from broker.core.model import Change, Kind, Service
from broker.core.rates import Rates
from broker.net.peer_interfaces import RefusalLog
from broker.wires.dbp.codec import dbp_datagrams
from broker.wires.dbp.codec.dbp_messages import Form
from broker.wires.dbp.sessions.service_state import ServiceEntry, Source

if TYPE_CHECKING:
    from broker.wires.dbp.sessions.catalogue import Catalogue

WIRE = "dbp"

BEATS = "dbp.beats"
"""The channel of forwarded heartbeats and DISCONNECTs: lossy."""

MOVES = "dbp.moves"
"""The channel of services that have moved."""

RATE, BURST = 10.0, 20
"""Messages a second of one service that are forwarded, and their burst: twice the rate of the shortest interval."""


@attrs.frozen
class Held:
    """A service at another broker: the id of its provider, its address, and True if it is under contract."""

    broker: str
    provider: int
    address: str
    contract: bool


class RemoteServices:
    """The other brokers' services, for the `Catalogue` of this one. ``rates`` limits forwarded messages."""

    def __init__(
        self, registry: IRegistry, links: ILinks, catalogue: Catalogue, refusal_log: RefusalLog, rates: Rates[int]
    ) -> None:
        self._registry = registry
        self._links = links
        self._catalogue = catalogue
        self._refusal_log = refusal_log
        self._rates = rates
        self._watch: IWait = registry.watch(self._changed, (Kind.OFFERED,))
        links.serve(BEATS, _Channel(self), lossy=True)
        links.serve(MOVES, _Channel(self))

    def close(self) -> None:
        """End the watch of the registry."""
        self._watch.cancel()

    def held(self, name: str) -> Held | None:
        """Return the newest service of that name that another broker holds, or None."""
        found: Held | None = None
        for service in self._registry.services(name, "tcp"):
            held = self._held(service)
            if held is not None and (found is None or held.provider > found.provider):
                found = held
        return found

    def _held(self, service: Service) -> Held | None:
        provider = self._registry.provider(service.provider)
        if provider is None or provider.wire != WIRE or not provider.broker:
            return None
        return Held(provider.broker, provider.id, provider.address, service.interval is not None)

    # Outgoing

    def beat(self, name: str | None, source: Source, form: Form, sent: float | None) -> bool:
        """Forward a heartbeat. Returns False if no other broker has that service.

        Raises `Refusal` WRONG_ADDRESS if it is not from the address of the service.
        """
        return name is not None and self._forward(
            name, source[0], dbp_datagrams.ForwardedBeat(name, *source, form.name, sent)
        )

    def bye(self, name: str | None, source: Source) -> bool:
        """Forward a DISCONNECT in the same way."""
        return name is not None and self._forward(name, source[0], dbp_datagrams.ForwardedBye(name, *source))

    def check_move(self, name: str, address: str) -> Held | None:
        """Return the service of that name at another broker, which this registration replaces.

        Raises `Refusal` NAME_TAKEN if the name belongs to a service at another address.
        """
        held = self.held(name)
        if held is not None and held.contract and not same_host(held.address, address):
            raise Refusal(Reason.NAME_TAKEN, f"the name {name} is in use by a service at another address")
        return held

    def moved(self, held: Held, name: str, address: str) -> None:
        """Notify the broker that held a service, which is registered here now."""
        self._links.send(held.broker, MOVES, dbp_datagrams.encode(dbp_datagrams.Moved(name, address, 0)))

    def _forward(self, name: str, address: str, message: dbp_datagrams.Message) -> bool:
        held = self.held(name)
        if held is None:
            return False
        if self._catalogue.dbp.check_address and not same_host(held.address, address):
            raise Refusal(Reason.WRONG_ADDRESS, f"a message of {name}, which was registered from another address")
        if not self._rates.take(held.provider, RATE, BURST):
            self._refusal_log.count("dbp_forwarded", "limited")
        elif self._links.send(held.broker, BEATS, dbp_datagrams.encode(message)):
            self._refusal_log.count("dbp_forwarded", "sent")
        else:
            self._refusal_log.count("dbp_forwarded", "unsent")
        return True

    # Incoming

    def receive(self, broker: str, frames: Sequence[bytes]) -> None:
        """Process a message of another broker."""
        try:
            message = dbp_datagrams.decode(frames)
        except Malformed as malformed:
            self._refusal_log.add(WIRE, broker, malformed)
            return
        catalogue = self._catalogue
        entry = catalogue.get(message.name)
        if entry is None:
            self._refusal_log.count("dbp_forwarded", "unknown")
        elif not self._accepts(entry, message):
            text = f"a message of {entry.name}, which was registered from another address"
            self._refusal_log.add(WIRE, message.host, Refusal(Reason.WRONG_ADDRESS, text))
        elif isinstance(message, dbp_datagrams.ForwardedBeat):
            form = Form.__members__.get(message.form, Form.TEXT)
            source = (message.host, message.port) if 0 < message.port < 65_536 else None
            catalogue.beat(entry, source, form, message.sent)
            self._refusal_log.count("dbp_forwarded", "received")
        elif isinstance(message, dbp_datagrams.ForwardedBye):
            catalogue.disconnect(entry)
            self._refusal_log.count("dbp_forwarded", "received")
        else:
            catalogue.give_up(entry)

    def _accepts(self, entry: ServiceEntry, message: dbp_datagrams.Message) -> bool:
        if isinstance(message, dbp_datagrams.Moved):
            # The rule by which a registration replaces another one at one broker.
            return not entry.contract or same_host(entry.address, message.host)
        return self._catalogue.trusts(entry, message.host)

    def _changed(self, change: Change) -> None:
        service = change.subject
        assert isinstance(service, Service)
        entry = self._catalogue.get(service.name)
        if entry is not None and service.provider != entry.provider and self._held(service) is not None:
            self._catalogue.found_elsewhere(entry)


class _Channel:
    """The `broker.core.cluster.cluster_interfaces.LinkReceiver` of both channels."""

    def __init__(self, elsewhere: RemoteServices) -> None:
        self._elsewhere = elsewhere

    def up(self, broker: str) -> None:
        """Do nothing: no state is replicated."""

    def down(self, broker: str) -> None:
        """Do nothing."""

    def receive(self, broker: str, frames: Sequence[bytes]) -> None:
        """Process a message."""
        self._elsewhere.receive(broker, frames)
