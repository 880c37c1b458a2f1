"""The clients of the data flow: what is known of each, and how they are sent to.

A client is one DEALER. It has a reader flow, a writer flow, or both; they share its connection, and end together.

Rules:
- What a client is sent arrives in the order in which it is handed to the transport. A Content is handed over at once or
  refused: none ever waits here. So after the answer to a Dismiss there is none that could still come.
- An *answer* (Response, Confirm, Reject, Pong) that finds no room waits. Later answers wait behind it, and no Content
  overtakes it: the reader is *held* until all are out. Whose unread answers are too many is ended, since a lost answer
  would keep a client waiting for ever.
- A Content has the reader's next sequence, from 1 on. One that is not sent has used its number up.
- Whoever had no room is tried again after a while: with the answers that wait, or with a Ping if none does. When that
  goes out there is room again, and the profile of its reader hears of it. If it does not, and nothing else went out
  either, the reader is held until it does: to be refused costs more than to send, and whoever does not read at all must
  cost the others nothing.
- Where there is no room for a Content to many, it is tried twice; the transport is given a moment before, if that was
  not done lately.
- A client is ended when its reader missed too many Contents, not counting those from before a long time without a
  loss; and when there was no room for it at all for too long.
- Nobody is ended in the middle of a delivery, but with the next tick of the leases: profiles are not called back while
  they send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from twisted.logger import Logger

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ILease, ILeases
from broker.session.mtl.grants import Confirm, Grant
from broker.session.mtl.settings import Settings
from broker.session.router import Complaints, NumberingRouter, Part, Sent
from broker.wire.mtl import data as wire

WIRE = "mtl"
"""The name of the wire in counters and logs."""

MAX_ANSWERS = 256
"""Answers that may wait for a client that does not read, beside the thousand messages that libzmq holds for it, and
the thousands that the kernel does. Each takes some 150 bytes."""

FIRST_PAUSE = 0.025
"""Seconds after which a client that had no room is tried again. The thousand messages that wait for it by then keep it
busy for about as long. The pause doubles each time."""

LONGEST_PAUSE = 0.2
"""Seconds; see `FIRST_PAUSE`."""

BREATHS = 5
"""Milliseconds for which a Content waits for room: libzmq's thread may have had no processor for about as long, in
which a quick writer fills any queue."""

BREATHE_EVERY = 0.1
"""Seconds in which that is done once: readers that are slow may cost the others a twentieth of the time at most."""

_SEQUENCE_AT = 1
"""Where the sequence stands in a header: behind the type."""


class Keeper(Protocol):
    """Where a client belongs."""

    def check(self, client: Client, now: float) -> float | None:
        """Do what is due for it."""


class Client:
    """One DEALER, known by its identity as long as it has a flow."""

    __slots__ = (
        "address",
        "answers",
        "connection",
        "heard",
        "identity",
        "keeper",
        "lease",
        "news",
        "over",
        "reader",
        "sent",
        "writer",
    )

    def __init__(self, keeper: Keeper, identity: bytes, connection: int, address: str, now: float) -> None:
        self.keeper = keeper
        self.identity = identity
        self.connection = connection
        self.address = address
        self.lease: ILease
        self.reader: ReaderFlow | None = None
        self.writer: WriterFlow | None = None
        self.heard = now
        self.news = -1.0
        """The same as ``heard`` while the last that was heard of it is that its connection ended."""
        self.sent = now
        """When it was last sent something other than a Content. Both are in the leases' time."""
        self.answers: deque[Sequence[Part]] = deque()
        """What waits until it reads."""
        self.over = False

    def flows(self) -> list[ReaderFlow | WriterFlow]:
        """Those that it has."""
        return [flow for flow in (self.reader, self.writer) if flow is not None]

    def check(self, now: float) -> float | None:
        """Do what is due."""
        return self.keeper.check(self, now)

    def __str__(self) -> str:
        users = {flow.grant.principal.user for flow in self.flows()}
        return " and ".join(sorted(filter(None, users))) or "somebody without a name"


class ReaderFlow:
    """A flow to a client. See `broker.session.mtl.profile.Reader`."""

    __slots__ = (
        "_voice",
        "address",
        "client",
        "dropped",
        "dropped_at",
        "grant",
        "held",
        "identity",
        "place",
        "sent",
        "sequence",
        "starved",
        "summoned",
        "token",
    )

    def __init__(self, client: Client, grant: Grant, token: str, voice: Voice) -> None:
        self._voice = voice
        self.client = client
        self.grant = grant
        self.token = token
        self.identity = client.identity
        self.address = client.address
        self.held = bool(client.answers)
        self.sent = client.sent
        self.sequence = 0
        self.place: Any = None
        self.summoned: dict[str, None] = {}
        self.dropped = 0
        """Contents that it missed lately, the last of them at ``dropped_at``."""
        self.dropped_at = 0.0
        self.starved = False
        """There was no room for a Content since its profile last heard that there was."""

    def send(self, tail: bytes, body: Part) -> Sent:
        """Send one Content."""
        self.sequence = sequence = self.sequence + 1
        return self._voice.content(self, wire.content_header(sequence, tail), body)


