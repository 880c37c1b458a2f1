"""What one reader of the profile "registry" is still to be told by one resource.

Rules:
- There is one *entry* for each service of a provider, and for each provider's load. First the reader is told all that
  there are, the *snapshot*; then that this was all; then what changes.
- An entry that changes before the snapshot has reached it is told in it as it is by then, or left out if it is gone.
- What waits for the reader is at most one event for each entry, the newest. It keeps the place of the one before, so
  that an entry which changes all the time is told for all that, and keeps no other waiting.
- Of an entry that the reader was never told of it is not told that it is gone. Of one that it was told of it is, in the
  place of whatever else waited.
- Nothing is sent while something waits that came before it.

A view holds the entries of the snapshot that are still to be told, eight bytes each, and one event for each that has
changed since. When the reader has been told everything it holds nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

import attrs

V = TypeVar("V")


@attrs.define(eq=False)
class EntryEvent(Generic[V]):
    """Something to tell of an entry. ``name`` says what has happened, in the profile's words.

    ``subject`` is what the entry is now; with ``gone``, what it was at last. ``new`` says that it was none before.
    ``encoded``, and the ``epoch`` in it, are for the sender: the same event goes to many readers.
    """

    key: Hashable
    name: str
    revision: int
    subject: V
    new: bool = False
    gone: bool = False
    encoded: tuple[bytes, bytes] | None = None
    epoch: int = 0

    def called(self, name: str) -> EntryEvent[V]:
        """The same, as another kind of event."""
        return (
            self if name == self.name else EntryEvent(self.key, name, self.revision, self.subject, self.new, self.gone)
        )


class PendingChanges(Generic[V]):
    """What one reader is to be told. It is hashable.

    ``entries`` are what there is now, ``shown`` makes an event of each. ``send`` sends an event, or the end of the
    snapshot for None, and says whether that was possible. After it was not, nothing is tried until `serve`. Its second
    argument says whether everything up to the revision of the event has been sent then, so that the reader may resume
    there. ``missed`` are the events of a reader that resumes, sent behind the end of its empty snapshot.
    """

    __slots__ = ("_send", "_shown", "_snapshot", "_waiting", "blocked")

    def __init__(
        self,
        entries: Iterable[V],
        shown: Callable[[V], EntryEvent[V]],
        send: Callable[[EntryEvent[V] | None, bool], bool],
        missed: Iterable[EntryEvent[V]] = (),
    ) -> None:
        self._snapshot: deque[V] | None = deque(entries)
        """None when its end has been told."""
        self._shown = shown
        self._send = send
        self._waiting: dict[Hashable, tuple[EntryEvent[V], bool]] = {event.key: (event, event.new) for event in missed}
        """Events, and whether the reader does not know the entry."""
        self.blocked = False
        """There was no room for what is next."""

    def __len__(self) -> int:
        """About how much there still is to be told."""
        snapshot = self._snapshot
        return len(self._waiting) + (0 if snapshot is None else len(snapshot) + 1)

    def tell(self, event: EntryEvent[V]) -> None:
        """Something happened to an entry."""
        if self._snapshot is None and not self._waiting:
            if self._send(event, True):
                return
            self.blocked = True
            self._waiting[event.key] = (event, event.new)
            return
        before = self._waiting.get(event.key)
        if before is None:
            self._waiting[event.key] = (event, event.new)
        elif not before[1]:
            self._waiting[event.key] = (event, False)
        elif event.gone:
            del self._waiting[event.key]
        else:
            # For the reader, it begins with this.
            self._waiting[event.key] = (event.called(before[0].name), True)

    def serve(self, most: int) -> int:
        """Send what waits, up to so many, as far as there is room. Returns how many were sent."""
        self.blocked = False
        sent = 0
        while sent < most and (self._waiting or self._snapshot is not None):
            if not (self._serve_snapshot() if self._snapshot is not None else self._serve_change()):
                self.blocked = True
                break
            sent += 1
        return sent

    def _serve_snapshot(self) -> bool:
        """Send the next entry of the snapshot, or its end."""
        snapshot = self._snapshot
        assert snapshot is not None
        while snapshot:
            event = self._shown(snapshot[0])
            changed = self._waiting.get(event.key)
            if changed is not None:
                if changed[0].gone:
                    del self._waiting[event.key]
                    snapshot.popleft()
                    continue
                event = changed[0].called(event.name)
            if not self._send(event, False):
                return False
            snapshot.popleft()
            self._waiting.pop(event.key, None)
            return True
        if not self._send(None, True):
            return False
        self._snapshot = None
        return True

    def _serve_change(self) -> bool:
        key, (event, _) = next(iter(self._waiting.items()))
        # An event keeps the place of an older one, so that one behind it may have a lower revision.
        if not self._send(event, len(self._waiting) == 1):
            return False
        del self._waiting[key]
        return True
