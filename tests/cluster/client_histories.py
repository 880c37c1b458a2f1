"""Histories of clients: what they did at which broker and when, and a model that says which answers are possible.

An operation has the times of its call and of its return; without an answer it may take effect at any time after its
call, or never. A registration of a key is a *session*: it begins with an act and ends with a deletion. Sessions of one
key at several brokers exist beside each other, the later ones before the earlier ones.

| recorded | model |
|---|---|
| ids | each provider id is issued once |
| consistent finds | a find returns a session that may live, and none whose successor is confirmed and lives throughout the find; nothing only if no confirmed session lives throughout |
| watches | a watcher sees each key begin and end by turns, and ends with what is found |
| queues | a confirmed message is read, a message is read if it was sent, and again only if its reader had just read it when it lost its flow |

Consistent finds are not atomic: one at the broker of an act may see it before its confirmation, when others do not.
"""  # noqa: E501

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import attrs

NEVER = math.inf
"""Time of what has not happened, or is not known to have happened."""


@attrs.define(eq=False)
class Session:
    """A registration of a key, with the times of the calls and answers that began and ended it. ``value`` is that
    which finds return: a session that withdraws the key and offers it again is another one with the same."""

    key: str
    value: str
    call: float
    answer: float = NEVER
    end_call: float = NEVER
    end_answer: float = NEVER
    broker: str = ""

    def may_live(self, begin: float, end: float) -> bool:
        """Return True if it may exist at a moment between two times."""
        return self.call <= end and self.end_answer >= begin

    def lives(self, begin: float, end: float) -> bool:
        """Return True if it exists from one time to the other."""
        return self.answer < begin and self.end_call > end

    def precedes(self, other: Session) -> bool:
        """Return True if the other one has begun after this one was confirmed."""
        return self.answer < other.call


@attrs.frozen
class Found:
    """A consistent find of a key: the values that it returned."""

    broker: str
    key: str
    call: float
    answer: float
    values: Sequence[str]


@attrs.define
class Histories:
    """Recorded histories. Lists only grow, so that threads may record."""

    ids: list[int] = attrs.field(factory=list)
    sessions: dict[str, list[Session]] = attrs.field(factory=dict)
    finds: list[Found] = attrs.field(factory=list)
    watches: dict[str, list[tuple[bool, str]]] = attrs.field(factory=dict)
    """By watcher: whether a value is there, and the value."""

    def begin(self, key: str, value: str, now: float, broker: str) -> Session:
        """Record the act that begins a session."""
        session = Session(key, value, now, broker=broker)
        self.sessions.setdefault(key, []).append(session)
        return session

    def faults(self, watched: Iterable[tuple[str, Collection[str]]] = ()) -> list[str]:
        """Return what the model does not permit. ``watched`` are watchers with what is found in the end."""
        found = [f"the id {id} was issued {count} times" for id, count in Counter(self.ids).items() if count > 1]
        for each in self.finds:
            found += self._fault_of(each)
        for name, present in watched:
            found += self._watch_faults(name, present)
        return found

    # internal

    def _fault_of(self, find: Found) -> list[str]:
        begin, end = find.call, find.answer
        sessions = self.sessions.get(find.key, ())
        where = f"a find of {find.key} at {find.broker}, {begin:.3f} to {end:.3f}, returned"
        living = [each for each in sessions if each.lives(begin, end)]
        if not find.values:
            return [f"{where} nothing beside {living[-1]}"] if living else []
        if len(find.values) > 1:
            return [f"{where} {sorted(find.values)} together"]
        same = [each for each in sessions if each.value == find.values[0]]
        if not any(each.may_live(begin, end) for each in same):
            return [f"{where} {find.values[0]}, which is not there: {same}"]
        # When the newest one has ended, its predecessors restore the key: the first to write it counts.
        newest = max((each for each in sessions if each.call <= end), key=lambda each: each.call)
        replaced = newest in living and all(each.precedes(newest) for each in same)
        return [f"{where} {same} beside the successor {newest}"] if replaced else []

    def _watch_faults(self, name: str, present: Collection[str]) -> list[str]:
        there: set[str] = set()
        for on, value in self.watches.get(name, ()):
            if on is (value in there):
                return [f"the watcher {name} saw {value} {'begin' if on else 'end'} twice"]
            (there.add if on else there.discard)(value)
        return [] if there == set(present) else [f"the watcher {name} has {sorted(there ^ set(present))} wrong"]


def queue_faults(
    queue: str,
    confirmed: Sequence[str],
    unknown: Collection[str],
    read: Iterable[tuple[float, str]],
    lost: Collection[float],
    on_the_way: float,
    silent: float,
    over: bool,
) -> list[str]:
    """Return what is wrong with the messages of a queue. ``unknown`` are those whose Confirm did not come in time,
    ``read`` has the times of readings, ``lost`` those at which a reader lost its flow. A Confirm of a reader is
    ``on_the_way`` for so many seconds, and a reader notices after at most ``silent`` seconds that its broker is gone: a
    message that it read earlier must not come again. Once the queue is ``over``, all that was confirmed must have been
    read."""
    found, last = [], dict[str, float]()
    for at, name in read:
        before, last[name] = last.get(name), at
        if before is None:
            continue
        losses = [each for each in lost if before - on_the_way <= each <= at]
        if not losses:
            found.append(f"{queue}: {name} was read at {before:.2f} and at {at:.2f} by the same flow")
        elif min(losses) > before + on_the_way + silent:
            found.append(f"{queue}: {name} was read at {before:.2f}, long before the loss at {min(losses):.2f}")
    if len(confirmed) != len(set(confirmed)):
        found.append(f"{queue}: a message was confirmed twice")
    if over and (missing := set(confirmed) - set(last)):
        found.append(f"{queue}: {len(missing)} confirmed messages are lost")
    if over and (more := set(last) - set(confirmed) - set(unknown)):
        found.append(f"{queue}: {len(more)} messages were read that were not confirmed")
    return found
