"""The zone of the registry: a pure function from a question to a response.

With the domain ``elkobroker.`` these names exist:

    elkobroker.                          SOA, NS
    ns.elkobroker.                       A or AAAA: the address that the broker is bound to, if that is one address
    NAME.service.elkobroker.             SRV, A, AAAA, TXT of the services of that name, in every protocol
    _NAME._PROTOCOL.service.elkobroker.  the same of one protocol
    _NAME._LABEL.service.elkobroker.     the same of the services with that label, if no protocol is called so
    HEX.addr.elkobroker.                 A or AAAA: the address whose bytes those hexadecimal digits are

Rules:
- A name that does not exist is NXDOMAIN, a type that a name has not is NODATA, both with the SOA (RFC 2308). A name
  with others below it exists, without records.
- A name outside of the domain, a zone transfer and a class other than IN are REFUSED. All types (ANY) is HINFO
  (RFC 8482).
- Services with a secret are not answered: DNS cannot transmit it.
- A response has at most `MAX_PLACES` places, in a window of all places that begins anywhere: programs take the first
  address that they get, and so choose different ones.
- Services with a failing health check come after all others, with the priority `FAILING`, or are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

from broker.core.interfaces import IRegistry
from broker.core.model import Policy, Service
from broker.wires.dns.codec import records
from broker.wires.dns.codec.hosts import Labels
from broker.wires.dns.codec.names import dotted, fold
from broker.wires.dns.codec.query import IN, Question
from broker.wires.dns.codec.records import MAX_STRING, Address, Data, HInfo, Ns, Record, Soa, Srv, Txt
from broker.wires.dns.codec.response import NXDOMAIN, REFUSED, Response
from broker.wires.dns.dns_settings import Dns
from broker.wires.dns.zone.hostports import HostPort, labelled_address, place
from broker.wires.dns.zone.names import ServiceNames
from broker.wires.dns.zone.weights import weights

MAX_PLACES = 24
"""Places of one response: no client tries more. So many IPv4 addresses fit into the 512 bytes of a client without EDNS,
so many SRV records into `MAX_PAYLOAD`, and so the connection that TC asks for is rare. Encoding takes about 1 ms."""

REFRESH, RETRY, EXPIRE = 3_600, 600, 86_400
"""Seconds for secondary name servers, of which there are none: nothing can be transferred."""

FAILING = 1
"""Priority of the SRV record of a service with a failing health check: clients try it after those with priority 0."""

SERVICE, ADDRESS, SERVER = b"service", b"addr", b"ns"
"""The labels below the domain."""


@attrs.frozen(eq=False)
class Zone:
    """The zone over a registry, whose names are ``names``. Services are answered if ``may`` permits their names."""

    registry: IRegistry
    names: ServiceNames
    may: Callable[[str], bool] | None = None

    def answer(self, dns: Dns, question: Question, serial: int, begin: Callable[[int], int]) -> Response:
        """Return the response to a question.

        ``serial`` is the zone's number; ``begin(n)`` returns which of n places comes first.
        """
        labels, domain = fold(question.labels), dns.labels
        below = labels[: len(labels) - len(domain)]
        if question.cls != IN or labels[len(below) :] != domain or question.type in (records.AXFR, records.IXFR):
            return Response(REFUSED)
        owner = _Owner(dns, dotted(labels), question.type, serial)
        match below:
            case ():
                return owner.respond([_ns(domain), _soa(dns, serial)])
            case (b"ns",):
                return owner.respond([] if dns.server is None else [Address(dns.server)])
            case (b"addr",) | (b"service",):
                return owner.respond([])
            case (label, b"addr"):
                ip = labelled_address(label)
                return owner.missing() if ip is None else owner.respond([Address(ip)])
            case (*name, b"service"):
                return self._service(tuple(name), owner, begin)
        return owner.missing()

    def _service(self, labels: Labels, owner: _Owner, begin: Callable[[int], int]) -> Response:
        if labels[-1].startswith(b"_"):
            tag = labels[-1][1:]
            labels = labels[:-1]
            if not labels:
                return owner.respond([])  # below ``_tcp`` there are names
            name = dotted(labels)
            services = self._tagged(name[1:], tag) if name.startswith(b"_") else []
        else:
            name = dotted(labels)
            services = self._permitted(name)
        if not services:
            return owner.respond([]) if self.names.is_parent(name) else owner.missing()
        first = begin(len(services))
        services = list(self.registry.by_check(services[first:] + services[:first]))[:MAX_PLACES]
        return owner.respond(*self._records(services, owner))

    def _tagged(self, name: bytes, tag: bytes) -> list[Service]:
        """Return the services of a protocol, or else those with a label. A service without a label of its own has that
        of its provider."""
        services = self._permitted(name)
        matching = [service for service in services if _folded(service.protocol) == tag]
        return matching or [service for service in services if _folded(self._label(service)) == tag]

    def _permitted(self, name: bytes) -> list[Service]:
        services = self.names.services(name)
        return services if self.may is None else [service for service in services if self.may(service.name)]

    def _label(self, service: Service) -> str:
        if service.label is not None:
            return service.label
        known = self.registry.wire_and_label(service.provider)
        return "" if known is None else known[1]

    def _records(self, services: Sequence[Service], owner: _Owner) -> tuple[list[Data], list[Record]]:
        """Return the data of the asked type (of one other if that has none), and the additional records."""
        if owner.type == records.TXT:
            return [Txt(strings(service)) for service in services], []
        found = [(service, where) for service in services if (where := place(service.hostport)) is not None]
        if owner.type == records.SRV:
            return self._srv([(service, where) for service, where in found if where.port is not None], owner)
        addresses: list[Data] = [Address(where.host) for _, where in found if not isinstance(where.host, bytes)]
        # A name always has the TXT records of its services, so all types (ANY) are never none.
        return addresses or [Txt(())], []

    def _srv(self, found: Sequence[tuple[Service, HostPort]], owner: _Owner) -> tuple[list[Data], list[Record]]:
        data: dict[tuple[bytes, int], tuple[int, int]] = {}
        additional: dict[bytes, Record] = {}
        below = b"." + dotted((ADDRESS, *owner.dns.labels))
        loads = self._loads([service for service, _ in found])
        for (service, where), weight in zip(found, weights(loads), strict=True):
            target = where.host
            if not isinstance(target, bytes):
                ip, target = target, where.label + below
                if target not in additional:
                    additional[target] = Record(target, owner.dns.ttl, Address(ip))
            assert where.port is not None
            priority = FAILING if self.registry.policy_of(service) is Policy.LAST else 0
            # Records of one set differ (RFC 2181): of several services at one place the best one, which is the least
            # loaded one of those that answer, counts.
            key = (target, where.port)
            data[key] = min((priority, -weight), data.get(key, (FAILING + 1, 0)))
        srv: list[Data] = [Srv(-weight, port, target, priority) for (target, port), (priority, weight) in data.items()]
        return srv, list(additional.values())

    def _loads(self, services: Sequence[Service]) -> list[float | None]:
        """Return the load of each service's provider, None for a restored service."""
        live = {service.provider for service in services if not service.restored}
        loads = {id: known.load for id in live if (known := self.registry.provider(id)) is not None}
        return [None if service.restored else loads.get(service.provider) for service in services]


