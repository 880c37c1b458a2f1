"""Paged output of long answers, so that a dump of a large farm does not stall the reactor.

Rules:
- An answer is encoded one page in each turn of the reactor, and sent as one message when it is complete. So no other
  peer is delayed, and no other message to its recipient gets into its middle.
- Later messages to its recipient wait until it is sent: answers are in the order of the requests.
- One answer is encoded at a time, for all recipients together, which bounds the memory. If no other answer is in
  progress, as is usual, its first page is encoded at once.
- The next answer for a recipient begins only after the recipient has read the previous output. A recipient is not
  disconnected for requesting more than it can read at once.
- Recipients take turns (round robin): one that requests many answers waits for those of the others between its own.

`broker.core.director.director` supplies the content.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.core.director.director_interfaces import ContextDump, Dump, ProviderDump
from broker.core.errors import Reason, Refusal
from broker.net.peer_interfaces import Peer
from broker.wires.elko.codec import director_messages as wire
from broker.wires.elko.codec.blocks import END, encode_part

PAGE = 64 * 1024
"""Bytes of a page: a thousand contexts, which take some milliseconds."""

NAMES_PER_PART = 1_000
"""Names of a list that are encoded together."""

MAX_ASKED = 16
"""Long answers that may be pending for one recipient: more than one at a time has no use."""

MAX_BEHIND = 4 * 1024 * 1024
"""Bytes that may wait behind a long answer: the same as the output buffer of a connection."""

READ_POLL_INTERVAL = 0.05
"""Seconds between two checks whether a recipient has read its output."""

Parts = Iterator[bytes]
"""An answer in parts, each of which takes little time."""


class PageWriter:
    """Scheduler of the long answers of all recipients: one page in each turn of the reactor."""

    log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._waiting: deque[Outbox] = deque()
        self._due: IDelayedCall | None = None
        self._resting = False
        """True while all recipients with a pending answer have unread output."""

    def add(self, outbox: Outbox) -> None:
        """Schedule the answer of a recipient."""
        self._waiting.append(outbox)
        if self._due is None:
            self._write()
        elif self._resting:
            self._due.reset(0)

    def _write(self) -> None:
        """Write one page of the current answer."""
        self._resting = not self._find_ready()
        if self._resting:
            self._due = self._clock.callLater(READ_POLL_INTERVAL, self._write)
            return
        self._due = self._clock.callLater(0, self._write)
        outbox = self._waiting[0]
        try:
            complete = outbox.write_page()
        except Exception:
            # A defect in one answer affects only its recipient.
            self.log.failure("a long answer of the director could not be encoded")
            outbox.clear()
            complete = True
        if complete:
            self._waiting.popleft()
            if outbox.asked:
                self._waiting.append(outbox)
        if not self._waiting:
            self._due.cancel()
            self._due = None

    def _find_ready(self) -> bool:
        """Rotate to the first recipient whose answer may continue. Returns False if there is none."""
        for _ in range(len(self._waiting)):
            if self._waiting[0].ready:
                return True
            self._waiting.rotate(-1)
        return False


class Outbox:
    """Output of one recipient: the answer in progress, and the messages behind it."""

    __slots__ = ("_behind", "_behind_size", "_emptied", "_page_writer", "_pages", "_parts", "_peer", "asked")

    def __init__(self, page_writer: PageWriter, peer: Peer, emptied: Callable[[], None]) -> None:
        self._page_writer = page_writer
        self._peer = peer
        self._emptied = emptied
        self._parts: Parts | None = None
        self._pages: list[bytes] = []
        self._behind: deque[bytes | Parts] = deque()
        self._behind_size = 0
        self.asked = 0
        """Number of answers that are not sent yet."""

    @property
    def ready(self) -> bool:
        """True if its answer has begun or may begin, or if it has none any more."""
        return bool(self._pages) or not self.asked or not self._peer.behind

    def write(self, data: bytes) -> None:
        """Send a message after the pending answers. A recipient with too much output behind them is disconnected."""
        if not self.asked:
            self._peer.write(data)
            return
        self._behind.append(data)
        self._behind_size += len(data)
        if self._behind_size > MAX_BEHIND:
            self._peer.refused(Refusal(Reason.NOT_READING, "too much waits behind a long answer: disconnected"))
            self._peer.close()

    def answer(self, parts: Parts) -> None:
        """Send a message that consists of parts. Raises `Refusal` LIMIT if too many are pending."""
        if self.asked >= MAX_ASKED:
            raise Refusal(Reason.LIMIT, f"{MAX_ASKED} long answers are not sent yet: ask when they have come")
        self.asked += 1
        if self.asked > 1:
            self._behind.append(parts)
        else:
            self._parts = parts
            self._page_writer.add(self)

    def write_page(self) -> bool:
        """Encode a page of the current answer. Returns True if the answer is complete and sent."""
        parts = self._parts
        size = 0
        while parts is not None and size < PAGE:
            part = next(parts, None)
            if part is None:
                parts = None
            else:
                self._pages.append(part)
                size += len(part)
        if parts is not None:
            return False
        if self.asked:
            self._send()
        return True

    def clear(self) -> None:
        """Discard everything."""
        self.asked = 0
        self._parts = None
        self._pages.clear()
        self._behind.clear()
        self._behind_size = 0

    def end(self) -> None:
        """Discard everything: the recipient is gone."""
        self.clear()
        # It refers to the session: without the cycle, no garbage collection is needed.
        self._emptied = _ignore

    def _send(self) -> None:
        """Send the complete answer, and the messages behind it up to the next long answer."""
        answer = b"".join(self._pages)
        self._pages.clear()
        self._parts = None
        self.asked -= 1
        self._peer.write(answer)
        while self._behind:
            next_one = self._behind.popleft()
            if not isinstance(next_one, bytes):
                self._parts = next_one
                return
            self._behind_size -= len(next_one)
            self._peer.write(next_one)
        self._emptied()


def _ignore() -> None:
    """Do nothing at the end of an answer to a recipient that is gone."""


def dump_parts(ask: Callable[[], Dump], depth: int) -> Parts:
    """Yield the answer to a dump in parts. ``ask`` is called for the content when the answer begins."""
    dump = ask()
    head = wire.DumpHead(numproviders=dump.providers, numcontexts=dump.contexts, numusers=dump.users)
    yield encode_part(head)[:-1]
    opened = b',"providers":['
    in_provider = in_contexts = False
    for piece in dump.pieces:
        if isinstance(piece, ProviderDump):
            yield (b"]}," if in_contexts else b"},") if in_provider else opened
            in_provider, in_contexts = True, False
            yield encode_part(_provider(piece))[:-1]
        else:
            yield b"," if in_contexts else b',"contexts":['
            in_contexts = True
            yield encode_part(_context(piece, depth))
    if in_provider:
        yield b"]}]" if in_contexts else b"}]"
    yield b"}" + END


def list_parts(member: str, ask: Callable[[], Sequence[str]]) -> Parts:
    """Yield the answer to ``listcontexts``, ``listproviders`` or ``listusers``; ``member`` is the name of its array."""
    names = ask()
    yield f'{{"to":"admin","op":"list{member}","{member}":['.encode()
    for start in range(0, len(names), NAMES_PER_PART):
        yield (b"," if start else b"") + encode_part(names[start : start + NAMES_PER_PART])[1:-1]
    yield b"]}" + END


def _provider(piece: ProviderDump) -> wire.ProviderDesc:
    return wire.ProviderDesc(
        provider=piece.label,
        numcontexts=piece.contexts,
        numusers=piece.users,
        load=piece.load,
        capacity=piece.capacity,
        hostports=piece.hostports,
        protocols=piece.protocols,
        serving=piece.serving,
    )


def _context(piece: ContextDump, depth: int) -> wire.ContextDesc:
    if depth <= USERS_FROM:
        return wire.ContextDesc(context=piece.context, numusers=piece.count)
    return wire.ContextDesc(context=piece.context, numusers=piece.count, users=piece.users)


USERS_FROM = 2
"""The depth above which a dump includes the users of each context."""
