"""Settings of queues, and the rules that assign them by queue name.

Rules:
- The first rule with a pattern that matches the name applies, and no other. Without a match the defaults apply.
- ``NAME.dead`` is the dead-letter queue of ``NAME``. It has the settings of ``NAME``, except that its messages neither
  expire nor die of too many deliveries, and a new one displaces the oldest.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from fnmatch import fnmatchcase

import attrs

DEAD = ".dead"
"""Suffix of the names of dead-letter queues."""

MAX_MESSAGES = 100_000
"""Default limit of messages in a queue: some 40 MB if they are small, and a tenth of the limit of all queues."""

MAX_BYTES = 64 * 1024 * 1024
"""Default limit of bytes in a queue: an eighth of the limit of all queues, so that a queue without readers leaves room
for the others."""

MAX_DELIVERIES = 20
"""Default limit of deliveries of a message: enough for temporary failures, and few enough that a message that crashes
its workers crashes few."""

EXPIRES = 300.0
"""Default time in seconds after which an unused queue, empty and without readers, is deleted. Its next use creates it
again, so only its memory of duplicates is lost."""


class Death(enum.StrEnum):
    """Reason for which a message leaves a queue without confirmation."""

    REJECTED = "rejected"
    """A reader rejected it without requeueing."""
    DELIVERIES = "deliveries"
    """It was delivered as often as allowed, and always returned."""
    EXPIRED = "expired"
    """Its TTL ended before a delivery."""
    TOO_MANY = "too many"
    """It was displaced by a newer message."""
    DAMAGED = "damaged"
    """It was changed in the store, after it had been written. It always becomes a dead letter."""


@attrs.frozen
class QueueSettings:
    """Settings of a queue. Times are in seconds.

    - ``durable``: its messages survive a restart.
    - ``max_messages`` and ``max_bytes`` include messages that are delivered and not confirmed.
    - ``by_address``: messages count as memory of the address of their producer, for anonymous producers. False where
      ``max_bytes`` is the operator's own bound.
    - ``max_deliveries``: 0 is any number.
    - ``dead_letters``: deaths after which a message goes to ``NAME.dead``; after other deaths it is discarded.
    - ``ttl``: upper bound, and default, of the TTL of a message; None is none.
    - ``expires``: time for which a queue that is empty and without readers is kept, which may be infinite.
    - ``single``: single active consumer. Only the consumer that came first gets messages, and the next one when it
      leaves.
    - ``duplicates``: deduplication. A message with an id that its user has sent lately is not queued again.
    - ``drop_oldest``: a new message displaces the oldest one of a full queue; otherwise it is refused.
    """

    durable: bool = False
    max_messages: int = MAX_MESSAGES
    max_bytes: int = MAX_BYTES
    by_address: bool = True
    max_deliveries: int = MAX_DELIVERIES
    dead_letters: frozenset[Death] = frozenset({Death.DELIVERIES})
    ttl: float | None = None
    expires: float = EXPIRES
    single: bool = False
    duplicates: bool = False
    drop_oldest: bool = False


@attrs.frozen
class QueueRule:
    """Settings of all queues whose name matches one of the shell patterns (``*``, ``?``, ``[...]``, case-sensitive)."""

    names: tuple[str, ...]
    settings: QueueSettings


DEFAULTS = QueueSettings()


def living_name(name: str) -> str:
    """Return the name of a queue without the suffixes of dead-letter queues: all of them have one owner."""
    while name.endswith(DEAD):
        name = name.removesuffix(DEAD)
    return name


def settings_of(name: str, rules: Iterable[QueueRule]) -> QueueSettings:
    """Return the settings of the queue of that name."""
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
