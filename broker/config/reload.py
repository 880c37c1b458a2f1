"""Which keys differ between two configurations, and which of them may change while the broker runs.

Listeners and launchers are compared by name, and shown so: ``elko.listeners[main].allow``. One that came or went is
shown without a key of its own: ``elko.listeners[lan]``. The rules of mc0 and MTL, the queues of MTL and the
full loads of the journal have no names and depend on their order: they are compared, and shown, as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from broker.config.values import Config, ElkoListener, LauncherEntry

RELOADABLE = (
    "broker.diagnostics",
    "broker.grace",
    "log.level",
    "elko.listeners[*].allow",
    "elko.listeners[*].auth",
    "elko.listeners[*].code",
    "elko.listeners[*].code_file",
    "elko.listeners[*].allow_before_auth",
    "elko.listeners[*].offer",
    "elko.listeners[*].limits.*",
    "director.providers",
    "director.load_bump",
    "director.reservation",
    "director.user_reservations",
    "director.listeners[*].allow",
    "director.listeners[*].auth",
    "director.listeners[*].code",
    "director.listeners[*].code_file",
    "director.listeners[*].allow_before_auth",
    "director.listeners[*].limits.*",
    "mc0.stalled_after",
    "mc0.connections",
    "mc0.connections_per_address",
    "mc0.sessions",
    "mc0.subscriptions",
    "mc0.rules",
    "dbp.offer",
    "dbp.check_address",
    "dbp.interval",
    "dbp.least_interval",
    "dbp.most_interval",
    "dbp.liveness",
    "dbp.fall_back",
    "dbp.probe",
    "dbp.stalled_after",
    "dbp.connections",
    "dbp.connections_per_address",
    "dbp.services",
    "mtl.stalled_after",
    "mtl.connections",
    "mtl.connections_per_address",
    "mtl.sessions",
    "mtl.flows",
    "mtl.lease",
    "mtl.window",
    "mtl.most_window",
    "mtl.window_bytes",
    "mtl.hosts",
    "mtl.rules",
    "mtl.queues",
    "journal.keep_seconds",
    "journal.keep_bytes",
    "journal.full_load",
    "console.password",
    "console.password_file",
    "launchers.*",
)
"""Keys that take effect at a reload; ``[*]`` is any name, ``*`` any rest. All others need a restart."""

_PATTERN = re.compile(
    "|".join(re.escape(key).replace(r"\[\*\]", r"\[[^\]]*\]").replace(r"\*", ".*") for key in RELOADABLE), re.DOTALL
)


def changes(old: Config, new: Config) -> list[str]:
    """The dotted keys whose values differ, in the order of the configuration. No value is shown."""
    return list(_changes("", old, new))


def refused(old: Config, new: Config) -> list[str]:
    """Those of `changes` that need a restart."""
    return [key for key in changes(old, new) if not _PATTERN.fullmatch(key)]


def _changes(here: str, old: Any, new: Any) -> Iterator[str]:
    if old == new:
        return
    if attrs.has(type(old)):
        for field in attrs.fields(type(old)):
            key = f"{here}.{field.name}" if here else field.name
            yield from _changes(key, getattr(old, field.name), getattr(new, field.name))
    elif here in _BY_NAME:
        yield from _named_changes(here, old, new)
    else:
        yield here


_BY_NAME = ("elko.listeners", "director.listeners", "launchers.table")


def _named_changes(
    here: str, old: Sequence[ElkoListener | LauncherEntry], new: Sequence[ElkoListener | LauncherEntry]
) -> Iterator[str]:
    before: Mapping[str, Any] = {each.name: each for each in old}
    after: Mapping[str, Any] = {each.name: each for each in new}
    for name in {**before, **after}:
        key = f"{here}[{name}]"
        if name in before and name in after:
            yield from _changes(key, before[name], after[name])
        else:
            yield key
