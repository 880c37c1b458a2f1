"""Pending changes of one resource for one reader of the profile "registry".

Rules:
- Each service of a provider is an *entry*, and so is the load of each provider. The reader is sent all entries, the
  *snapshot*; then a mark of its end; then the changes.
- An entry that changes before it is sent in the snapshot is sent in its new state, or left out if it was removed.
- Changes are coalesced: at most one event waits for each entry, the newest. It keeps the place of the former one, so
  that an entry which changes all the time is sent nevertheless, and delays no other.
- The removal of an entry is sent only if the reader was sent the entry. It takes the place of any waiting event.
- Events are sent in order: none overtakes a waiting one.

A value holds the unsent entries of the snapshot, eight bytes each, and one event for each entry that has changed since.
Once everything is sent, it is empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

import attrs

V = TypeVar("V")


@attrs.define(eq=False)
class EntryEvent(Generic[V]):
    """Event of an entry. ``name`` is its kind, as the profile defines it.

    ``subject`` is the present entry; with ``gone``, the last one. ``new`` is True if there was none before.
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
        """Return the event as another kind."""
        return (
            self if name == self.name else EntryEvent(self.key, name, self.revision, self.subject, self.new, self.gone)
        )


class PendingChanges(Generic[V]):
    """Unsent events of one resource for one reader. It is hashable.

    - ``entries``: the present entries. ``shown`` makes an event of each.
    - ``send`` sends an event, or the end of the snapshot for None. It returns False without room; then nothing is sent
      until `serve`. Its second argument is True if everything up to the revision of the event is sent with it, so that
      the reader may resume there.
    - ``missed``: events of a reader that resumes, sent after the end of its empty snapshot.
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
        """None once its end is sent."""
        self._shown = shown
        self._send = send
        self._waiting: dict[Hashable, tuple[EntryEvent[V], bool]] = {event.key: (event, event.new) for event in missed}
        """Events by entry, each with True if the reader was not sent the entry."""
        self.blocked = False
        """True if the next event found no room."""

    def __len__(self) -> int:
        """Return the approximate number of unsent events."""
        snapshot = self._snapshot
        return len(self._waiting) + (0 if snapshot is None else len(snapshot) + 1)

    def tell(self, event: EntryEvent[V]) -> None:
        """Send the event of an entry, or coalesce it with the waiting one."""
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
            # The reader never saw the entry, so its first event keeps the kind of the one that was not sent.
            self._waiting[event.key] = (event.called(before[0].name), True)

    def serve(self, most: int) -> int:
        """Send up to ``most`` waiting events while there is room. Returns the number sent."""
        self.blocked = False
        sent = 0
        while sent < most and (self._waiting or self._snapshot is not None):
            if not (self._serve_snapshot() if self._snapshot is not None else self._serve_change()):
                self.blocked = True
                break
            sent += 1
        return sent

    def _serve_snapshot(self) -> bool:
        """Send the next entry of the snapshot, or its end. Returns False without room."""
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
