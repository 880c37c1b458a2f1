"""DNS without sockets: the real codec, zone and sessions over a farm's registry, and dnspython as the client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dns.flags
import dns.message
import dns.rdatatype
from dns.message import Message

from broker.core.rates import Rates
from broker.wires.dns.codec.dns_query import Frames, framed
from broker.wires.dns.dns_settings import Dns
from broker.wires.dns.sessions.responder import Datagrams, Responder, ResponseLimit, StreamSession
from broker.wires.dns.zone import ServiceNames, Zone
from tests.recording.farm import CoreFarm
from tests.wires.recording import Client, ElkoFarm, RecordingPeer

SOURCE = ("192.0.2.7", 4000)
TTL = 5
UNLIMITED = Dns(endpoint="tcp:53", response_rate=0.0)
"""On all addresses, of which none is that of the name server."""


class RecordingSocket:
    """A UDP socket that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Any]] = []

    def send(self, data: bytes, to: Any) -> bool:
        self.sent.append((data, to))
        return True

    def take(self) -> list[bytes]:
        """Return the datagrams since the last call."""
        sent, self.sent = [data for data, _ in self.sent], []
        return sent


class DnsFarm(CoreFarm):
    """DNS over the registry of a farm. ``begin`` says which of n places comes first, ``may`` which names are
    answered."""

    def __init__(
        self,
        farm: ElkoFarm | None = None,
        dns: Dns = UNLIMITED,
        begin: Callable[[int], int] = lambda count: 0,
        brokers: Callable[[], Sequence[Mapping[str, str]]] = tuple,
        may: Callable[[str], bool] | None = None,
    ) -> None:
        self.farm = ElkoFarm() if farm is None else farm
        super().__init__(self.farm.clock)
        self.names = ServiceNames(self.farm.registry)
        self.zone = Zone(self.farm.registry, self.names, may, brokers)
        self.responder = Responder(self.zone, dns, self.clock, begin)
        self.limit = ResponseLimit(Rates(self.clock.seconds), Rates(self.clock.seconds), dns)
        self.socket = RecordingSocket()
        self.datagrams = Datagrams(self.responder, self.limit, self.socket, self.refusal_log)

    def client(self, label: str | None = None) -> Client:
        """A server that offers services."""
        return self.farm.client(label)

    def datagram(self, data: bytes, source: tuple[str, int] = SOURCE) -> list[bytes]:
        """Return the answers to a datagram."""
        self.datagrams.receive(data, source)
        return self.socket.take()

    def ask(self, name: str, kind: str = "A", udp: bool = True, **options: Any) -> Message:
        """The response to one question. dnspython checks that it is the response to it."""
        return self.answer(dns.message.make_query(name, kind, **options), udp)

    def answer(self, query: Message, udp: bool = True) -> Message:
        """The response to a query."""
        if udp:
            [data] = self.datagram(query.to_wire())
        else:
            stream = Stream(self)
            stream.send(framed(query.to_wire()))
            [data] = stream.take()
        message = dns.message.from_wire(data, one_rr_per_rrset=False)
        assert query.is_response(message)
        return message

    def count(self, name: str) -> int:
        """One count of the sessions."""
        counts = {**self.responder.counts(), **self.datagrams.counts(), **self.limit.counts()}
        return counts.get(name, 0)


class Stream:
    """A client's connection."""

    def __init__(self, farm: DnsFarm, patience: int = 1_000_000) -> None:
        self.peer = RecordingPeer(patience=patience)
        session = StreamSession(farm.responder, self.peer)
        self.client = Client(lambda peer: (Frames(), session), self.peer)
        self.send = self.client.send

    @property
    def reasons(self) -> list[str]:
        """The codes of what was refused."""
        return self.client.reasons

    @property
    def closed(self) -> bool:
        """True if the broker closed it."""
        return self.peer.closed

    def take(self) -> list[bytes]:
        """The messages that came since the last call."""
        data = b"".join(self.peer.written)
        self.peer.written.clear()
        messages = []
        while data:
            length = int.from_bytes(data[:2], "big")
            assert len(data) >= 2 + length
            messages.append(data[2 : 2 + length])
            data = data[2 + length :]
        return messages


def shown(message: Message, section: str = "answer") -> list[str]:
    """The records of a section as text, without owner, TTL and class: ``A 192.0.2.1``."""
    return [
        f"{dns.rdatatype.to_text(rrset.rdtype)} {rdata.to_text()}"
        for rrset in getattr(message, section)
        for rdata in rrset
    ]


def code(message: Message) -> str:
    """The response code; NODATA for a NOERROR without an answer."""
    name = dns.rcode.to_text(message.rcode())
    return "NODATA" if name == "NOERROR" and not message.answer else name
