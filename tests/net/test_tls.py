"""TLS connections in memory: handshakes and records take their turns, and pauses reach down to the socket."""

from __future__ import annotations

import gc
import ssl
import weakref
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.logger import capturedLogs
from twisted.python.failure import Failure

from broker import pem
from broker.net.tls import Certificates, TlsFactory
from tests.config.certificates import certificate
from tests.garbage import no_collection
from tests.net.words import COST, Hub, Wire


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"), "broker")


class TlsLink:
    """A client of TLS, and the broker's side of its connection to a hub."""

    def __init__(self, hub: Hub, files: tuple[Path, Path]) -> None:
        self.hub = hub
        factory: Any = TlsFactory(
            hub.factory, Certificates(pem.Files(str(files[0]), str(files[1]))), hub.turns, hub.refusal_log
        )
        address = IPv4Address("TCP", "192.0.2.1", 4000)
        self.protocol = factory.buildProtocol(address)
        self.wire = Wire()
        self.wire.peerAddr = address
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=str(files[0]))
        context.check_hostname = False
        self.tls = context.wrap_bio(self._in, self._out)
        self.protocol.makeConnection(self.wire)

    def send(self) -> None:
        """All that the client has written arrives, in one read."""
        self.protocol.dataReceived(self._out.read())

    def hear(self) -> None:
        """The client gets all that was written to it."""
        self._in.write(self.wire.value())
        self.wire.clear()

    def shake(self) -> None:
        """Shake hands."""
        for _ in range(5):
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.send()
                self.hub.later()
                self.hear()
        self.send()
        self.hub.later()

    def say(self, *words: str) -> None:
        """Words arrive, all in one read."""
        self.tls.write("".join(f"{word}\n" for word in words).encode())
        self.send()


@pytest.fixture
def hub() -> Hub:
    return Hub(half_close=False)


@pytest.fixture
def link(hub: Hub, files: tuple[Path, Path]) -> TlsLink:
    return TlsLink(hub, files)


def test_a_handshake_waits_for_its_turn(hub: Hub, link: TlsLink) -> None:
    with pytest.raises(ssl.SSLWantReadError):
        link.tls.do_handshake()
    link.send()
    assert link.wire.value() == b""
    assert not link.wire.reading
    hub.later()
    assert link.wire.value() != b""
    assert link.wire.reading


def test_after_it_words_are_handled_at_once(hub: Hub, link: TlsLink) -> None:
    link.shake()
    link.say("one", "two")
    assert hub.words() == ["one", "two"]


def test_what_costs_more_than_a_quantum_is_handled_in_turns_and_not_read_before(hub: Hub, link: TlsLink) -> None:
    link.shake()
    hub.heard.cost = COST
    words = [str(number) for number in range(1_000)]
    link.say(*words)
    handled = hub.words()
    assert 0 < len(handled) < 1_000
    assert not link.wire.reading
    while hub.turns.busy:
        hub.later()
        handled += hub.words()
    assert handled == words
    assert link.wire.reading


def test_while_the_protocol_above_reads_no_more_nothing_is_decrypted(hub: Hub, link: TlsLink) -> None:
    link.shake()
    [line] = hub.factory.connections
    line.transport.pauseProducing()
    link.say("late")
    hub.later()
    assert (hub.words(), link.wire.reading) == ([], False)
    line.transport.resumeProducing()
    hub.later()
    assert (hub.words(), link.wire.reading) == (["late"], True)


def test_what_is_written_before_the_handshake_is_sent_after_it(hub: Hub, files: tuple[Path, Path]) -> None:
    hub.factory.draining = True
    link = TlsLink(hub, files)
    link.shake()
    hub.later()
    link.hear()
    assert link.tls.read(1_000) == b"<draining>"


@pytest.mark.parametrize("size", [1, 2, 7, 300])
def test_it_does_not_matter_how_the_bytes_come(hub: Hub, link: TlsLink, size: int) -> None:
    link.shake()
    link.tls.write(b"hello\n" * 20)
    data = link._out.read()
    for at in range(0, len(data), size):
        link.protocol.dataReceived(data[at : at + size])
    while hub.turns.busy:
        hub.later()
    assert hub.words() == ["hello"] * 20


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 5_000, b"\x16\x03\x01\xff\xff" + b"x" * 5_000])
def test_noise_ends_the_connection_and_nothing_is_logged_as_a_failure(hub: Hub, link: TlsLink, noise: bytes) -> None:
    with capturedLogs() as logged:
        link.protocol.dataReceived(noise)
        for _ in range(20):
            hub.later()
    assert link.wire.disconnecting
    assert [event for event in logged if "log_failure" in event] == []
    link.protocol.connectionLost(ConnectionError())
    assert hub.factory.connections == set()


@pytest.mark.parametrize("shaken", [True, False], ids=["open", "in its handshake"])
def test_a_connection_that_ended_is_freed_without_a_garbage_collection(
    hub: Hub, files: tuple[Path, Path], shaken: bool
) -> None:
    gc.collect()
    with no_collection():
        link = TlsLink(hub, files)
        if shaken:
            link.shake()
            link.say("one")
        else:
            link.protocol.dataReceived(b"\x16\x03\x01\x40\x00")
            hub.later()
        ended = weakref.ref(link.protocol)
        link.wire.producer = None  # as a socket does at its end
        link.protocol.connectionLost(Failure(ConnectionDone()))
        hub.later()
        hub.sessions.clear()
        del link
        assert ended() is None


def test_a_handshake_that_fails_is_counted_and_logged_once_a_minute_with_the_reason(
    hub: Hub, files: tuple[Path, Path]
) -> None:
    with capturedLogs() as logged:
        for _ in range(3):
            link = TlsLink(hub, files)
            link.protocol.dataReceived(b"GET / HTTP/1.1\r\n\r\n")
            hub.later()
    assert hub.counters.get(f"{hub.factory.wire}_refused", "handshake") == 3
    [line] = [event for event in logged if event.get("reason") == "handshake"]
    assert (line["address"], line["text"]) == ("192.0.2.1", "no TLS: http request")


def test_a_connection_that_ends_in_order_is_no_failed_handshake(hub: Hub, link: TlsLink) -> None:
    link.shake()
    link.say("bye")
    link.protocol.connectionLost(Failure(ConnectionDone()))
    assert hub.counters.get(f"{hub.factory.wire}_refused", "handshake") == 0
