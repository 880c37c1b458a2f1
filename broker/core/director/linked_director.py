"""The director of a broker in a cluster: one of the linked directors decides about reservations.

Each director has its farm from its own connections: real Context Servers connect to every director that a broker
announces, so each broker announces them all. Nothing is replicated; a reservation alone needs one decision.

States of a director:

    STARTING   its servers may not be connected yet. After a while: STANDBY
    STANDBY    no director has the claim, and it is the one that decides: it claims; any other one after `UNCLAIMED`
               looks. With the claim: ACTIVE
    ACTIVE     the claim has ended: STANDBY

Rules:
- The claim is a key of etcd under the lease of the broker, like that of a queue: at most one director has it.
- Each director sends its state to the others over the links. The active one of those that are linked decides; without
  one, the first by name does, a standby before one that is starting. It claims, so that a claim changes no decider.
- A request at another director is sent to it, and answered as it answers. It sends `DoReserve` to the server before
  its answer, as always. A request that was sent once is not sent on.
- The director decides itself if there is no answer within `ANSWER_SECONDS`, if the link ends, if the other one has no
  server for the context, and if it has no link.
- A reservation that another one granted is entered here, too, where its server is known: so it counts if this director
  must decide later, and a context that is not open yet has its server. The one that decides sends each to all others
  before its answer; a kill within that turn of its loop alone may lose one.
- In a partition each side decides. Two servers that open one context are resolved as in one director, by all alike.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from secrets import randbits
from typing import Any, Union

import attrs
import msgspec
from twisted.internet.defer import Deferred, TimeoutError, maybeDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from broker.core.cluster.cluster_interfaces import ILinks, IMembers, IQueueOwners, Member, QueueClaim
from broker.core.director.director import Director
from broker.core.director.director_interfaces import Denied, DirectorSettings, Granted, Request
from broker.core.director.farm_state import MAX_RESERVATIONS_EACH
from broker.core.director.placement import NO_SERVER, check_names
from broker.core.director.reservations import EACH_CONNECTION
from broker.core.director.returning import WITHIN
from broker.core.errors import Reason, Refusal, at_limit
from broker.core.model import BROKER, Service

CHANNEL = "directors"
"""The channel of the links between brokers. It is not lossy: what a director says of itself must arrive."""

CLAIM = "elkobroker.director", "active"
"""Space and name of the claim, in the manner of a queue's."""

CLAIM_SECONDS = 1.0
"""Seconds between two attempts to claim, and between two checks of the claim."""

UNCLAIMED = 3
"""Checks without a claim after which a director claims, even if another one is active: that one may have lost etcd."""

ANSWER_SECONDS = 2.0
"""Seconds within which another director must answer; for as long, no more requests are sent to one that did not."""

DECIDE_SECONDS = 1.5
"""Seconds after which a request of another director that waits for a recorded server is given up here. With less than
`ANSWER_SECONDS`, at most one of the two reserves a place."""

MAX_ASKED = 5_000
"""Requests that wait for the answers of other directors: half of what the queue of a link takes. More are decided
here."""

MAX_SERVICES = 1_000
"""Services that one director may announce: some for each of its listeners."""


class State(enum.IntEnum):
    """State of a director, in the order in which directors decide."""

    STARTING = 0
    STANDBY = 1
    ACTIVE = 2


# Messages between directors: a JSON array in one frame. A newer broker may append members, which an older one ignores.


