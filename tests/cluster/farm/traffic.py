"""Messages during the rounds: durable queues with confirmed messages, and a topic of mc0 with peers at each broker.

Queues are on the disk of the broker that owns them. A message whose writer has its Confirm must be read after the
faults, and no other than those whose Confirm may have been lost; it may be read twice if its reader lost its flow just
after the first reading. Messages of a topic may be lost during faults; those of one publisher arrive in order, and
after the faults they arrive everywhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import zmq

from tests.cluster.client_histories import queue_faults
from tests.cluster.farm.hosts import MC0, MTL, Broker
from tests.cluster.queue_load import QueueLoad

QUEUES = 6
"""Queues: about two for each broker."""

PAUSE = 0.05
"""Seconds between two messages of a writer."""

EVERY = 0.25
"""Seconds between two messages of a publisher."""

SUBSCRIBE = 1.0
"""Seconds between two subscriptions of a subscriber, whose session may have ended."""

ARRIVES = 3.0
"""Seconds without a message from a publisher after which a subscriber counts as cut off."""

CONFIRMING = 1.0
"""Seconds for which the Confirm of a message that was read may be on its way, or not be on the disk."""

SILENT = 5.0
"""Seconds after which a reader has noticed that its broker is gone: three heartbeats of `QUICK`, and a stall of this
process, which the client does not count as silence."""

TOPIC = b"farm"


class QueueTraffic:
    """Writers and readers of some queues."""

    def __init__(self, brokers: Sequence[Broker]) -> None:
        self._endpoints = [f"tcp://{each.address}:{MTL}" for each in brokers]
        self._loads: list[QueueLoad] = []
        self._awaited: list[set[str]] = []

    def start(self) -> None:
        """Begin. To be called in a thread: it returns when all queues are open."""
        for number in range(QUEUES):
            # Each client begins at another broker, and owns its queue there, as far as nobody was faster.
            at = number % len(self._endpoints)
            endpoints = self._endpoints[at:] + self._endpoints[:at]
            self._loads.append(QueueLoad(endpoints, f"jobs{number}", 1, 1, PAUSE))

    def stop(self) -> None:
        """End all clients."""
        for load in self._loads:
            load.close()

    def counts(self) -> tuple[int, int]:
        """Return the numbers of messages that were confirmed, and of those that were read more than once."""
        again = 0
        for load in self._loads:
            names = [name for _, name in list(load.seen)]
            again += len(names) - len(set(names))
        return sum(len(load.confirmed) for load in self._loads), again

    def mark(self) -> None:
        """Have `waiting` wait for all that is confirmed by now."""
        self._awaited = [set(load.confirmed) for load in self._loads]

    def waiting(self) -> str:
        """Return "" if all that was confirmed at `mark` was read, otherwise a sentence."""
        for load, awaited in zip(self._loads, self._awaited, strict=False):
            awaited.difference_update(name for _, name in list(load.seen))
            if awaited:
                return f"{len(awaited)} confirmed messages of {load.queue} were not read, such as {sorted(awaited)[:3]}"
        return ""

    def defects(self, over: bool = False) -> list[str]:
        """Return what is wrong at any time, and with ``over`` what is wrong at the end."""
        found = []
        for load in self._loads:
            found += [f"{load.queue}: {error!r}" for error in load.errors]
            found += queue_faults(
                load.queue, load.confirmed, load.unknown, list(load.seen), load.lost, CONFIRMING, SILENT, over
            )
        return found

    def finish(self) -> list[str]:
        """Stop writing, and return the defects in the account of all messages. To be called in a thread."""
        for load in self._loads:
            load.stop_writing()
        self.mark()
        end = time.monotonic() + 30.0
        while self.waiting() and time.monotonic() < end:
            time.sleep(0.2)
        return self.defects(over=True)


class TopicTraffic(threading.Thread):
    """A publisher and a subscriber of one topic at each broker, by mc0."""

    def __init__(self, brokers: Sequence[Broker]) -> None:
        super().__init__(daemon=True)
        self._brokers = list(brokers)
        self._over = threading.Event()
        self._arrived: dict[tuple[str, str], float] = {}
        """The time of the last message, by subscriber and publisher."""
        self._last: dict[tuple[str, str], int] = {}
        self.received = 0
        self.disorder: list[str] = []

    def stop(self) -> None:
        """End."""
        self._over.set()
        self.join(10.0)

    def waiting(self) -> str:
        """Return "" if messages of each broker arrive at all brokers, otherwise a sentence."""
        now = time.monotonic()
        cut_off = [
            f"{publisher.name} to {subscriber.name}"
            for publisher in self._brokers
            for subscriber in self._brokers
            if now - self._arrived.get((subscriber.name, publisher.name), 0.0) > ARRIVES
        ]
        return f"messages of the topic do not arrive: {', '.join(cut_off)}" if cut_off else ""

    def run(self) -> None:
        """Publish and receive until `stop`."""
        with zmq.Context(io_threads=1) as context:
            context.linger = 0
            publishers = [(each, self._socket(context, each, b"publisher")) for each in self._brokers]
            subscribers = [(each, self._socket(context, each, b"subscriber")) for each in self._brokers]
            poller = zmq.Poller()
            for _, socket in (*publishers, *subscribers):
                poller.register(socket, zmq.POLLIN)
            count = 0
            publish = subscribe = 0.0
            while not self._over.is_set():
                now = time.monotonic()
                if now >= subscribe:
                    subscribe = now + SUBSCRIBE
                    for _, socket in subscribers:
                        _send(socket, b"SUB", b"ID", b"%d" % count, b"", TOPIC)
                if now >= publish:
                    publish = now + EVERY
                    count += 1
                    for broker, socket in publishers:
                        number = b"%d" % count
                        _send(socket, b"PUT", b"TOPIC", TOPIC, b"X-AT", broker.name.encode(), b"X-N", number, b"", b"x")
                poller.poll(100)
                for broker, socket in subscribers:
                    self._read(broker.name, socket)
                for _, socket in publishers:
                    self._read("", socket)
            for _, socket in (*publishers, *subscribers):
                socket.close(0)

    def _socket(self, context: zmq.Context[Any], broker: Broker, identity: bytes) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        socket.routing_id = identity + b"-" + broker.name.encode()
        # What is written while the broker is away must not wait for it.
        socket.immediate = True
        socket.heartbeat_ivl = 500
        socket.heartbeat_timeout = 1500
        socket.reconnect_ivl = 200
        socket.connect(f"tcp://{broker.address}:{MC0}")
        return socket

    def _read(self, subscriber: str, socket: zmq.Socket[bytes]) -> None:
        while True:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if b"X-N" not in frames:
                continue
            publisher = frames[frames.index(b"X-AT") + 1].decode()
            number = int(frames[frames.index(b"X-N") + 1])
            key = subscriber, publisher
            if number <= self._last.get(key, 0):
                self.disorder.append(f"{number} of {publisher} arrives at {subscriber} after {self._last[key]}")
            self._last[key] = number
            self._arrived[key] = time.monotonic()
            self.received += 1


def _send(socket: zmq.Socket[bytes], *frames: bytes) -> None:
    with suppress(zmq.Again):
        socket.send_multipart([b"", *frames], zmq.NOBLOCK)
