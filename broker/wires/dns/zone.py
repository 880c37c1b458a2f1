"""The zone of the registry: a pure function from a question to a response.

With the domain ``elkobroker.`` these names exist:

    elkobroker.                          SOA, NS
    ns.elkobroker.                       A or AAAA: the address that the broker is bound to, if that is one address
    NAME.service.elkobroker.             SRV, A, AAAA, TXT of the services of that name, in every protocol
    _NAME._PROTOCOL.service.elkobroker.  the same of one protocol
    _NAME._LABEL.service.elkobroker.     the same of the services with that label, if no protocol is called so
    HEX.addr.elkobroker.                 A or AAAA: the address whose bytes those hexadecimal digits are
    broker.elkobroker.                   A, AAAA: the addresses of the brokers of a cluster; without one, as ``ns``
    _WIRE._tcp.broker.elkobroker.        SRV of their listeners of a wire: _elko, _http, _mtl, ...

Rules:
- A name that does not exist is NXDOMAIN, a type that a name has not is NODATA, both with the SOA (RFC 2308). A name
  with others below it that have services for an answer exists, without records.
- A question in the form ``_NAME._PROTOCOL`` may be the own name of a service as well, such as ``_sip._udp``: that one
  is answered where the form selects no service. Any other name with such labels is an own name.
- A name outside of the domain, a zone transfer and a class other than IN are REFUSED. All types (ANY) is HINFO
  (RFC 8482).
- Services with a secret are not answered: DNS cannot transmit it.
- A response has at most `MAX_PLACES` places, in a window that begins anywhere, of all places that have the asked type:
  programs take the first address that they get, and so choose different ones.
- Services with a failing health check come after all others, with the priority `FAILING`, or are left out.
- A hostport is free text, ``host:port`` by convention. DNS expresses an IP address or a host name, with a port or
  without; an IPv6 address with a port stands in brackets. Names are passed on and never resolved.
- A response about services has a `Basis`, by which `Zone.holds` decides later whether it would be the same again.
- The registry distinguishes case and DNS does not: `ServiceNames` maps each folded name to the names and protocols that
  are spelled so. It follows the registry's changes. Services from before a restart cause no changes: theirs are entered
  at the start, and an entry without a service in the registry is removed when it is met.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import islice

import attrs

from broker.core.interfaces import IRegistry, IWait
from broker.core.model import OWN_PREFIX, Change, Kind, Policy, Service
from broker.wires.dns.codec import dns_response
from broker.wires.dns.codec.dns_query import IN, MAX_LABEL, Labels, Question, dotted, fold, host_labels
from broker.wires.dns.codec.dns_response import (
    MAX_STRING,
    NXDOMAIN,
    REFUSED,
    Address,
    Data,
    HInfo,
    Ns,
    Record,
    Response,
    Soa,
    Srv,
    Txt,
)
from broker.wires.dns.dns_settings import Dns

KEPT = 16_384
"""Hostports whose parts are kept: those of a farm of thousands. About 300 bytes each."""

_BRACKETS = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::([0-9]{1,5}))?")
_PLAIN = re.compile(r"([^\[\]:]+)(?::([0-9]{1,5}))?")

IP = IPv4Address | IPv6Address


@attrs.frozen
class HostPort:
    """A host with a port, None where there is none. ``host`` is an address, or a name in lower case. ``label`` is the
    label of an address: its bytes in hexadecimal."""

    host: IP | bytes
    port: int | None
    label: bytes = b""


@lru_cache(maxsize=KEPT)
def host_port(hostport: str) -> HostPort | None:
    """Return the place, or None where DNS cannot express it.

    An unspecified address (``0.0.0.0``, ``::``) is where a server listens, not where a client connects: None.
    """
    match = _BRACKETS.fullmatch(hostport) or _PLAIN.fullmatch(hostport)
    if match is None:
        ip = _ip(hostport)  # an IPv6 address without brackets has no port
        return None if ip is None or ip.is_unspecified else HostPort(ip, None, _label(ip))
    host, port = match[1], None if match[2] is None else int(match[2])
    if port is not None and not 0 < port < 65_536:
        return None
    ip = _ip(host)
    if ip is not None:
        return None if ip.is_unspecified else HostPort(ip, port, _label(ip))
    labels = host_labels(host)
    # A last label of digits alone is an address with a typing error: no top-level domain is one (RFC 3696).
    if labels is None or labels[-1].isdigit():
        return None
    return HostPort(dotted(labels), port)


def labelled_address(label: bytes) -> IP | None:
    """Return the address of a label, or None if it is the label of none."""
    try:
        packed = bytes.fromhex(label.decode("ascii"))
    except ValueError:
        return None
    if len(packed) * 2 != len(label):  # blanks between digits
        return None
    if len(packed) == 4:
        return IPv4Address(packed)
    return IPv6Address(packed) if len(packed) == 16 else None


def _label(ip: IP) -> bytes:
    return ip.packed.hex().encode("ascii")


def _ip(host: str) -> IP | None:
    try:
        ip = ip_address(host)
    except ValueError:
        return None
    if isinstance(ip, IPv6Address):
        return None if ip.scope_id is not None else ip.ipv4_mapped or ip
    return ip


MAX_KEYS = 64
"""Spellings and protocols of one folded name that a response considers: ordinary ones have one or two."""

MAX_SERVICES = 10_000
"""Services of one folded name that a response considers: some 0.5 ms at most. An ordinary name has a few hundred."""

MAX_DEPTH = 8
"""Labels of a name with dots whose parents exist: each level costs an entry."""

MAX_BELOW = 500
"""Names below a parent that a response considers, until one may be answered: some 1 ms at most."""

_Key = tuple[str, str]
"""A name and a protocol of the registry."""


class ServiceNames:
    """The names of all services, folded, those from before a restart included."""

    def __init__(self, registry: IRegistry) -> None:
        self._registry = registry
        self._keys: dict[bytes, dict[_Key, None]] = {}
        self._below: dict[bytes, dict[bytes, None]] = {}
        """The names with dots, by each of their parents."""
        for name in registry.names(restored=True):
            for protocol in registry.protocols(name, restored=True):
                self._enter(name, protocol)
        self._watch: IWait = registry.watch(self._changed, (Kind.OFFERED, Kind.WITHDRAWN))

    def stop(self) -> None:
        """Follow the registry no longer."""
        self._watch.cancel()

    def found(self, folded: bytes) -> list[tuple[_Key, tuple[Service, ...]]]:
        """Return what the registry finds for each spelling and protocol of a folded name, the live services of each
        first."""
        found = []
        for key in list(islice(self._keys.get(folded, ()), MAX_KEYS)):
            services = self._registry.find(*key, restored=True)
            if not services and not self._known(*key):
                self._remove(*key)
            found.append((key, services))
        return found

    def keys(self, folded: bytes) -> Collection[tuple[str, str]]:
        """Return all spellings and protocols of a folded name."""
        return self._keys.get(folded, ())

    def below(self, folded: bytes) -> Sequence[bytes]:
        """Return names with dots that end with this one: the first `MAX_BELOW`, as a copy."""
        return list(islice(self._below.get(folded, ()), MAX_BELOW))

    def __iter__(self) -> Iterator[tuple[bytes, str, str]]:
        """Iterate over folded names, with a name and a protocol of the registry each.

        Changes during the iteration are allowed: new names are left out.
        """
        return ((folded, *key) for folded in list(self._keys) for key in list(self._keys.get(folded, ())))

    def __len__(self) -> int:
        """Return the number of folded names."""
        return len(self._keys)

    def _changed(self, change: Change) -> None:
        service = change.subject
        if not isinstance(service, Service):
            return
        if change.kind is Kind.OFFERED:
            self._enter(service.name, service.protocol)
        elif not self._known(service.name, service.protocol):
            self._remove(service.name, service.protocol)

    def _known(self, name: str, protocol: str) -> bool:
        """Return True if the registry has a service of that name and protocol, hidden or restored ones included."""
        return bool(self._registry.services(name, protocol) or self._registry.find(name, protocol, restored=True))

    def _enter(self, name: str, protocol: str) -> None:
        folded = fold_name(name)
        if folded is None:
            return
        keys = self._keys.get(folded)
        if keys is None:
            keys = self._keys[folded] = {}
            for parent in _parents(folded):
                self._below.setdefault(parent, {})[folded] = None
        keys[name, protocol] = None

    def _remove(self, name: str, protocol: str) -> None:
        folded = fold_name(name)
        keys = None if folded is None else self._keys.get(folded)
        if folded is None or keys is None or (name, protocol) not in keys:
            return
        del keys[name, protocol]
        if not keys:
            del self._keys[folded]
            for parent in _parents(folded):
                below = self._below[parent]
                del below[folded]
                if not below:
                    del self._below[parent]


def fold_name(name: str) -> bytes | None:
    """Return the folded name, or None for one that is never answered: empty, or the broker's own by its prefix."""
    if not name or name.lower().startswith(OWN_PREFIX):
        return None
    return name.encode("utf-8", "surrogatepass").lower()