@attrs.frozen
class _Owner:
    """The asked name, which has records or has none, and the asked type."""

    dns: Dns
    name: bytes
    type: int
    serial: int

    def respond(self, data: Iterable[Data], additional: Sequence[Record] = ()) -> Response:
        """Return the response of a name that exists and has at most these data, of any types."""
        data = list(data)
        if self.type == records.ANY and data:
            data = [HInfo()]
        else:
            data = list(dict.fromkeys(each for each in data if each.type == self.type))
        ttl = self.dns.ttl
        if not data:
            return Response(authoritative=True, authority=[self._soa()])
        return Response(0, True, [Record(self.name, ttl, each) for each in data], (), additional)

    def missing(self) -> Response:
        """Return the response of a name that does not exist."""
        return Response(NXDOMAIN, True, authority=[self._soa()])

    def _soa(self) -> Record:
        return Record(dotted(self.dns.labels), self.dns.ttl, _soa(self.dns, self.serial))


def strings(service: Service) -> tuple[bytes, ...]:
    """Return the strings of a service in TXT: the name with its case, protocol, hostport, provider, label. A value that
    does not fit into a string is left out."""
    about = {
        "name": service.name,
        "protocol": service.protocol,
        "hostport": service.hostport,
        "provider": str(service.provider),
        "label": service.label,
        "restored": "1" if service.restored else None,
    }
    texts = (f"{key}={value}".encode("utf-8", "replace") for key, value in about.items() if value is not None)
    return tuple(text for text in texts if len(text) <= MAX_STRING)


def _folded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass").lower()


def _ns(domain: Labels) -> Ns:
    return Ns(dotted((SERVER, *domain)))


def _soa(dns: Dns, serial: int) -> Soa:
    server, mailbox = dotted((SERVER, *dns.labels)), dotted((b"hostmaster", *dns.labels))
    return Soa(server, mailbox, serial, REFRESH, RETRY, EXPIRE, dns.ttl)
