"""The rule on silence: the decision on peers that give no sign of life for longer than they should.

Rules:
- A peer with a lease that has missed signs of life for a part of it is *doubtful* (`silent_peers.DOUBTFUL`). Its
  services come last in finds, and are neither hidden nor withdrawn (`IRegistry.doubt`). A message ends the doubt.
- A peer that falls silent by itself ends with its lease, as its wire promises.
- *Many* are silent if more than a share of all peers with a lease, and at least `LEAST`, have been so for long enough
  (`silent_peers.OVERDUE`): they are counted when the first lease ends. So many at once are rather a cut network, or a
  broker that does not receive, than so many deaths. Then a peer whose lease ends stays doubtful, and is verified.
- To verify is to connect to the hostport of each of its services, by the rule on outgoing connections. A connection
  that is accepted ends the doubt, and begins the lease again; the peer ends when all are refused, since its host is
  there and its servers are not. Any other outcome proves nothing, and the check is repeated after `AGAIN`.
- A provider that is bound to a connection may lose it in such a time: the kernel ends those of hosts that it cannot
  reach. If the check of the provider failed before, or was in doubt, and so did those of many others, it stays
  registered as an *orphan*, doubtful, and is verified like a peer with a lease of `ORPHAN_LEASE`. It leaves when
  another provider offers a service at the same place, here or at another broker: that is its successor.
- A peer that stays silent ends after ``ttls`` leases, whatever the others do. Connections count for `PROVED_FOR` after
  its last message: what accepts them may be another program by then. So no entry stays for ever.
- A silent peer at which connections are accepted is a reason to verify others for ``ttls`` leases after its last
  message. A network that loses messages silences others too in that time, and those are reasons of their own. Without
  that bound, registrations with the endpoint of another program would keep dead peers of others for `PROVED_FOR`.

Peers are known by their *entries*: the wires' own objects, which keep the time of the last sign of life. `suspects` is
bounded by the leases of all wires.

The file is longer than others: all its rules change the state of one suspect.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.access.identity import is_local
from broker.core.checks.check_rules import CheckKind, CheckRule, Outcome, Question
from broker.core.interfaces import ILease, ILeases, IRegistry, IWait
from broker.core.model import BAD_STATES, Change, Kind, Service
from broker.core.silent_peers import DOUBTFUL, OVERDUE, Silent, silent_for

LEAST = 5
"""Peers that are many at the least: of fewer, the share has no meaning."""

RECOUNT = 0.25
"""Seconds for which a count is valid: 10,000 peers take some 3 ms."""

EACH_TICK, TICKS = 200, 0.05
"""Peers that become doubtful in one tick of the leases, some 5 ms, and the seconds until the next ones do."""

AT_ONCE = 20
"""Checks at one time. Each takes a descriptor."""

TIMEOUT = 5.0
"""Seconds for a check."""

ORPHAN_PACE, ORPHAN_LEASE = 15.0, 30.0
"""Seconds in which real servers connect again, and those of the lease of a provider without its connection."""

AGAIN = 2.0
"""Seconds between two checks of one peer, and the longest time between two checks of a doubtful one."""

PROVED_FOR = 3_600.0
"""Seconds from the last message of a peer for which connections are signs of life, and ``ttls`` leases where these are
longer: the time in which people mend a network whose other direction works."""

CHECK = CheckRule(("*",), CheckKind.TCP, timeout=TIMEOUT)
"""The check of a doubtful service."""


Ask = Callable[[Question, Callable[[Outcome], None]], Callable[[], None] | None]
"""Makes one check: see `broker.core.checks.check_rules.Asker`."""


@attrs.frozen
class SilenceSettings:
    """``share`` of silent peers, 0 to 1, above which they are verified; with 1 none is. ``ttls``: leases after which a
    doubtful peer ends: less than two leave no time to verify it."""

    share: float = 0.2
    ttls: float = 5.0


@attrs.define(eq=False)
class _Suspect:
    """A doubtful peer, or one whose doubt a connection has ended (``proved``), until its next message.

    ``message`` is the lifetime of its last message, ``until`` its end without a sign of life. ``places`` are the
    hostports that were not refused, each with True if a local peer gave it. ``verified``: its lease has ended, and its
    silence is one of many.
    """

    entry: Silent
    message: float
    until: float
    places: deque[tuple[str, bool]]
    verified: bool = False
    proved: bool = False
    cancel: Callable[[], None] | None = None
    timer: IDelayedCall | None = None
    over: bool = False


_Place = tuple[str, str, str]
"""Name, protocol and host:port of a service."""


class _Orphan:
    """A provider that has lost its connection. Its lease calls `check`. ``session`` is referenced until its end.
    ``places`` are those of its services."""

    pace = ORPHAN_PACE
    patience = ORPHAN_LEASE

    def __init__(
        self, owner: Verification, provider: int, session: object, places: Collection[_Place], now: float
    ) -> None:
        self._owner = owner
        self._session = session
        self.heard = now
        self.providers = (provider,)
        self.places = places
        self.lease: ILease | None = None

    def check(self, now: float) -> float | None:
        """End the orphan at the end of its time; see `broker.core.interfaces.Leased`."""
        due = self.heard + self.patience
        if now < due:
            return due
        again = self._owner.spare_orphan(self, now)
        if again is None:
            self.lease = None
            self.discard()
        return again

    def confirm(self) -> None:
        """Begin its lease again, since a connection was accepted."""
        self.heard = self._owner.now()

    def discard(self) -> None:
        """Remove the provider from the registry."""
        self._owner.drop_orphan(self)


class _Count:
    """The number of silent peers of one kind, and of all of that kind, by a function of the lifetime."""

    def __init__(self, count: Callable[[float], tuple[int, int]]) -> None:
        self._count = count
        self._at: float | None = None
        self.silent = self.total = 0

    def are_many(self, now: float, share: float) -> bool:
        """Return True if many are silent: more than a share, by a count that is valid for `RECOUNT`."""
        if self._at is None or not 0 <= now - self._at < RECOUNT:
            self._at = now
            self.silent, self.total = self._count(now)
        return self.silent >= LEAST and self.silent > share * self.total

    def __str__(self) -> str:
        return f"{self.silent} of {self.total} peers"


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
        self.draining = False
        """True while the broker drains: it refuses the signs of life of its peers, so that their silence is its own
        doing. They end with their leases, except those that are verified already."""
        self._suspects: dict[Silent, _Suspect] = {}
        self.suspects: Collection[Silent] = self._suspects
        self._registry = registry
        self._leases = leases
        self._clock = clock
        self._ask = ask
        self._tables: list[Callable[[], Iterable[Silent]]] = []
        self._leased = _Count(partial(self._count_entries, proved=False))
        """Peers with a lease, less those whose silence is no reason to verify others any more."""
        self._all_leased = _Count(partial(self._count_entries, proved=True))
        """All peers with a lease: for those at which connections were accepted."""
        self._bound = _Count(lambda _: registry.silent_providers())
        """Providers, most of which are bound to a connection, by their checks."""
        self._verified = 0
        """The number of suspects that are verified."""
        self._tick = -1.0
        """The lifetime of the last tick in which peers became doubtful, and their number in it."""
        self._new = 0
        self._orphans: dict[int, _Orphan] = {}
        self._orphaned: dict[_Place, dict[_Orphan, None]] = {}
        """The same by place. The registry does not list a service that a successor at another broker has superseded."""
        self._watch: IWait | None = None
        """The watch of changes that end orphans, while there are any."""
        self._waiting: deque[_Suspect] = deque()
        self._open = 0
        self._events: Counter[str] = Counter()
        self._stopped = False

    # from the wires

    def follow(self, entries: Callable[[], Iterable[Silent]]) -> None:
        self._tables.append(entries)

    def review(self, entry: Silent, now: float, slack: float) -> float | None:
        began = entry.heard + slack
        if now >= began + entry.patience:
            return self._spare(entry, now)
        if entry not in self._suspects and not self._stopped and not self.draining:
            due = began + silent_for(entry, DOUBTFUL)
            if now < due:
                return due
            later = self._later(now)
            if later is not None:
                return min(later, began + entry.patience)
            self._doubt(entry, f"no sign of life for {now - entry.heard:.1f} s")
        return began + entry.patience

    def missed(self, entry: Silent, reason: str) -> None:
        if entry not in self._suspects and not self._stopped:
            self._doubt(entry, reason)

    def doubtful(self, entry: Silent) -> bool:
        suspect = self._suspects.get(entry)
        return suspect is not None and not suspect.proved

    def heard(self, entry: Silent) -> None:
        suspect = self._end(entry)
        if suspect is not None and not suspect.proved:
            self._events["heard"] += 1
            self._say(entry, None)

    def ended(self, entry: Silent) -> None:
        self._end(entry)

    def orphaned(self, provider: int, session: object) -> bool:
        services = self._registry.services_of(provider)
        check = self._registry.check_of(services[0]) if services else None
        silent = check is not None and check.state in BAD_STATES
        now = self._leases.moment()
        if self._stopped or not silent or not self._bound.are_many(now, self.settings.share):
            return False
        orphan = self._orphans[provider] = _Orphan(self, provider, session, {_place(each) for each in services}, now)
        for place in orphan.places:
            self._orphaned.setdefault(place, {})[orphan] = None
        if self._watch is None:
            self._watch = self._registry.watch(self._changed, (Kind.OFFERED, Kind.LEFT))
        self._suspect(orphan, self._bound)
        orphan.lease = self._leases.hold(orphan, orphan.heard + ORPHAN_LEASE)
        return True

    # from orphans

    def now(self) -> float:
        """Return the lifetime."""
        return self._leases.moment()

    def spare_orphan(self, orphan: _Orphan, now: float) -> float | None:
        """Decide about an orphan, as `review` does about an entry of a wire."""
        suspect = self._suspects.get(orphan)
        if suspect is None or not suspect.verified:
            if self._stopped or not self._bound.are_many(self._leases.moment(), self.settings.share):
                return None
            self._suspect(orphan, self._bound)
        return self._spare(orphan, now)

    def drop_orphan(self, orphan: _Orphan) -> None:
        """Remove an orphan from the registry."""
        (provider,) = orphan.providers
        if self._forget(orphan):
            self._registry.leave(provider, "expired")

    # for the daemon

    def stop(self) -> None:
        """End all checks. Doubtful peers stay as they are."""
        self._stopped = True
        for orphan in list(self._orphans.values()):
            self._forget(orphan)
        for entry in list(self._suspects):
            self._end(entry)

    def counts(self) -> Mapping[str, int]:
        """Return counters and a gauge by name."""
        return {
            "silence.doubtful": sum(not each.proved for each in self._suspects.values()),
            **{f"silent_peers.{event}": self._events[event] for event in EVENTS},
        }

    # inside

    def _spare(self, entry: Silent, now: float) -> float | None:
        """Decide about an entry whose lease has ended."""
        suspect = self._suspects.get(entry)
        if suspect is None or not suspect.verified:
            count = self._leased if suspect is None or not suspect.proved else self._all_leased
            many = not self._stopped and not self.draining and count.are_many(now, self.settings.share)
            later = self._later(now) if many else None
            if later is not None:
                return later
            if many:
                suspect = self._suspect(entry, count)
        if suspect is None or not suspect.verified or now >= suspect.until:
            self._events["ended"] += suspect is not None and not suspect.proved
            return None
        return min(suspect.until, now + AGAIN)

    def _doubt(self, entry: Silent, reason: str) -> None:
        """Make a peer doubtful that is silent by itself, as far as is known."""
        self._suspects[entry] = _Suspect(entry, entry.heard, 0.0, deque())
        self._events["doubtful"] += 1
        self._say(entry, reason)

    def _forget(self, orphan: _Orphan) -> bool:
        """Remove an orphan from this table. Returns False if it is not there."""
        (provider,) = orphan.providers
        if self._orphans.pop(provider, None) is None:
            return False
        for place in orphan.places:
            del self._orphaned[place][orphan]
            if not self._orphaned[place]:
                del self._orphaned[place]
        self._end(orphan)
        if orphan.lease is not None:
            orphan.lease.cancel()
            orphan.lease = None
        if not self._orphans and self._watch is not None:
            self._watch.cancel()
            self._watch = None
        return True

    def _changed(self, change: Change) -> None:
        """End the orphans that have left the registry, or have a successor."""
        if change.kind is Kind.LEFT:
            gone = self._orphans.get(change.provider)
            if gone is not None:
                self._forget(gone)
            return
        service = change.subject
        assert isinstance(service, Service)
        if change.provider in self._orphans:
            return
        for orphan in list(self._orphaned.get(_place(service), ())):
            if self._forget(orphan):
                self._events["heard"] += 1
                self._registry.leave(*orphan.providers)

    def _later(self, now: float) -> float | None:
        """Return the lifetime at which a peer becomes doubtful, None for now: thousands do so over several ticks."""
        if self._tick != now:
            self._tick, self._new = now, 0
        slices, self._new = self._new // EACH_TICK, self._new + 1
        return now + slices * TICKS if slices else None

    def _count_entries(self, now: float, proved: bool) -> tuple[int, int]:
        """Return the number of silent entries of all wires, and that of all. Without ``proved``, entries at which
        connections were accepted are not silent after ``ttls`` leases without a message."""
        silent = total = 0
        for entries in self._tables:
            for entry in entries():
                total += 1
                if now - entry.heard > silent_for(entry, OVERDUE):
                    suspect = None if proved else self._suspects.get(entry)
                    silent += suspect is None or not suspect.proved or now < self._end_of(entry, suspect.message)
        return silent, total

    def _end_of(self, entry: Silent, sign: float) -> float:
        """Return the end of an entry after a last sign of life."""
        return sign + self.settings.ttls * entry.patience

    def _suspect(self, entry: Silent, count: _Count) -> _Suspect:
        """Verify a peer, because of that count. It becomes doubtful unless it is."""
        if not self._verified:
            self.log.warn(
                "{silent} of {total} peers are silent: they are doubtful, and verified before they end",
                silent=count.silent,
                total=count.total,
            )
        places: dict[tuple[str, bool], None] = {}
        for id in entry.providers:
            provider = self._registry.provider(id)
            for service in () if provider is None else provider.services:
                assert provider is not None
                places[service.hostport, is_local(provider.address)] = None
        until = self._end_of(entry, entry.heard)
        before = self._end(entry)
        message = entry.heard if before is None else before.message
        last = max(self._end_of(entry, message), message + PROVED_FOR)
        suspect = _Suspect(entry, message, min(until, last), deque(places), verified=True)
        self._suspects[entry] = suspect
        self._verified += 1
        self._events["doubtful"] += before is None or before.proved
        self._say(entry, f"no sign of life for {self._leases.now - entry.heard:.0f} s, as of {count}")
        self._queue(suspect)
        return suspect

    def _say(self, entry: Silent, reason: str | None) -> None:
        for id in entry.providers:
            self._registry.doubt(id, reason)

    def _end(self, entry: Silent) -> _Suspect | None:
        """Forget a suspect, and return it; None if there is none."""
        suspect = self._suspects.pop(entry, None)
        if suspect is not None:
            suspect.over = True
            self._verified -= suspect.verified
            self._close(suspect)
            if suspect.timer is not None:
                suspect.timer.cancel()
                suspect.timer = None
        return suspect

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
            entry.confirm()  # a sign of life to its wire, which says so here: the suspect is back after that
            self._suspects[entry] = _Suspect(entry, suspect.message, suspect.until, deque(), proved=True)
            return
        if outcome.closed_port:
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


def _place(service: Service) -> _Place:
    return service.name, service.protocol, service.hostport


def _no_effect() -> None:
    """End a check that could not be made."""
