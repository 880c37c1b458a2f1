"""Fair scheduler for the input of all connections, so that no peer delays the others.

Rules:
- The unit is time. A connection is served for one quantum, `QUANTUM` seconds, and continues in its next turn. A step (a
  request, frame, message or command) is not interrupted; one that takes longer than the quantum ends it.
- A peer that sends little at a time and causes little work is *ordinary*: it is served at once, while the total of
  immediate service stays below `TURN` in one turn of the reactor.
- The quantum of a peer with strikes counts by the CPU time of the thread: on a machine whose processors others have,
  the broker may be stopped in the middle of any quantum. The first long one counts by the clock, since a reading of the
  CPU time is a system call of some 0.5 us, too much for each read of each peer; one strike alone has no effect.
- A *stranger*, a peer without authentication or of which no message was handled yet, is served at once as well; without
  time left, it queues with those that are not ordinary: a thousand reconnecting peers would otherwise delay the
  connected ones.
- All other work, and input beyond a quantum, is served in rounds: in each turn of the reactor for `TURN` seconds,
  ordinary peers first, and at least one of the others. A connection is not read from until it was served.
- Within the rounds, listeners alternate, and within a listener the addresses (`FairQueue`).
- A connection may pass its input to another one, as a TLS connection does: that one is served at once as part of the
  same quantum while it lasts, and in the rounds after that.
- A connection shared by many peers (a UDP socket) is served at once in the same way, and its rest in every turn before
  the rounds: one quantum, for at most `TURN` seconds.

Order of output between connections:
- Output of a quantum to its own connection is written at the end of the quantum.
- Output to other connections (notices) is gathered, and flushed in the next turn, for at most `TURN` seconds per turn;
  the reactor serves other events in between.
- Output that another connection must receive *first* is written before all later writes to any connection. A connection
  whose peer does not read keeps it, and delays no other.

A probe of the scheduler's delay: the time for which input waits that is not served at once.

The probe queues among the connections that are not ordinary, in a lane of its own, so that the hot paths of the
scheduler stay as they are. While no input waits the delay is 0, and the probe takes no turn of an idle reactor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from broker.access.identity import network_of
from broker.core.memory_budget import MemoryBudget
from broker.core.turns import Turns
from broker.net.proxies import TrustedProxies

T = TypeVar("T")

TURN = 0.005
"""Seconds: a tenth of the 50 ms within which every peer is to be answered. A turn has three such shares, each of which
may overrun by one quantum, and the reads and accepts between them."""

QUANTUM = 0.001
"""Seconds of one quantum: a thousand ordinary messages, or some HTTP requests. A longer one means fewer writes, a
shorter one lower latency for the next connection. Five fit into a turn."""

ROUND = 100
"""Connections served in the rounds of one turn: each is read again in the next, at some 40 µs."""

CROWD = 256
"""Queued connections beyond which reads become small, since each holds its read until it is served. Senders of large
messages seldom reach that number; their reads hold 16 MiB."""

MESSAGES = 64
"""Messages of a shared connection in one quantum."""

MESSAGES_ALONE = 256
"""The same while no other connection waits: fewer, larger writes."""


class Gathering(Protocol):
    """A gatherer of output: a connection, or all connections of a ROUTER."""

    def flush(self) -> None:
        """Write gathered output."""

    def abort(self) -> None:
        """Close at once after a failure."""


class SharedConnection(Protocol):
    """A connection of many peers.

    ``strikes`` is the number of its recent quanta that took long, 0 for a connection that is never blamed.
    """

    strikes: int

    def serve(self) -> bool:
        """Handle input until `Scheduler.over`. Returns True if input remains."""

    def took(self, seconds: float) -> None:
        """Record the duration of a quantum in seconds: of CPU time, if it has strikes."""

    def abort(self) -> None:
        """Close at once."""


class ScheduledConnection(Gathering, SharedConnection, Protocol):
    """A connection of one peer, with its keys in `FairQueue`."""

    @property
    def lane(self) -> Hashable:
        """The listener."""

    @property
    def host(self) -> str:
        """The address of the peer, without its port."""


class Scheduler:
    """The scheduler, over ``clock``.

    ``look`` is called at the beginning of each quantum: it advances the liveness clock (`broker.core.liveness`).
    ``cpu`` returns the CPU time of the thread in seconds; by default it is that of ``clock``, as without other load.
    ``memory`` is the account of the memory of connections: as the time, it is one for all of them. So are ``proxies``,
    those whose clients have turns, memory and places by their own addresses; and ``background``, the account of work
    for many connections at once, such as a drain.
    """

    log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        look: Callable[[], None] = lambda: None,
        cpu: Callable[[], float] | None = None,
        memory: MemoryBudget | None = None,
        background: Turns | None = None,
    ) -> None:
        self.memory = memory or MemoryBudget(seconds=clock.seconds)
        self.background = background or Turns(clock)
        self.proxies = TrustedProxies()
        self._clock = clock
        self._look = look
        self._cpu = cpu or clock.seconds
        self._ordinary: FairQueue = FairQueue()
        self._others: FairQueue = FairQueue()
        self._shared: deque[SharedConnection] = deque()
        self._unflushed: deque[Gathering] = deque()
        self.first: list[ScheduledConnection] = []
        """Connections with urgent output, to be written before anything else."""
        self.crowded = False
        """True while more than `CROWD` connections are queued."""
        self._rounds = False
        self._in_round = False
        self._flushing = False
        self._serving: SharedConnection | None = None
        """The connection whose input is being handled."""
        self._conversations = 0
        self._spent = 0.0
        self._resetting = False
        self.given = 0.0
        """Seconds granted to the current quantum."""
        self.end = 0.0
        """The time at which the current quantum ends, or the last one ended."""

    @property
    def conversation(self) -> str:
        """The id of the connection whose input is being handled; "" outside a quantum, and for a shared connection."""
        return getattr(self._serving, "conversation", "")

    @property
    def request_id(self) -> str:
        """The id of the current request; "" for a connection whose messages have none."""
        return getattr(self._serving, "request_id", "")

    def number_conversation(self) -> int:
        """Return the number of another conversation, from 1 upwards."""
        self._conversations += 1
        return self._conversations

    def left(self) -> float:
        """Return the remaining seconds of the quantum; zero or less when it has ended."""
        return self.end - self._clock.seconds()

    def over(self) -> bool:
        """Return True if the current quantum has ended."""
        return self._clock.seconds() >= self.end

    @property
    def busy(self) -> bool:
        """Return True if any connection is queued."""
        return self._rounds

    def messages(self) -> int:
        """Return the number of messages that a shared connection may handle now."""
        return MESSAGES if self._ordinary or self._others else MESSAGES_ALONE

    def serve(self, connection: ScheduledConnection, ordinary: bool, stranger: bool = False) -> None:
        """Serve a connection with input: at once if possible, the rest in the rounds.

        A ``stranger`` queues with the peers that are not ordinary.
        """
        outer = self._serving
        if outer is not None:
            # A nested call: a TLS connection passes decrypted input on, within its own quantum.
            if not self.over():
                self._serving = connection
                more = self._guarded(connection, connection.serve)
                self._serving = outer
                if not more:
                    return
                ordinary = False
        elif ordinary and self._spent < TURN:
            waiting = self._rounds and (self._ordinary or self._others)
            took, more = self._quantum(connection, QUANTUM if waiting else TURN)
            self._spent += took
            if self._spent > TURN / 4 and not self._resetting:
                self._reset_soon()
            if not more:
                return
            ordinary = False
        self.serve_later(connection, ordinary and not stranger)

    def serve_later(self, connection: ScheduledConnection, ordinary: bool = False) -> None:
        """Queue a connection with input for the rounds."""
        (self._ordinary if ordinary else self._others).append(connection)
        if not self.crowded:
            self.crowded = len(self._ordinary) + len(self._others) > CROWD
        self._begin_rounds()

    def serve_shared(self, connection: SharedConnection) -> None:
        """Serve a shared connection with input: at once if possible, the rest in each turn."""
        if self._spent >= TURN or self._serve_at_once(connection, TURN):
            self._shared.append(connection)
            self._begin_rounds()

    def flush_later(self, connection: Gathering) -> None:
        """Flush gathered output in the next turn."""
        self._unflushed.append(connection)
        self._flush_soon()

    def flush_before(self, connection: ScheduledConnection) -> None:
        """Flush gathered output before anything else is written."""
        self.first.append(connection)
        self._flush_soon()

    def flush_first(self) -> None:
        """Write all urgent output; to be called before any other write."""
        first, self.first = self.first, []
        for connection in first:
            self._guarded(connection, connection.flush)

    @property
    def waiting(self) -> bool:
        """True if input waits for a round."""
        return self._rounds

    def _serve_at_once(self, connection: SharedConnection, seconds: float) -> bool | None:
        """Serve one quantum now. Returns True if input remains."""
        took, more = self._quantum(connection, seconds)
        self._spent += took
        if self._spent > TURN / 4 and not self._resetting:
            self._reset_soon()
        return more

    def _reset_soon(self) -> None:
        """Reset the time account in the next turn. Turns with little immediate service share a timer."""
        self._resetting = True
        self._clock.callLater(0, self._next_turn)

    def _quantum(self, connection: SharedConnection, seconds: float) -> tuple[float, bool | None]:
        """Serve a connection for ``seconds``. Returns the time taken, and True if input remains (None after a
        failure)."""
        self._look()
        now = self._clock.seconds
        start = now()
        self.given = seconds
        self.end = start + seconds
        self._serving = connection
        spent = self._cpu() if connection.strikes else None
        more = None
        try:  # an inlined `_guarded`: this runs for each read
            more = connection.serve()
        except Exception:
            self._failed(connection)
        self._serving = None
        took = now() - start
        connection.took(took if spent is None else min(took, self._cpu() - spent))
        return took, more

    def _begin_rounds(self) -> None:
        if not self._rounds:
            self._rounds = True
            self._clock.callLater(0, self._round)

    def _next_turn(self) -> None:
        self._resetting = False
        self._spent = 0.0

    def _round(self) -> None:
        self._in_round = True
        self._serve_round()
        self._in_round = False
        if self._flushing:
            self._flush()

    def _serve_round(self) -> None:
        for _ in range(len(self._shared)):
            shared = self._shared.popleft()
            if self._quantum(shared, TURN)[1]:
                self._shared.append(shared)
        end = self._clock.seconds() + TURN
        left = ROUND
        while self._ordinary and left and self._serve_first(self._ordinary) < end:
            left -= 1
        while self._others and self._serve_first(self._others) < end and left:
            left -= 1
        self.crowded = len(self._ordinary) + len(self._others) > CROWD
        self._rounds = bool(self._shared or self._ordinary or self._others)
        if self._rounds:
            self._clock.callLater(0, self._round)

    def _serve_first(self, queue: FairQueue) -> float:
        """Serve the next connection of a queue; the rest of its input queues with the others. Returns the time."""
        connection = queue.popleft()
        alone = not self._ordinary and not self._others
        if self._quantum(connection, TURN if alone else QUANTUM)[1]:
            self._others.append(connection)
        return self._clock.seconds()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            if not self._in_round:  # the round ends with a flush
                self._clock.callLater(0, self._flush)

    def _flush(self) -> None:
        end = self._clock.seconds() + TURN
        self.flush_first()
        unflushed = self._unflushed
        for _ in range(len(unflushed)):
            connection = unflushed.popleft()
            self._guarded(connection, connection.flush)
            if self._clock.seconds() >= end:
                break
        self._flushing = bool(unflushed)
        if self._flushing:
            self._clock.callLater(0, self._flush)

    def _guarded(self, connection: SharedConnection | Gathering, act: Callable[[], T]) -> T | None:
        """Call ``act``. An exception closes this connection, and affects no other."""
        try:
            return act()
        except Exception:
            self._failed(connection)
            return None

    def _failed(self, connection: SharedConnection | Gathering) -> None:
        self.log.failure("a connection failed, and is closed")
        connection.abort()


class SchedulerProbe:
    """A probe of ``scheduler`` on ``clock``, which calls ``delay`` with each delay in seconds."""

    lane = "probe"
    strikes = 0
    host = ""

    def __init__(self, clock: IReactorTime, scheduler: Scheduler, delay: Callable[[float], object]) -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._delay = delay
        self._queued: float | None = None
        """Time at which the probe was queued; None while it is not."""

    def queue(self) -> None:
        """Queue the probe, unless it still waits, or no input does."""
        if not self._scheduler.waiting:
            self._delay(0.0)
        elif self._queued is None:
            self._queued = self._clock.seconds()
            self._scheduler.serve_later(self)

    # called by the scheduler

    def serve(self) -> bool:
        """Report the delay."""
        if self._queued is not None:
            # The clock of another reactor is the time of day, and may be set back.
            self._delay(max(0.0, self._clock.seconds() - self._queued))
            self._queued = None
        return False

    def took(self, seconds: float) -> None:
        """Ignore the duration of the quantum."""

    def flush(self) -> None:
        """Do nothing: a probe has no output."""

    def abort(self) -> None:
        """Forget a probe that failed."""
        self._queued = None


class FairQueue:
    """Queue of connections, round-robin of two levels: over listeners, and within a listener over addresses.

    A connection waits only behind those of its own listener and address. Ten thousand connections of one address delay
    a connection of another address by one quantum, and those of one listener delay another listener by one quantum. All
    operations take constant time.
    """

    __slots__ = ("_lanes", "_order", "_size")

    def __init__(self) -> None:
        self._lanes: dict[Hashable, tuple[dict[str, deque[ScheduledConnection]], deque[str]]] = {}
        self._order: deque[Hashable] = deque()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, connection: ScheduledConnection) -> None:
        """Append a connection to the queue of its listener and address."""
        self._size += 1
        lane = self._lanes.get(connection.lane)
        if lane is None:
            lane = self._lanes[connection.lane] = {}, deque()
            self._order.append(connection.lane)
        addresses, order = lane
        network = network_of(connection.host)
        waiting = addresses.get(network)
        if waiting is None:
            waiting = addresses[network] = deque()
            order.append(network)
        waiting.append(connection)

    def popleft(self) -> ScheduledConnection:
        """Remove and return the next connection. Raises IndexError if the queue is empty."""
        name = self._order.popleft()
        addresses, order = self._lanes[name]
        network = order.popleft()
        waiting = addresses[network]
        connection = waiting.popleft()
        self._size -= 1
        if waiting:
            order.append(network)
        else:
            del addresses[network]
        if order:
            self._order.append(name)
        else:
            del self._lanes[name]
        return connection