def _parents(folded: bytes) -> list[bytes]:
    labels = folded.split(b".")
    if len(labels) > MAX_DEPTH or not all(0 < len(label) <= MAX_LABEL for label in labels):
        return []
    return [b".".join(labels[number:]) for number in range(1, len(labels))]


# SRV weights from reported loads.

IDLE = 1_000
"""The weight of a place without load among places with load. Of 65,535 that a weight may be; three digits tell loads
apart that differ by a thousandth of their mean."""

LEAST = 1
"""The least weight, and that of a restored place among live ones. With 0, clients hardly ever choose a place."""


def weights(loads: Sequence[float | None]) -> list[int]:
    """Return the weight of each place: ``1000 / (1 + load / mean)``, rounded, at least 1.

    The mean is that of the loads that are known. So the unit of the loads does not matter: a place without load gets
    1000, one with the mean load 500, one with three times the mean 250, and each has its share of the new clients.
    A load of None is unknown, that of a restored place: it gets 1.
    """
    known = [load for load in loads if load is not None]
    # Divided before they are added: the sum of two large loads may be infinite.
    mean = sum(load / len(known) for load in known)
    return [LEAST if load is None else _weight(load, mean) for load in loads]


def _weight(load: float, mean: float) -> int:
    if not mean:
        return IDLE
    return max(LEAST, round(IDLE / (1 + load / mean)))


