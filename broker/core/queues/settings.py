"""Settings of queues, and the rules that give each queue its own by its name.

Rules:
- The first rule that has a pattern for the name counts, and no other. Where none has, the defaults do.
- ``NAME.dead`` is where the messages of ``NAME`` go when they die. It has the settings of ``NAME``, but its messages
  neither expire nor die of too many deliveries, and the oldest of them makes room for a new one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from fnmatch import fnmatchcase

import attrs

DEAD = ".dead"
"""Suffix of the names of queues of dead messages."""

MAX_MESSAGES = 100_000
"""Messages of one queue, unless set: some 40 MB if they are small, and a tenth of what all queues may hold."""

MAX_BYTES = 64 * 1024 * 1024
"""Bytes of one queue, unless set: an eighth of what all may take, so that one that nobody reads leaves the others
room."""

MAX_DELIVERIES = 20
"""Deliveries of a message, unless set: whatever would succeed does by then, and what breaks every worker that
takes it has broken few."""

EXPIRES = 300.0
"""Seconds after which a queue that is empty, and that nobody reads, is forgotten, unless set. It comes back with its
first use; so the only thing lost is the memory of duplicates."""


class Death(enum.StrEnum):
    """Reason for which a message left a queue without being confirmed."""

    REJECTED = "rejected"
    """A reader refused it for good."""
    DELIVERIES = "deliveries"
    """It was given out as often as it may be, and always came back."""
    EXPIRED = "expired"
    """Its time was over before anybody took it."""
    TOO_MANY = "too many"
    """It made room for a newer one."""


@attrs.frozen
class QueueSettings:
    """Settings of a queue. Times are in seconds.

    ``durable``: its messages survive a restart. ``max_messages`` and ``max_bytes`` count what is given out and not
    confirmed, too. ``max_deliveries``: 0 is any number. ``dead_letters`` are the deaths after which a message goes to
    ``NAME.dead``; after others it is gone. ``ttl``: how long a message that says nothing else, or more, may wait.
    ``expires``: how long the queue is kept while it is empty and nobody reads it, which may be infinite. ``single``:
    only the consumer that came first gets messages, and the next one when it leaves. ``duplicates``: a message whose id
    its user has sent lately is not queued again. ``drop_oldest``: the oldest message makes room for a new one, which
    else is refused.
    """

    durable: bool = False
    max_messages: int = MAX_MESSAGES
    max_bytes: int = MAX_BYTES
    max_deliveries: int = MAX_DELIVERIES
    dead_letters: frozenset[Death] = frozenset({Death.DELIVERIES})
    ttl: float | None = None
    expires: float = EXPIRES
    single: bool = False
    duplicates: bool = False
    drop_oldest: bool = False


@attrs.frozen
class QueueRule:
    """The settings of the queues whose name fits one of the shell patterns (``*``, ``?``, ``[...]``), with case."""

    names: tuple[str, ...]
    settings: QueueSettings


DEFAULTS = QueueSettings()


def settings_of(name: str, rules: Iterable[QueueRule]) -> QueueSettings:
    """The settings of the queue of that name."""
    living = name.removesuffix(DEAD)
    settings = next((rule.settings for rule in rules if any(fnmatchcase(living, p) for p in rule.names)), DEFAULTS)
    if living == name:
        return settings
    return attrs.evolve(
        settings,
        max_deliveries=0,
        dead_letters=frozenset(),
        ttl=None,
        single=False,
        duplicates=False,
        drop_oldest=True,
    )
