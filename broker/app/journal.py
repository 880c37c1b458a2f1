"""The wiring of the metrics journal: its directory, its thread, and its feed from the registry.

Start: the directory is locked, then the registry is watched, before any peer can offer services. Stop: the journal ends
before connections are closed, since peers disconnected by the stop have not left.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import attrs
from twisted.internet.defer import Deferred

from broker.blocking import blocking
from broker.config import checks_settings
from broker.core.damage import Damage, Damages, left_aside, set_aside
from broker.core.interfaces import IRegistry
from broker.core.worker import Worker
from broker.export.journal import Journal
from broker.export.journal_feed import FullLoads, JournalFeed
from broker.export.records import boot_name
from broker.export.segments import OWN_DIRECTORIES, JournalLimits, Segments
from broker.wall_clock import wall

DIRECTORY = "journal"
"""The default directory, below the state directory."""

SALT = 4
"""Random bytes in the name of a start."""


@attrs.define
class JournalWriter:
    """The running journal. ``where`` is its directory."""

    where: str
    segments: Segments
    journal: Journal
    feed: JournalFeed
    threads: Worker

    def use(self, config: checks_settings.Journal) -> None:
        """Apply the keys that a reload may change."""
        self.feed.use(_full_loads(config))
        self.segments.limits = _limits(config)

    def counts(self) -> Mapping[str, int]:
        """Return the counters of the journal."""
        return {**self.journal.counts(), **self.feed.counts()}

    def abandon(self) -> None:
        """Release everything without the reactor: the start failed, and nothing was written."""
        self.feed.stop()
        self.threads.stop()
        self.segments.close()

    def stop(self) -> Deferred[None]:
        """Write all pending records, and end. Fires when that is done."""

        def ended(_: object) -> None:
            self.threads.stop()

        self.feed.stop()
        return self.journal.stop().addCallback(ended)


@blocking
def open_journal(
    config: checks_settings.Journal, state: str, registry: IRegistry, reactor: Any, host: str, damages: Damages
) -> JournalWriter:
    """Open the journal. ``host`` is its name unless the configuration has one. Raises OSError, with nothing held.

    A file in the place of one of its directories is set aside, and reported to ``damages``.
    """
    where = os.path.join(state, DIRECTORY) if config.directory is None else config.directory
    damages.add(left_aside(where))
    for directory in (where, *(os.path.join(where, name) for name in OWN_DIRECTORIES)):
        # Not a broken link: the disk that it leads to may be missing.
        if os.path.isfile(directory):
            path = set_aside(directory, wall(reactor))
            damages.add(
                [Damage(directory, f"it was no directory. It is kept as {path}, and a new one is made", files=1)]
            )
    name = config.effective_name(host)
    boot = boot_name(wall(reactor), os.urandom(SALT))
    # A thread of its own: sealing a segment takes seconds, for which the store must not wait.
    threads = Worker(reactor, "journal")
    segments = Segments(where, name, boot, _limits(config))
    journal = Journal(reactor, threads.run, segments)
    threads.start()
    try:
        journal.start()
    except OSError:
        threads.stop()
        raise
    feed = JournalFeed(registry, journal.put, journal.now, _full_loads(config))
    journal.before_flush = feed.catch_up
    return JournalWriter(where, segments, journal, feed, threads)


def _limits(config: checks_settings.Journal) -> JournalLimits:
    return JournalLimits(
        segment_bytes=config.segment_bytes,
        segment_seconds=config.segment_seconds,
        keep_seconds=config.keep_seconds,
        keep_bytes=config.keep_bytes,
    )


def _full_loads(config: checks_settings.Journal) -> FullLoads:
    return FullLoads([(each.services, each.load) for each in config.full_load])
