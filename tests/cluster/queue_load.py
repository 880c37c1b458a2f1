"""Load on one durable queue by the blocking client library, in which each message is accounted for."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from broker.client.blocking import Client, Content
from broker.client.errors import Closed
from broker.client.mtl import Settings
from broker.client.settings import Event
from tests.patience import until

QUICK = Settings(timeout=2.0, heartbeat=0.5, most_pause=1.0, most_resend_pause=1.0)
"""Settings of clients that notice soon that a broker is gone."""

QUEUES = """
[[mtl.queues]]
queues = ["jobs*"]
durable = true
duplicates = true
"""
"""Configuration of brokers for the queues of such a load."""

PATIENT = 120.0
"""Seconds for the Confirm of one message, after which it is unknown whether it is in the queue: a queue on the disk of
a broker is away as long as that broker, and the queue drops duplicates for two minutes."""


class QueueLoad:
    """Writers and readers of one queue, each message with an id. Writers pause for that many seconds after each.

    ``unknown`` are the messages that were not confirmed within `PATIENT`, ``lost`` the times at which a reader lost its
    flow.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        queue: str = "jobs",
        writers: int = 4,
        readers: int = 2,
        pause: float = 0.0,
        settings: Settings = QUICK,
    ) -> None:
        self.confirmed: list[str] = []
        self.unknown: list[str] = []
        self.seen: list[tuple[float, str]] = []
        self.lost: list[float] = []
        self.errors: list[BaseException] = []
        self.queue = queue
        self._pause = pause
        self._going = True
        self._client = Client(list(endpoints), settings=settings)
        self._readers = [
            self._client.read("queue", [queue], confirm="full", window=20, on_event=self._note, timeout=PATIENT)
            for _ in range(readers)
        ]
        self._writing = [threading.Thread(target=self._write, args=(number,), daemon=True) for number in range(writers)]
        self._reading = [threading.Thread(target=self._read, args=(reader,), daemon=True) for reader in self._readers]
        for thread in (*self._writing, *self._reading):
            thread.start()

    def _write(self, number: int) -> None:
        try:
            writer = self._client.write("queue", [self.queue], timeout=PATIENT)
            count = 0
            while self._going:
                count += 1
                name = f"{number}-{count}"
                try:
                    writer.send(name.encode(), properties={"message-id": name}, timeout=PATIENT)
                    self.confirmed.append(name)
                except TimeoutError as error:
                    self.unknown.append(name)
                    self.errors.append(error)
                time.sleep(self._pause)
        except BaseException as error:
            self.errors.append(error)

    def _read(self, reader: Any) -> None:
        def work(content: Content) -> None:
            self.seen.append((time.monotonic(), bytes(content.body).decode()))

        try:
            reader.work(work)
        except Closed:
            pass
        except BaseException as error:
            self.errors.append(error)

    def _note(self, event: Event, _why: str) -> None:
        if event is Event.LOST:
            self.lost.append(time.monotonic())

    def stop_writing(self) -> None:
        """Stop, and wait until all has been confirmed."""
        self._going = False
        for thread in self._writing:
            thread.join(60)
            assert not thread.is_alive()

    def close(self) -> None:
        """End the client."""
        self._going = False
        self._client.close()
        for thread in (*self._writing, *self._reading):
            thread.join(20)

    def advanced(self, by: int = 20) -> None:
        """Wait until more messages have been confirmed and read."""
        confirmed, seen = len(self.confirmed), len(self.seen)

        def further() -> bool:
            assert self.errors == []
            return len(self.confirmed) >= confirmed + by and len(self.seen) >= seen + by

        until(further, "the load goes on")