MAX_PLACES = 24
"""Places of one response: no client tries more. So many IPv4 addresses fit into the 512 bytes of a client without EDNS,
so many SRV records into `MAX_PAYLOAD`, and so the connection that TC asks for is rare. Encoding takes about 1 ms."""

REFRESH, RETRY, EXPIRE = 3_600, 600, 86_400
"""Seconds for secondary name servers, of which there are none: nothing can be transferred."""

FAILING = 1
"""Priority of the SRV record of a service with a failing health check: clients try it after those with priority 0."""

SERVICE, ADDRESS, SERVER = b"service", b"addr", b"ns"
"""The labels below the domain."""


@attrs.define(eq=False)
class Basis:
    """The basis of a response about the services of a folded name: all values that it depends on.

    - ``found``: each spelling and protocol, with the services that the registry found for it, and whether they are
      permitted. A group of services has another tuple after each change.
    - ``first`` of ``places``: where the window of places begins.
    - ``loads``: those from which weights were computed, by provider, and the revision of the registry at that time.
    - ``serial``: the zone's number, if the response has it.
    """

    dns: Dns
    name: bytes
    found: tuple[tuple[_Key, tuple[Service, ...], bool], ...]
    places: int
    first: int
    revision: int
    loads: Mapping[int, float | None]
    serial: int | None


