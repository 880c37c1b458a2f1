"""Silence: what happens when a peer gives no sign of life for longer than its lease.

Rules:
- A peer that falls silent by itself is ended at once, as its wire promises.
- *Many* are silent if more than a share of all peers with a lease, and at least `LEAST`, have been so for more than
  `OVERDUE` of their leases: they are counted when the first lease ends. So many at once are rather a network that is
  cut, or a broker that does not receive, than so many deaths. Then a peer whose lease ends becomes *doubtful*.
- The services of a doubtful peer come last in finds, and are neither hidden nor withdrawn (`IRegistry.doubt`).
- They are verified: a connection to the hostport of each, by the rule on outgoing connections. One that is accepted
  counts as a sign of life of the peer; the peer ends when all are refused, since its host is there and its servers are
  not. Any other outcome proves nothing, and the check is repeated after `AGAIN`.
- A message of the peer ends the doubt.
- A peer that stays silent ends after `ttls` leases, whatever the others do: no entry stays for ever.

Peers are known by their *entries*: the wires' own objects, which keep the time of the last sign of life. `suspects` is
bounded by the leases of all wires.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.access.identity import is_local
from broker.core.checks.interfaces import Question
from broker.core.checks.progress import Outcome
from broker.core.checks.rules import CheckKind, CheckRule
from broker.core.interfaces import ILeases, IRegistry
from broker.core.silent_peers import Silent

LEAST = 5
"""Peers that are many at the least: of fewer, the share says nothing."""

OVERDUE = 0.6
"""Share of its lease after which a peer is counted as silent. Peers give three signs of life in a lease, so that those
that were cut off together have been silent for two thirds of theirs when the first lease ends."""

RECOUNT = 0.25
"""Seconds for which a count is valid: 10,000 peers take some 3 ms."""

AT_ONCE = 20
"""Checks at one time. Each takes a descriptor."""

TIMEOUT = 5.0
"""Seconds for a check."""

AGAIN = 2.0
"""Seconds between two checks of one peer, and the longest time between two looks at a doubtful one."""

CHECK = CheckRule(("*",), CheckKind.TCP, timeout=TIMEOUT)
"""The check of a doubtful service."""


Ask = Callable[[Question, Callable[[Outcome], None]], Callable[[], None] | None]
"""Makes one check: see `broker.core.checks.interfaces.Asker`."""


@attrs.frozen
class SilenceSettings:
    """``share`` of silent peers, 0 to 1, above which they are verified; with 1 none is. ``ttls``: leases after which a
    doubtful peer ends."""

    share: float = 0.2
    ttls: float = 5.0


@attrs.define(eq=False)
class _Suspect:
    """A doubtful peer. ``places`` are the hostports that were not refused, each with True if a local peer gave it."""

    entry: Silent
    until: float
    places: deque[tuple[str, bool]]
    cancel: Callable[[], None] | None = None
    timer: IDelayedCall | None = None
    over: bool = False


class Verification:
    """Implementation of `broker.core.silent_peers.Silence`. ``ask`` makes connections."""

    log = Logger()

    def __init__(
        self,
        registry: IRegistry,
        leases: ILeases,
        clock: IReactorTime,
        ask: Ask,
        settings: SilenceSettings | None = None,
    ) -> None:
        self.settings = SilenceSettings() if settings is None else settings
        self._suspects: dict[Silent, _Suspect] = {}
        self.suspects: Collection[Silent] = self._suspects
        self._registry = registry
        self._leases = leases
        self._clock = clock
        self._ask = ask
        self._tables: list[Callable[[], Iterable[Silent]]] = []
        self._counted: float | None = None
        self._silent = self._total = 0
        self._waiting: deque[_Suspect] = deque()
        self._open = 0
        self._events: Counter[str] = Counter()
        self._stopped = False

    # from the wires

    def follow(self, entries: Callable[[], Iterable[Silent]]) -> None:
        self._tables.append(entries)

    def spare(self, entry: Silent, now: float) -> float | None:
        suspect = self._suspects.get(entry)
        if suspect is None:
            if self._stopped or not self._many(now):
                return None
            suspect = self._suspect(entry)
        if now >= suspect.until:
            self._events["ended"] += 1
            return None
        return min(suspect.until, now + AGAIN)

    def heard(self, entry: Silent) -> None:
        if self._end(entry):
            self._events["heard"] += 1
            self._say(entry, None)

    def ended(self, entry: Silent) -> None:
        self._end(entry)

    # for the daemon

    def stop(self) -> None:
        """End all checks. Doubtful peers stay as they are."""
        self._stopped = True
        for entry in list(self._suspects):
            self._end(entry)

    def counts(self) -> Mapping[str, int]:
        """Return counters and a gauge by name."""
        return {
            "silence.doubtful": len(self._suspects),
            **{f"silent_peers.{event}": self._events[event] for event in EVENTS},
        }

    # inside

    def _many(self, now: float) -> bool:
        """Return True if many peers are silent."""
        if self._counted is None or not 0 <= now - self._counted < RECOUNT:
            self._counted = now
            self._silent = self._total = 0
            for entry in self._entries():
                self._total += 1
                self._silent += now - entry.heard > OVERDUE * entry.patience
        return self._silent >= LEAST and self._silent > self.settings.share * self._total

    def _entries(self) -> Iterator[Silent]:
        for entries in self._tables:
            yield from entries()

    def _suspect(self, entry: Silent) -> _Suspect:
        """Make a peer doubtful, and begin to verify it."""
        if not self._suspects:
            self.log.warn(
                "{silent} of {total} peers are silent: they are doubtful, and verified before they end",
                silent=self._silent,
                total=self._total,
            )
        places: dict[tuple[str, bool], None] = {}
        for id in entry.providers:
            provider = self._registry.provider(id)
            for service in () if provider is None else provider.services:
                assert provider is not None
                places[service.hostport, is_local(provider.address)] = None
        suspect = _Suspect(entry, entry.heard + self.settings.ttls * entry.patience, deque(places))
        self._suspects[entry] = suspect
        self._events["doubtful"] += 1
        self._say(
            entry,
            f"no sign of life for {self._leases.now - entry.heard:.0f} s, as of {self._silent} of {self._total} peers",
        )
        self._queue(suspect)
        return suspect

    def _say(self, entry: Silent, reason: str | None) -> None:
        for id in entry.providers:
            self._registry.doubt(id, reason)

    def _end(self, entry: Silent) -> bool:
        """End a doubt. Returns False if there is none."""
        suspect = self._suspects.pop(entry, None)
        if suspect is None:
            return False
        suspect.over = True
        self._close(suspect)
        if suspect.timer is not None:
            suspect.timer.cancel()
            suspect.timer = None
        return True

    # checks

    def _queue(self, suspect: _Suspect) -> None:
        suspect.timer = None
        if suspect.places:
            self._waiting.append(suspect)
            self._begin()

    def _begin(self) -> None:
        while self._waiting and self._open < AT_ONCE:
            suspect = self._waiting.popleft()
            if not suspect.over:
                self._check(suspect)

    def _check(self, suspect: _Suspect) -> None:
        place = suspect.places[0]
        hostport, local = place

        def answered(outcome: Outcome) -> None:
            if not suspect.over and suspect.cancel is not None:
                self._close(suspect)
                self._decide(suspect, outcome)

        self._open += 1
        suspect.cancel = self._ask(Question(CHECK, hostport=hostport, local=local), answered) or _no_effect
        suspect.timer = self._clock.callLater(TIMEOUT, answered, Outcome(False, f"no answer within {TIMEOUT:g} s"))

    def _close(self, suspect: _Suspect) -> None:
        """End the check that runs, if there is one."""
        cancel, suspect.cancel = suspect.cancel, None
        if cancel is not None:
            cancel()
            self._open -= 1
            if suspect.timer is not None and suspect.timer.active():
                suspect.timer.cancel()
            suspect.timer = None
            self._begin()

    def _decide(self, suspect: _Suspect, outcome: Outcome) -> None:
        entry = suspect.entry
        if outcome.alive:
            self._end(entry)
            self._events["proved"] += 1
            self._say(entry, None)
            entry.confirm()
            return
        if outcome.refused:
            suspect.places.popleft()
            if not suspect.places:
                self._end(entry)
                self._events["refused"] += 1
                entry.discard()
                return
            self._queue(suspect)
            return
        suspect.places.rotate(-1)
        suspect.timer = self._clock.callLater(AGAIN, self._queue, suspect)


EVENTS = ("doubtful", "heard", "proved", "refused", "ended")
"""Names of the events that are counted."""


def _no_effect() -> None:
    """End a check that could not be made."""
