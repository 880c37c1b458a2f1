"""A watcher for tests, which keeps what it receives and is waited for; and a client that is closed with its test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from broker.cluster.etcd.etcd_client import EtcdClient, connect
from broker.cluster.etcd.etcd_interface import Ended, EtcdError, Event
from tests.patience import PATIENCE

clock: IReactorTime = reactor  # type: ignore[assignment]


class Recorder:
    """A watcher that records: ``calls`` has revision and events of each call, ``end`` reason and text."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, Sequence[Event]]] = []
        self.end: tuple[Ended, str] | None = None
        self._waiting: list[tuple[Callable[[], Any], Deferred[Any]]] = []

    def events(self, revision: int, events: Sequence[Event]) -> None:
        assert self.end is None
        self.calls.append((revision, events))
        self._look()

    def ended(self, reason: Ended, text: str) -> None:
        assert self.end is None
        self.end = (reason, text)
        self._look()

    @property
    def keys(self) -> list[bytes]:
        """The keys of all events in order."""
        return [each.key for _, events in self.calls for each in events]

    def seen(self) -> bool:
        """Return True after the first event."""
        return bool(self.calls)

    def until(self, condition: Callable[[], Any]) -> Deferred[Any]:
        """Fire with the first true value of a condition, which is asked after each call."""
        waiting: Deferred[Any] = Deferred()
        waiting.addTimeout(PATIENCE, reactor)
        self._waiting.append((condition, waiting))
        self._look()
        return waiting

    def is_ended(self) -> Deferred[Any]:
        """Fire with reason and text of the end."""
        return self.until(lambda: self.end)

    def _look(self) -> None:
        for each in list(self._waiting):
            if found := each[0]():
                self._waiting.remove(each)
                each[1].callback(found)


class PatientReactor:
    """The reactor, with time limits that a busy machine does not reach."""

    def __getattr__(self, name: str) -> Any:
        return getattr(reactor, name)

    def callLater(self, delay: float, *called: Any, **named: Any) -> IDelayedCall:
        """Return a delayed call, `PATIENCE` seconds later if its delay is a limit of the client."""
        return clock.callLater(delay + PATIENCE if delay >= 1 else delay, *called, **named)


class ClientCase(TestCase):
    """A test with clients, which are closed at its end; then nothing of them may be left in the reactor."""

    def client(self, *urls: str, in_time: object = False, **options: Any) -> EtcdClient:
        """A client of these endpoints, the first of which is preferred; ``in_time`` if the test reaches its limits."""
        client = connect(reactor if in_time else PatientReactor(), deferToThread, urls, **options)
        while client.endpoint != urls[0]:
            client.change_endpoint()
        self.addCleanup(client.close)
        return client

    async def fails(self, call: Deferred[Any], kind: type[EtcdError], *parts: str) -> Any:
        """Assert that a call fails with an error of that very class, whose sentence has these parts. Returns it."""
        try:
            result = await call
        except EtcdError as error:
            assert type(error) is kind, repr(error)
            for part in parts:
                assert part in str(error), str(error)
            assert "\n" not in str(error)
            return error
        raise AssertionError(f"no failure but {result}")
