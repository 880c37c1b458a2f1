"""Clients of HTTP whose histories are recorded: they register instances at all brokers in turn, and find them with
``consistent``. `tests.cluster.client_histories` says which answers are possible."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from itertools import count
from typing import Any

from tests.cluster.client_histories import NEVER, Found, Histories, Session
from tests.cluster.farm.finders import RECORDED
from tests.cluster.farm.hosts import HTTP, Broker

CLIENTS = 3
"""Threads: there is one at each broker at a time, on average."""

KEYS = 4
"""Names of services, each with one instance: few, so that clients take over each other's."""

PAUSE = 0.1
"""Seconds between two requests of a client."""

ANSWERS = 5.0
"""Seconds for an answer: a consistent request is refused after three."""

LASTS = 20
"""TTL of an instance in seconds; nobody renews it."""

MARGIN = 2.0
"""Seconds before the end of the TTL from which on an instance may be gone."""


class HistoryClients:
    """Recorded clients of these brokers. ``quiet`` is the time in seconds after a fault in which leases may end."""

    def __init__(self, brokers: Sequence[Broker], seed: int, quiet: float) -> None:
        self._brokers = list(brokers)
        self._quiet = quiet
        self._seed = seed
        self._ports = count(10_000)
        self._lock = threading.Lock()
        self._histories = Histories()
        self._last: dict[tuple[str, str], Session] = {}
        """The latest session of each key at each broker."""
        self._writing: set[tuple[str, str]] = set()
        self._unanswered: dict[tuple[str, str], float] = {}
        """Times of the last writes without an answer, which may take effect after later ones."""
        self._fault = 0.0
        """Time of the last fault, or `NEVER` during one."""
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(each,), daemon=True) for each in range(CLIENTS)]

    def start(self) -> None:
        """Begin."""
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        """End."""
        self._over.set()
        for each in self._threads:
            if each.is_alive():
                each.join(2 * ANSWERS)

    def fault(self, going: bool) -> None:
        """A fault begins or ends: what is registered may vanish with the lease of its broker."""
        now = time.monotonic()
        with self._lock:
            self._fault = NEVER if going else now
            for each in self._last.values():
                each.end_call = min(each.end_call, now)

    def finds(self) -> int:
        """Return the number of consistent finds."""
        return len(self._histories.finds)

    def defects(self) -> list[str]:
        """Return what the model does not permit."""
        with self._lock:
            return self._histories.faults()

    # internal: in a thread

    def _run(self, number: int) -> None:
        rng = random.Random(f"{self._seed}/{number}")
        while not self._over.wait(PAUSE):
            broker, key = rng.choice(self._brokers), f"{RECORDED}{rng.randrange(KEYS)}"
            if rng.random() < 0.5:
                self._get(broker, key)
            elif self._begin_write(broker, key):
                rng.choice((self._put, self._put, self._delete))(broker, key)
                self._writing.discard((key, broker.name))

    def _begin_write(self, broker: Broker, key: str) -> bool:
        """Return True if no other write of a key at a broker is under way: their order would be unknown."""
        with self._lock:
            free = (key, broker.name) not in self._writing
            self._writing.add((key, broker.name))
            return free

    def _put(self, broker: Broker, key: str) -> None:
        with self._lock:
            begun = time.monotonic()
            port = next(self._ports)
            session = self._histories.begin(key, f"192.0.2.7:{port}", begun, broker.name)
            late = begun - self._unanswered.get((key, broker.name), -LASTS) < LASTS
            session.end_call = begun if late else begun + LASTS - MARGIN
            before, self._last[key, broker.name] = self._last.get((key, broker.name)), session
            earlier = [each for (other, _), each in self._last.items() if other == key and each is not session]
            for each in (*earlier, before) if before is not None else earlier:
                # A broker gives up an instance that another one has, and replaces one that it has itself.
                each.end_call = min(each.end_call, begun)
        body = {"hostport": session.value, "ttl": LASTS}
        status, _ = self._ask(broker, "PUT", f"/v1/services/{key}/1?consistent=true", body)
        if status == 0:
            self._unanswered[key, broker.name] = time.monotonic()
        with self._lock:
            if status in (200, 201) and begun - self._fault > self._quiet:
                session.answer = time.monotonic()
                if before is not None and before.answer < NEVER:
                    before.end_answer = session.answer

    def _delete(self, broker: Broker, key: str) -> None:
        with self._lock:
            session = self._last.get((key, broker.name))
            if session is not None:
                session.end_call = min(session.end_call, time.monotonic())
        if self._ask(broker, "DELETE", f"/v1/services/{key}/1")[0] == 0:
            self._unanswered[key, broker.name] = time.monotonic()

    def _get(self, broker: Broker, key: str) -> None:
        begun = time.monotonic()
        status, answer = self._ask(broker, "GET", f"/v1/services/{key}?consistent=true")
        if status == 200:
            now = time.monotonic()
            values = [each["hostport"] for each in answer["services"] if not each.get("restored")]
            with self._lock:
                self._histories.finds.append(Found(broker.name, key, begun, now, values))

    def _ask(self, broker: Broker, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return the status and the content of an answer, 0 without one."""
        try:
            with closing(HTTPConnection(broker.address, HTTP, timeout=ANSWERS)) as connection:
                text = None if body is None else json.dumps(body)
                connection.request(method, path, text, {} if body is None else {"Content-Type": "application/json"})
                answer = connection.getresponse()
                content = answer.read()
                return answer.status, json.loads(content) if content else None
        except (OSError, HTTPException):
            return 0, None
