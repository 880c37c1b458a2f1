"""Our client of MTL against a scripted broker: the demands of RFC 11 on clients."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from broker.client.blocking import Client
from broker.client.errors import NotTaken
from broker.client.settings import Settings
from tests.integration.mtl_peers import CONFIRM, CONTENT, LEASE, PING, PONG, REJECT, RESPONSE, SUMMON, head, tail
from tests.patience import PATIENCE

QUICK = Settings(first_contact=None, timeout=0.3, heartbeat=0.2, dead_after=3, least_pause=0.05, most_pause=0.1)


class Played:
    """A ROUTER at which any client is admitted, gets leases, and may summon, as long as it ``answers``."""

    def __init__(self) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._router: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._router.linger = 0
        port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._replies: dict[bytes, tuple[bytes, dict[str, Any]]] = {
            b"Connection.Open": (b"201", {"status": "Ready", "profiles": ["queue"]}),
            b"Connection.Profile": (b"200", {"status": "OK"}),
            b"Connection.Reader": (b"202", {"status": "Data Lease", "port": port, "lease": "lease", "window": 10}),
        }

    def close(self) -> None:
        """End it."""
        self._context.destroy(0)

    def is_asked(self) -> bool:
        """Return True if a message comes soon."""
        return bool(self._router.poll(20))

    def next(self, answers: bool = True, seconds: float = PATIENCE) -> tuple[bytes, list[bytes]]:
        """Return the next message: the identity of its sender, and the frames without a delimiter. Requests are
        answered."""
        assert self._router.poll(int(seconds * 1000)), "nothing came"
        identity, *frames = self._router.recv_multipart()
        if not frames[0]:
            if answers:
                code, body = self._replies[frames[1]]
                self._router.send_multipart([identity, b"", code, json.dumps(body).encode()])
            return identity, frames[1:]
        kind = frames[0][0]
        if answers and kind in (LEASE, SUMMON):
            [sequence] = struct.unpack_from(">Q", frames[0], 1)
            self._router.send_multipart([identity, head(RESPONSE, sequence), b"200"])
        elif answers and kind == PING:
            self.say(identity, bytes([PONG]))
        return identity, frames

    def until(self, beginning: bytes) -> tuple[bytes, list[bytes]]:
        """Answer everything, up to the first message that begins so."""
        while True:
            identity, frames = self.next()
            if frames[0].startswith(beginning):
                return identity, frames

    def say(self, identity: bytes, header: bytes, body: bytes = b"") -> None:
        """Send a data command."""
        self._router.send_multipart([identity, header, body])


@pytest.fixture
def broker() -> Iterator[Played]:
    played = Played()
    yield played
    played.close()


@pytest.fixture
def client(broker: Played) -> Iterator[Client]:
    with Client(broker.endpoint, settings=QUICK) as client:
        yield client


def test_E12_a_client_notices_by_a_timeout_that_nobody_answers(broker: Played, client: Client) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        client.open(timeout=4 * QUICK.timeout)
    silent = [broker.next(answers=False, seconds=0)[0] for _ in range(2)]
    assert len(set(silent)) == 2, "it has given the first connection up"
    assert time.monotonic() - began < PATIENCE
    opened: list[Any] = []
    opening = threading.Thread(target=lambda: opened.append(client.open(timeout=PATIENCE)))
    opening.start()
    while opening.is_alive():
        if broker.is_asked():
            broker.next()
    assert [ready.profiles for ready in opened] == [("queue",)]


def reading(broker: Played, client: Client) -> tuple[Any, bytes]:
    """A reader of a queue, and who it is to the broker."""
    readers: list[Any] = []
    thread = threading.Thread(
        target=lambda: readers.append(client.read("queue", ["jobs"], confirm="full", timeout=PATIENCE))
    )
    thread.start()
    identity, _ = broker.until(bytes([SUMMON]))
    thread.join()
    return readers[0], identity


def test_K12_a_client_confirms_or_rejects_each_content(broker: Played, client: Client) -> None:
    reader, identity = reading(broker, client)
    for sequence in range(1, 5):
        broker.say(identity, head(CONTENT, sequence, tail("jobs")), b"%d" % sequence)

    def work(content: Any) -> None:
        if content.body == b"2":
            raise NotTaken
        if content.body == b"3":
            raise RuntimeError("a defect of the worker")

    worker = threading.Thread(target=reader.work, args=(work,))
    worker.start()
    answers: set[bytes] = set()
    while len(answers) < 4:
        _, [header, _] = broker.next()
        if header[0] in (CONFIRM, REJECT):
            answers.add(header)
    assert answers == {
        head(CONFIRM, 1, b"\0"),
        head(REJECT, 2, b"\0\0"),
        head(REJECT, 3, b"\0\1"),
        head(CONFIRM, 4, b"\0"),
    }
    reader.close()
    worker.join()


def test_H10_a_client_asks_a_silent_broker_and_takes_it_for_dead(broker: Played, client: Client) -> None:
    _, identity = reading(broker, client)
    began = time.monotonic()
    for _ in range(5):  # as long as it is answered
        assert broker.next() == (identity, [bytes([PING]), b""])
    assert time.monotonic() - began > 3 * QUICK.heartbeat
    while True:
        other, frames = broker.next(answers=False)
        if other != identity:
            break
        assert frames == [bytes([PING]), b""]
    assert frames[0] == b"Connection.Open", "it starts over"
    again, _ = broker.until(bytes([SUMMON]))
    assert again != identity