@attrs.frozen(eq=False)
class Zone:
    """The zone over a registry, whose names are ``names``. Services are answered if ``may`` permits their names.
    ``brokers`` returns the endpoints of the listeners of each broker of the cluster, by title."""

    registry: IRegistry
    names: ServiceNames
    may: Callable[[str], bool] | None = None
    brokers: Callable[[], Sequence[Mapping[str, str]]] = tuple

    def holds(self, basis: Basis, dns: Dns) -> bool:
        """Return True if the services of the name are as they were, all but their loads."""
        keys = self.names.keys(basis.name)
        if basis.dns is not dns or len(keys) != len(basis.found):
            return False
        find, may = self.registry.find, self.may
        for key, services, permitted in basis.found:
            if key not in keys or find(*key, restored=True) is not services:
                return False
            if may is not None and may(key[0]) is not permitted:
                return False
        return True

    def weighs(self, basis: Basis) -> bool:
        """Return True if the loads are as they were."""
        revision = self.registry.revision
        if basis.revision != revision:
            load_of = self.registry.load_of
            for provider, load in basis.loads.items():
                if load_of(provider) != load:
                    return False
            basis.revision = revision
        return True

    def answer(
        self, dns: Dns, question: Question, serial: int, begin: Callable[[int], int]
    ) -> tuple[Response, Basis | None]:
        """Return the response to a question, and its basis if it has services.

        ``serial`` is the zone's number; ``begin(n)`` returns which of n places comes first.
        """
        owner = _Owner(dns, dotted(fold(question.labels)), question.type, serial)
        response = self._answer(question, owner, begin)
        return response, owner.basis

    def _answer(self, question: Question, owner: _Owner, begin: Callable[[int], int]) -> Response:
        dns = owner.dns
        labels, domain = fold(question.labels), dns.labels
        below = labels[: len(labels) - len(domain)]
        if (
            question.cls != IN
            or labels[len(below) :] != domain
            or question.type in (dns_response.AXFR, dns_response.IXFR)
        ):
            return Response(REFUSED)
        match below:
            case ():
                return owner.respond([_ns(domain), _soa(dns, owner.serial)])
            case (b"ns",):
                return owner.respond([] if dns.server is None else [Address(dns.server)])
            case (b"addr",) | (b"service",):
                return owner.respond([])
            case (label, b"addr"):
                ip = labelled_address(label)
                return owner.missing() if ip is None else owner.respond([Address(ip)])
            case (*name, b"broker") if len(name) <= 2:
                return self._brokers(tuple(name), owner, begin)
            case (*name, b"service"):
                return self._service(tuple(name), owner, begin)
        return owner.missing()

    def _service(self, labels: Labels, owner: _Owner, begin: Callable[[int], int]) -> Response:
        name = folded = dotted(labels)
        of_tag = labels[-1].startswith(b"_")
        selects = of_tag and len(labels) > 1 and labels[0].startswith(b"_")
        is_stable = True
        services: list[Service] = []
        if selects:
            tag, folded = labels[-1][1:], dotted(labels[:-1])[1:]
            of_name, found = self._permitted(folded)
            services = [service for service in of_name if _folded(service.protocol) == tag]
            if not services:
                # A service without a label of its own has that of its provider, which may change unnoticed.
                is_stable = False
                services = [service for service in of_name if _folded(self._label(service)) == tag]
        if not services:
            # Where nothing is selected, the answer depends on both names, and a basis has one.
            is_stable, folded = not selects, name
            services, found = self._permitted(name)
        if not services:
            # Below ``_tcp``, and below the parents of names, there are the names with a protocol.
            exists = self._is_parent(name) or (of_tag and (len(labels) == 1 or self._is_parent(dotted(labels[:-1]))))
            return owner.respond([]) if exists else owner.missing()
        places, first = len(services), begin(len(services))
        data, additional = self._records(self.registry.by_check(services[first:] + services[:first]), owner)
        if is_stable:
            owner.basis = Basis(
                owner.dns, folded, found, places, first, self.registry.revision, owner.loads, serial=None
            )
        return owner.respond(data, additional)

    def _brokers(self, labels: Labels, owner: _Owner, begin: Callable[[int], int]) -> Response:
        """Answer for the brokers themselves. Their listeners are known to all of the network: no right is needed."""
        listeners = self.brokers()
        first = begin(len(listeners)) if listeners else 0
        places = [
            (b"_" + title.partition(" ")[0].encode(), where)
            for each in (*listeners[first:], *listeners[:first])
            for title, endpoint in each.items()
            if (where := host_port(endpoint.removeprefix("tcp://"))) is not None and where.port is not None
        ]
        if not labels:
            hosts = dict.fromkeys(where.host for _, where in places if not isinstance(where.host, bytes))
            own = [] if listeners or owner.dns.server is None else [owner.dns.server]
            return owner.respond([Address(host) for host in (*hosts, *own)][:MAX_PLACES])
        if labels[-1] != b"_tcp" or (len(labels) == 2 and labels[0] not in {wire for wire, _ in places}):
            return owner.missing()
        if len(labels) == 1:
            return owner.respond([])  # below it there are names
        below = b"." + dotted((ADDRESS, *owner.dns.labels))
        data: list[Data] = []
        additional = []
        for _, where in [each for each in places if each[0] == labels[0]][:MAX_PLACES]:
            target = where.host
            if not isinstance(target, bytes):
                ip, target = target, where.label + below
                additional.append(Record(target, owner.dns.ttl, Address(ip)))
            assert where.port is not None
            data.append(Srv(IDLE, where.port, target, 0))
        return owner.respond(data, list(dict.fromkeys(additional)))

    def _permitted(self, name: bytes) -> tuple[list[Service], tuple[tuple[_Key, tuple[Service, ...], bool], ...]]:
        """Return the services of a folded name that may be answered, and what they were taken from."""
        permitted: list[Service] = []
        found = []
        for key, services in self.names.found(name):
            may = self.may is None or self.may(key[0])
            found.append((key, services, may))
            if may:
                permitted += [each for each in services[: MAX_SERVICES - len(permitted)] if each.auth is None]
        return permitted, tuple(found)

    def _is_parent(self, name: bytes) -> bool:
        """Return True if a name below this one has services that may be answered: this one exists, without records
        (RFC 8020). That it does tells no more than the names below it do."""
        services = (
            service
            for below in self.names.below(name)
            for key, services in self.names.found(below)
            if self.may is None or self.may(key[0])
            for service in services
        )
        return any(service.auth is None for service in islice(services, MAX_SERVICES))

    def _label(self, service: Service) -> str:
        if service.label is not None:
            return service.label
        known = self.registry.wire_and_label(service.provider)
        if known is not None:
            return known[1]
        remembered = self.registry.remembered_provider(service.provider)
        return "" if remembered is None else remembered.label

    def _records(self, services: Sequence[Service], owner: _Owner) -> tuple[list[Data], list[Record]]:
        """Return the data of the asked type, and the additional records: of the first services that have that type."""
        places = ((each, where) for each in services if (where := host_port(each.hostport)) is not None)
        match owner.type:
            case dns_response.TXT:
                return [Txt(strings(each)) for each in services[:MAX_PLACES]], []
            case dns_response.SRV:
                return self._srv(list(islice((each for each in places if each[1].port is not None), MAX_PLACES)), owner)
            case dns_response.A | dns_response.AAAA:
                hosts = (Address(where.host) for _, where in places if not isinstance(where.host, bytes))
                return list(islice((each for each in hosts if each.type == owner.type), MAX_PLACES)), []
        # A name always has the TXT records of its services, so all types (ANY) are never none.
        return [Txt(())], []

    def _srv(self, found: Sequence[tuple[Service, HostPort]], owner: _Owner) -> tuple[list[Data], list[Record]]:
        data: dict[tuple[bytes, int], tuple[int, int]] = {}
        additional: dict[bytes, Record] = {}
        below = b"." + dotted((ADDRESS, *owner.dns.labels))
        live = {service.provider for service, _ in found if not service.restored}
        owner.loads = {id: self.registry.load_of(id) for id in live}
        loads = [None if service.restored else owner.loads[service.provider] for service, _ in found]
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


@attrs.define
class _Owner:
    """The asked name, which has records or has none, and the asked type; ``basis`` and ``loads`` of its services."""

    dns: Dns
    name: bytes
    type: int
    serial: int
    basis: Basis | None = None
    loads: Mapping[int, float | None] = attrs.field(factory=dict)

    def respond(self, data: Iterable[Data], additional: Sequence[Record] = ()) -> Response:
        """Return the response of a name that exists and has at most these data, of any types."""
        data = list(data)
        if self.type == dns_response.ANY and data:
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
        if self.basis is not None:
            self.basis.serial = self.serial
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