class _Record(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One message. ``tag`` is the first member."""


class Announced(msgspec.Struct, frozen=True, array_like=True):
    """A listener of a director, as other machines reach it."""

    name: str
    hostport: str
    protocol: str
    label: str | None


class Hello(_Record, frozen=True, gc=False, tag="hello"):
    """A director is here. ``instance`` is random for each start."""

    instance: int
    state: int
    services: list[Announced]


class Bye(_Record, frozen=True, gc=False, tag="bye"):
    """The director has ended."""


class Ask(_Record, frozen=True, gc=False, tag="ask"):
    """A request. ``requester`` is the number of its connection; the other members are those of `Request`."""

    number: int
    requester: int
    protocol: str
    context: str
    user: str | None
    internal: bool
    most: int


class Grant(_Record, frozen=True, gc=False, tag="grant"):
    """The answer of a request: the members of `Granted`."""

    number: int
    context: str
    hostport: str
    reservation: str


class Deny(_Record, frozen=True, gc=False, tag="deny"):
    """The other answer. ``context`` is None and ``reason`` a code for a refusal that is no `Denied`."""

    number: int
    context: str | None
    text: str
    reason: str


class Placed(_Record, frozen=True, gc=False, tag="placed"):
    """A reservation that the sender has granted, with the members of `Ask` and `Grant`; ``place`` is the context."""

    requester: int
    protocol: str
    context: str
    user: str | None
    internal: bool
    most: int
    place: str
    hostport: str
    reservation: str


_decode = msgspec.json.Decoder(Union[Hello, Bye, Ask, Grant, Deny, Placed]).decode  # noqa: UP007
_encode = msgspec.json.Encoder().encode
_REASONS = {reason.code: reason for reason in Reason}


@attrs.define(eq=False)
class _Peer:
    """Another director. Nothing is sent to it before ``again``, a time of the clock."""

    instance: int
    state: State
    again: float = 0.0


@attrs.frozen(eq=False)
class _Asked:
    """A request that another director is to answer."""

    broker: str
    request: Request
    answer: Deferred[Granted]
    timer: IDelayedCall


class LinkedDirector(Director):
    """The implementation of `IDirector` for a broker of a cluster.

    ``changed`` is called after a change of `elsewhere`; ``warm`` is the time after the start in which this director
    does not claim, in seconds: Context Servers may take so long to return. It is the
    `broker.core.cluster.cluster_interfaces.LinkReceiver` of its channel.
    """

    def __init__(
        self,
        clock: IReactorTime,
        settings: DirectorSettings,
        members: IMembers,
        owners: IQueueOwners,
        links: ILinks,
        changed: Callable[[], None],
        warm: float = WITHIN,
    ) -> None:
        super().__init__(clock, settings)
        self._clock = clock
        self._members = members
        self._owners = owners
        self._links = links
        self._changed = changed
        self._here = members.name
        self._instance = randbits(53)
        self.state = State.STARTING
        self._claiming = False
        self._unclaimed = 0
        """Looks in which no director had the claim."""
        self._ended = False
        self._peers: dict[str, _Peer] = {}
        """Directors with an open link."""
        self._services: list[Announced] = []
        self._elsewhere: dict[str, tuple[int, list[Announced]]] = {}
        """The instance of each other director, and its listeners."""
        self._asked: dict[int, _Asked] = {}
        self._count = 0
        """The last number of a request or a requester."""
        self._waiting: Counter[Hashable] = Counter()
        """Requests in `_asked` of each requester."""
        self._requesters: OrderedDict[Hashable, tuple[int, float]] = OrderedDict()
        """Numbers of requesters, and the times at which all their reservations elsewhere have ended, in this order."""
        self._forwarded = self._unanswered = self._invalid = 0
        links.serve(CHANNEL, self)
        self._watches = [owners.watch_claims(self._claim_changed), members.watch_members(self._member_changed)]
        self._warm: IDelayedCall | None = clock.callLater(warm, self._is_warm)
        self._look_again: IDelayedCall | None = clock.callLater(CLAIM_SECONDS, self._look)

    # Of `IDirector`

    def reserve(self, request: Request) -> Granted | Deferred[Granted]:
        decider = self.decider
        if decider == self._here or len(self._asked) >= MAX_ASKED:
            return self._reserve_here(request)
        check_names(request)
        mine = self._waiting[request.requester]
        if mine >= (MAX_RESERVATIONS_EACH if request.internal else request.most):
            text = f"too many reservations: {mine} requests of this connection wait for an answer"
            raise at_limit(text, "" if request.internal else EACH_CONNECTION)
        self._count = number = self._count + 1
        if not self._send(
            decider,
            Ask(
                number,
                self._number(request.requester),
                request.protocol,
                request.context,
                request.user,
                request.internal,
                request.most,
            ),
        ):
            return self._reserve_here(request)
        self._forwarded += 1
        self._waiting[request.requester] += 1
        timer = self._clock.callLater(ANSWER_SECONDS, self._late, number)
        self._asked[number] = _Asked(decider, request, Deferred(), timer)
        return self._asked[number].answer

    def reserved(self, requester: Hashable) -> int:
        return super().reserved(requester) + self._waiting[requester]

    def counts(self) -> Mapping[str, int]:
        return {
            **super().counts(),
            "forwarded": self._forwarded,
            "unanswered": self._unanswered,
            "invalid": self._invalid,
            "active": int(self.state is State.ACTIVE),
            "directors": len(self._peers),
        }

    # For the wire

    @property
    def decider(self) -> str:
        """The name of the broker whose director decides about requests here."""
        if self._ended:
            return self._here
        now = self._clock.seconds()
        present = [(-peer.state, name) for name, peer in self._peers.items() if peer.again <= now]
        return min([(-self.state, self._here), *present])[1]

    def announce(self, services: Sequence[Service]) -> None:
        """Announce the listeners of this director at the other brokers."""
        announced = [Announced(each.name, each.hostport, each.protocol, each.label) for each in services]
        if announced != self._services:
            self._services = announced
            self._greet()

    def elsewhere(self) -> Sequence[Service]:
        """Return the listeners of the other directors, as services of the broker."""
        return [
            Service(each.name, each.hostport, BROKER, each.protocol, each.label)
            for _, services in self._elsewhere.values()
            for each in services
        ]

    def retire(self) -> None:
        """Leave the claim, and all decisions about servers elsewhere, to the other directors. Idempotent."""
        if self._ended:
            return
        self._links.broadcast(CHANNEL, (_encode(Bye()),))
        self._ended = True
        for call in (self._warm, self._look_again):
            if call is not None:
                call.cancel()
        self._warm = self._look_again = None
        if self.state is State.ACTIVE:
            self._release()
        for number in tuple(self._asked):
            self._decide(number)

    def stop(self) -> None:
        """Retire, since the broker stops: changes of the other directors are ignored from now on. Idempotent."""
        self.retire()
        self._changed = _nothing
        while self._watches:
            self._watches.pop().cancel()

    # The claim

    def _is_warm(self) -> None:
        self._warm = None
        self._become(State.STANDBY)
        self._look_now()

    def _claim_changed(self, space: str, name: str, claim: QueueClaim | None) -> None:
        if (space, name) == CLAIM:
            self._look_now()

    def _look(self) -> None:
        self._look_again = self._clock.callLater(CLAIM_SECONDS, self._look)
        self._unclaimed = 0 if self._owners.claim_of(*CLAIM) else self._unclaimed + 1
        self._look_now()

    def _look_now(self) -> None:
        """Enter the state that the claim implies, or claim."""
        if self._ended:
            return
        claim = self._owners.claim_of(*CLAIM)
        if claim is not None and claim.owner == self._here:
            if self.state is State.STARTING:
                self._release()  # of the time before a restart: the others know their farm
            else:
                self._become(State.ACTIVE)
            return
        if self.state is State.ACTIVE:
            self._become(State.STANDBY)
        if claim is not None or self.state is not State.STANDBY or self._claiming:
            return
        if self.decider == self._here or self._unclaimed > UNCLAIMED:
            self._claiming = True
            self._owners.claim(*CLAIM).addErrback(_unavailable).addBoth(self._claimed)

    def _claimed(self, result: object) -> object:
        self._claiming = False
        if self._ended:
            self._release()
        return result

    def _release(self) -> None:
        self._owners.release(*CLAIM).addErrback(_unavailable)

    def _become(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            self._greet()

    # Called by the links

    def up(self, broker: str) -> None:
        """Tell a broker that this director is here."""
        if not self._ended:
            self._send(broker, self._hello())

    def down(self, broker: str) -> None:
        """Decide about the requests that were sent to that director."""
        self._lost(broker)
        if self._members.member(broker) is None:
            self._forget(broker)

    def receive(self, broker: str, frames: Sequence[bytes]) -> None:
        """Take a message of another director."""
        try:
            record = _decode(frames[0])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError):
            self._invalid += 1
            return
        if isinstance(record, Hello):
            self._hello_from(broker, record)
        elif isinstance(record, Bye):
            self._lost(broker)
            self._forget(broker)
        elif isinstance(record, Ask):
            self._answer(broker, record)
        elif isinstance(record, Placed):
            self._take_placed(broker, record)
        else:
            self._take_answer(broker, record)

    def _member_changed(self, name: str, member: Member | None) -> None:
        if member is None and name not in self._peers:
            self._forget(name)

    def _hello_from(self, broker: str, hello: Hello) -> None:
        try:
            state = State(hello.state)
        except ValueError:
            state = State.STARTING
        self._peers[broker] = _Peer(hello.instance, state)
        services = hello.services[:MAX_SERVICES]
        instance, known = self._elsewhere.get(broker, (hello.instance, []))
        if instance != hello.instance:
            # Real Context Servers connect to a director that was restarted when they find it again.
            self._forget(broker)
            known = []
        self._elsewhere[broker] = hello.instance, services
        if services != known:
            self._changed()

    def _forget(self, broker: str) -> None:
        """Withdraw the listeners of a director that has ended."""
        _, services = self._elsewhere.pop(broker, (0, []))
        if services:
            self._changed()

    def _lost(self, broker: str) -> None:
        self._peers.pop(broker, None)
        for number in [number for number, asked in self._asked.items() if asked.broker == broker]:
            self._decide(number)

    def _hello(self) -> Hello:
        return Hello(self._instance, self.state, self._services)

    def _greet(self) -> None:
        """Tell all others the state and the listeners of this director."""
        if not self._ended:
            self._links.broadcast(CHANNEL, (_encode(self._hello()),))

    def _send(self, broker: str, record: _Record) -> bool:
        return self._links.send(broker, CHANNEL, (_encode(record),))

    # Requests to another director

    def _number(self, requester: Hashable) -> int:
        """Return the number under which the other directors know a requester."""
        now = self._clock.seconds()
        # A reservation elsewhere ends within its time: after that, nothing there bears the number.
        while self._requesters and next(iter(self._requesters.values()))[1] <= now:
            self._requesters.popitem(last=False)
        number, _ = self._requesters.pop(requester, (0, 0.0))
        if not number:
            self._count = number = self._count + 1
        self._requesters[requester] = number, now + ANSWER_SECONDS + self._reservations.seconds
        return number

    def _end(self, number: int) -> _Asked | None:
        asked = self._asked.pop(number, None)
        if asked is not None:
            if asked.timer.active():
                asked.timer.cancel()
            self._waiting[asked.request.requester] -= 1
            if not self._waiting[asked.request.requester]:
                del self._waiting[asked.request.requester]
        return asked

    def _late(self, number: int) -> None:
        peer = self._peers.get(self._asked[number].broker)
        if peer is not None:
            peer.again = self._clock.seconds() + ANSWER_SECONDS
        self._decide(number)

    def _decide(self, number: int, refused: bool = False) -> None:
        """Decide here about a request without an answer, or, if ``refused``, for which the other has no server."""
        asked = self._end(number)
        if asked is not None:
            self._unanswered += not refused
            if not asked.answer.called:
                answer: Deferred[Any] = maybeDeferred(self._reserve_here, asked.request)
                answer.chainDeferred(asked.answer)

    def _take_answer(self, broker: str, answer: Grant | Deny) -> None:
        asked = self._asked.get(answer.number)
        if asked is None or asked.broker != broker:
            return  # it is late
        if isinstance(answer, Deny) and answer.context is not None and answer.text == NO_SERVER:
            self._decide(answer.number, refused=True)
            return
        self._end(answer.number)
        if isinstance(answer, Deny):
            denied = answer.context is not None
            reason = _REASONS.get(answer.reason, Reason.FORBIDDEN)
            asked.answer.errback(Denied(answer.context or "", answer.text) if denied else Refusal(reason, answer.text))
            return
        granted = Granted(answer.context, answer.hostport, answer.reservation)
        self._placer.enter(asked.request, granted)
        asked.answer.callback(granted)

    # Requests of another director

    def _request_of(self, broker: str, asked: Ask | Placed) -> Request | None:
        """Return the request in a message of another director; None if it is no neighbour any more."""
        peer = self._peers.get(broker)
        if peer is None:
            return None
        requester = broker, peer.instance, asked.requester
        return Request(requester, asked.protocol, asked.context, asked.user, asked.internal, asked.most)

    def _answer(self, broker: str, ask: Ask) -> None:
        request = self._request_of(broker, ask)
        if request is None:
            return

        def granted(value: Granted) -> None:
            self._send(broker, Grant(ask.number, value.context, value.hostport, value.reservation))

        def failed(failure: Failure) -> None:
            if failure.check(TimeoutError):
                return  # the other director decides
            failure.trap(Refusal)
            refusal: Any = failure.value
            context = refusal.context if isinstance(refusal, Denied) else None
            self._send(broker, Deny(ask.number, context, refusal.text, refusal.reason.code))

        decision = maybeDeferred(self._reserve_here, request, broker)
        if not decision.called:
            decision.addTimeout(DECIDE_SECONDS, self._clock)
        decision.addCallbacks(granted, failed)

    # Reservations that are granted here, for the others

    def _reserve_here(self, request: Request, asker: str = "") -> Granted | Deferred[Granted]:
        """Decide about a request, and send a reservation to the other directors but the one that asks."""

        def place(granted: Granted) -> Granted:
            others = [name for name in self._peers if name != asker and not self._ended]
            if others:
                placed = Placed(
                    self._number(request.requester),
                    request.protocol,
                    request.context,
                    request.user,
                    request.internal,
                    request.most,
                    granted.context,
                    granted.hostport,
                    granted.reservation,
                )
                for name in others:
                    self._send(name, placed)
            return granted

        result = super().reserve(request)
        return result.addCallback(place) if isinstance(result, Deferred) else place(result)

    def _take_placed(self, broker: str, placed: Placed) -> None:
        """Enter a reservation that another director has granted."""
        request = self._request_of(broker, placed)
        if request is not None:
            self._placer.enter(request, Granted(placed.place, placed.hostport, placed.reservation))


def _unavailable(failure: Failure) -> None:
    """Ignore that etcd cannot be reached: the next look tries again."""
    failure.trap(Refusal)


def _nothing() -> None:
    """Take no note of a change."""