class WriterFlow:
    """A flow from a client. See `broker.session.mtl.profile.Writer`."""

    __slots__ = ("_voice", "address", "client", "confirmed", "grant", "identity", "last", "names", "place", "token")

    def __init__(self, client: Client, grant: Grant, token: str, voice: Voice) -> None:
        self._voice = voice
        self.client = client
        self.grant = grant
        self.token = token
        self.identity = client.identity
        self.address = client.address
        self.place: Any = None
        self.confirmed = grant.confirm is Confirm.FULL
        self.last = -1
        """The highest sequence that came. It counts where Contents are confirmed."""
        self.names: dict[str, str] = {}
        """The resources that its Contents may be for, by what they say."""

    def confirm(self, sequence: int, multiple: bool = False) -> None:
        """Confirm a Content, or all up to it."""
        if self.confirmed:
            self._voice.answer(self.client, wire.confirm(sequence, multiple))

    def reject(self, sequence: int, *, recycle: bool) -> None:
        """Refuse a Content."""
        if self.confirmed:
            self._voice.answer(self.client, wire.reject(sequence, recycle=recycle))
        elif not recycle:
            self._voice.answer(self.client, wire.response(sequence, wire.BAD_REQUEST))


class Voice:
    """All that clients are sent. ``end`` ends a client, and says why."""

    log = Logger()

    def __init__(
        self,
        router: NumberingRouter,
        leases: ILeases,
        complaints: Complaints,
        settings: Settings,
        end: Callable[[Client, str], None],
    ) -> None:
        self._router = router
        self._leases = leases
        self._complaints = complaints
        self.settings = settings
        self._end = end
        self.delivered = 0
        self._full: dict[Client, _Trial] = {}
        """Who had no room."""
        self._breathe_at = 0.0
        self._doomed: dict[Client, str] = {}
        """Who is to be ended, and why."""

    # Contents

    def content(self, reader: ReaderFlow, header: bytes, body: Part) -> Sent:
        """Send one Content to one reader. What becomes of one that is not sent is up to the profile."""
        client = reader.client
        if client.over:
            return Sent.GONE
        if reader.held:
            reader.starved = True
            return Sent.HELD
        sent = self._router.send(reader.identity, (header, body))
        if sent is Sent.SENT:
            reader.sent = self._leases.now
            self.delivered += 1
        elif sent is Sent.FULL:
            reader.starved = True
            self._no_room(client)
        else:
            self.doom(client, "gone")
        return sent

    def fan_out(self, readers: Collection[ReaderFlow], tail: bytes, body: Part) -> None:
        """Send the same Content to many readers. Who has no room for it misses it."""
        header = wire.content_header(0, tail)
        failed = self._router.send_each(readers, header, _SEQUENCE_AT, body, self._leases.now)
        self.delivered += len(readers)
        if failed:
            self.delivered -= len(failed)
            for reader, why in failed:
                if why is Sent.FULL:
                    why = self._patiently(reader, wire.content_header(reader.sequence, tail), body)
                if why is not Sent.SENT:
                    self._missed(reader, why)

    def _patiently(self, reader: ReaderFlow, header: bytes, body: Part) -> Sent:
        """Send a Content for which there was no room, if there is some after a look, or after some moments."""
        now = self._leases.moment()
        breaths = BREATHS if now >= self._breathe_at else 0
        self._router.breathe(False)
        sent = self._router.send(reader.identity, (header, body))
        while sent is Sent.FULL and breaths:
            breaths -= 1
            self._breathe_at = now + BREATHE_EVERY
            self._router.breathe(True)
            sent = self._router.send(reader.identity, (header, body))
        if sent is Sent.SENT:
            reader.sent = self._leases.now
            self.delivered += 1
        return sent

    def _missed(self, reader: ReaderFlow, why: Sent) -> None:
        client = reader.client
        self._complaints.count("mtl_dropped", why.value)
        if client.over:
            return
        if why is Sent.GONE:
            self.doom(client, "gone")
            return
        now = self._leases.now
        if now - reader.dropped_at > self.settings.stuck:
            reader.dropped = 0
        reader.dropped_at = now
        reader.dropped += 1
        reader.starved = True
        if reader.dropped >= self.settings.drops:
            self.doom(client, "slow")
        self._no_room(client)

    # everything else

    def answer(self, client: Client, frames: Sequence[Part]) -> None:
        """Send an answer, or let it wait for room."""
        if client.over:
            return
        if client.answers:
            if len(client.answers) < MAX_ANSWERS:
                client.answers.append(frames)
            else:
                self._complaints.count("mtl_dropped", "answer")
                self.doom(client, "unread")
            return
        sent = self._router.send(client.identity, frames)
        if sent is Sent.SENT:
            client.sent = self._leases.now
        elif sent is Sent.FULL:
            client.answers.append(frames)
            if client.reader is not None:
                client.reader.held = True
            self._no_room(client)
        else:
            self.doom(client, "gone")

    def ping(self, client: Client) -> None:
        """Ask whether it is there, after what waits for it."""
        if client.answers and not self.flush(client):
            return
        if client.over:  # which its profile did
            return
        sent = self._router.send(client.identity, wire.PING)
        if sent is Sent.SENT:
            client.sent = self._leases.now
        elif sent is Sent.FULL:
            self._no_room(client)
        else:
            self.doom(client, "gone")

    # who has no room

    def flush(self, client: Client) -> bool:
        """Send the answers that wait for who had no room, or else a Ping. Returns whether there is room now."""
        waiting = client.answers or deque([wire.PING])
        while waiting:
            sent = self._router.send(client.identity, waiting[0])
            if sent is Sent.FULL:
                return False
            if sent is Sent.GONE:
                self.doom(client, "gone")
                return False
            waiting.popleft()
        client.sent = self._leases.now
        del self._full[client]
        reader = client.reader
        if reader is not None:
            reader.held = False
            if reader.starved:
                reader.starved = False
                try:
                    reader.grant.profile.room(reader)
                except Exception:
                    self.log.failure("the profile {name} failed", name=reader.grant.profile.name)
        return True

    def _no_room(self, client: Client) -> None:
        if client in self._full:
            return
        trial = self._full[client] = _Trial(self._try, client, self._leases.now)
        self._leases.hold(trial, trial.since + FIRST_PAUSE)
        refusal = Refusal(Reason.NOT_READING, "reads too slowly: Contents for it are dropped, and answers wait")
        refusal.summary = f"{client}: {refusal.text}"
        self._complaints.add(WIRE, client.address, refusal)

    def _try(self, trial: _Trial, now: float) -> float | None:
        """Try one that had no room. Returns when to try again."""
        client, reader = trial.client, trial.client.reader
        if self._full.get(client) is not trial or self.flush(client):
            return None
        if reader is not None and _got(reader) == trial.got:
            reader.held = True
        trial.got = None if reader is None else _got(reader)
        if now - trial.since >= self.settings.stuck:
            self.doom(client, "stuck")
        trial.pause = min(2 * trial.pause, LONGEST_PAUSE)
        return now + trial.pause

    # who is over

    def doom(self, client: Client, why: str) -> None:
        """Have it ended with the next tick."""
        if client.over:
            return
        if not self._doomed:
            self._leases.hold(_Task(self._end_doomed), self._leases.now)
        self._doomed.setdefault(client, why)

    def forget(self, client: Client) -> None:
        """It is over: what waits for it is lost, and it is sent nothing more."""
        self._full.pop(client, None)
        if client.reader is not None:
            client.reader.held = True
        if client.answers:
            self._complaints.count("mtl_dropped", "answer", len(client.answers))

    def _end_doomed(self, now: float) -> None:
        doomed, self._doomed = self._doomed, {}
        for client, why in doomed.items():
            if not client.over:
                self._end(client, why)


class _Trial:
    """How it goes with a client that has no room, on a lease."""

    __slots__ = ("_try", "client", "got", "pause", "since")

    def __init__(self, attempt: Callable[[_Trial, float], float | None], client: Client, now: float) -> None:
        self._try = attempt
        self.client = client
        self.since = now
        self.pause = FIRST_PAUSE
        self.got = None if client.reader is None else _got(client.reader)
        """What it had got of Contents when it was last tried."""

    def check(self, now: float) -> float | None:
        """Try again."""
        return self._try(self, now)


class _Task:
    """Something to be done, on a lease."""

    def __init__(self, check: Callable[[float], float | None]) -> None:
        self.check = check


def _got(reader: ReaderFlow) -> int:
    """A number that rises with each Content that it is sent."""
    return reader.sequence - reader.dropped
