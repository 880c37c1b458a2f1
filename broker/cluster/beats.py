"""Beats: each member puts a counter every `beat` seconds, and waits for it in its own watch.

Rules:
- The time from the transaction with a beat to its arrival is the member's *lag*.
- A beat that was written and does not arrive within `SILENCE` seconds proves that the watch is dead, although its
  connection may be open. Nothing else does: etcd sends progress without a quorum too.
- So does a transaction with a beat whose conditions do not hold: etcd answers, and the conditions are those of a table
  that is behind if this goes on for as long.
- Without an answer of etcd nothing is proven: then the publisher has the trouble.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.cluster import layout
from broker.cluster.etcd.interface import Put
from broker.cluster.layout import BeatValue, Keys
from broker.cluster.publisher import Publisher, Unit

SILENCE = 4.0
"""Seconds after which a beat that has been written must have arrived. A slow disk delays etcd for some tenths of a
second; a failover must leave time within the TTL."""


class Beats:
    """Beats of the member ``name``. ``sizes`` returns the numbers of own providers and services; ``silent`` is called
    if the watch is dead."""

    def __init__(
        self,
        clock: IReactorTime,
        publisher: Publisher,
        keys: Keys,
        name: str,
        interval: float,
        lease: Callable[[], int],
        sizes: Callable[[], tuple[int, int]],
        silent: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._publisher = publisher
        self._keys = keys
        self._name = name
        self._interval = interval
        self._lease = lease
        self._sizes = sizes
        self._silent = silent
        self._counter = 0
        self._sent: float | None = None
        """Time of the transaction with the newest beat, None once it has arrived."""
        self._answered: float | None = None
        """Time of the first answer of etcd to a transaction with a beat since the last arrival."""
        self.lag: float | None = None
        """Time in seconds that the last beat took; None if it is unknown."""
        self._timer: IDelayedCall | None = None

    def start(self) -> None:
        """Beat now and every interval. Idempotent: a further call discards beats that were under way."""
        self.stop()
        self._tick()

    def stop(self) -> None:
        """Beat no more."""
        self._sent = self._answered = self.lag = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def arrived(self, value: BeatValue) -> None:
        """The own key has this value in the watch."""
        if value.counter == self._counter and self._sent is not None:
            self.lag = self._clock.seconds() - self._sent
            self._sent = None
        self._answered = None

    # internal

    def _tick(self) -> None:
        now = self._clock.seconds()
        self._timer = self._clock.callLater(self._interval, self._tick)
        if self._sent is not None:
            self.lag = max(self.lag or 0.0, now - self._sent)
        if self._answered is not None and now - self._answered >= SILENCE:
            self._silent()
            return
        self._publisher.mark("beat", self._build)

    def _build(self) -> Sequence[Unit]:
        self._counter += 1
        self._sent = self._clock.seconds()
        providers, services = self._sizes()
        value = BeatValue(self._counter, self.lag, providers, services)
        counter = self._counter

        def done(revision: int) -> None:
            # The event mostly comes before the answer.
            if self._sent is not None and counter == self._counter:
                self._note_answer()

        def lost(_: object) -> None:
            self._note_answer()

        return [Unit((Put(self._keys.beat(self._name), layout.encode(value), self._lease()),), (), done, lost)]

    def _note_answer(self) -> None:
        if self._answered is None:
            self._answered = self._clock.seconds()
