"""The configuration of the daemon itself as frozen values, with their defaults. Each wire has its own: `config.py`."""

from __future__ import annotations

from typing import Literal

import attrs


@attrs.frozen
class Broker:
    """The daemon itself."""

    service: str | None = None
    """Suffix of the broker's own service names: ``broker-client-SUFFIX``."""
    state: str | None = None
    """State directory, where neither the environment nor the command line names one."""
    grace: float = 60.0
    """Seconds for which finds are answered from what was known before a restart. Real servers retry every 15 s."""
    diagnostics: bool = True
    """Tell peers what was wrong with what they sent."""
    strict_listeners: bool = False
    """Do not start where any listener cannot be opened; else all but the first Elko listener may be opened later."""


@attrs.frozen
class Log:
    """What is logged, and how."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warn", "error"] = "info"


@attrs.frozen
class Console:
    """The operators' console. Elsewhere than on loopback it needs a password."""

    enabled: bool = True
    endpoint: str = "tcp:9001:interface=127.0.0.1"
    """As a listener's."""
    password: str | None = attrs.field(default=None, repr=False)
    """What `auth` must say; None: nothing, anybody who connects is an administrator."""
    password_file: str | None = None
    """A file that holds ``password`` instead, as ``code_file`` does for a listener."""


@attrs.frozen
class LauncherEntry:
    """A program that administrators may start."""

    name: str
    script: str
    initial: bool = False
    on: bool = False


@attrs.frozen
class Launchers:
    """The launcher table, and what of it is started with the broker."""

    start: Literal["initial", "recover", "restart"] = "initial"
    """``initial``: those with ``initial`` or switched on; ``recover`` and ``restart``: those switched on."""
    table: tuple[LauncherEntry, ...] = ()


@attrs.frozen
class FullLoad:
    """The load at which a provider of some services is full. The first entry whose ``services`` match counts."""

    services: tuple[str, ...]
    """Shell patterns of service names."""
    load: float
    """In the measure in which they report; above 0."""


@attrs.frozen
class Journal:
    """The metrics journal: what the broker heard of load and life, for capacity planning. Sizes in bytes, times in
    seconds."""

    enabled: bool = True
    directory: str | None = None
    """None: ``journal`` in the state directory. Relative to the configuration file; reading that makes it absolute."""
    name: str | None = None
    """What this broker is called in the journal, file names included; None: the host's name."""
    segment_bytes: int = 64 * 1024 * 1024
    """Size of a segment, before it is compressed; then it is sealed."""
    segment_seconds: float = 3_600.0
    """Time since a segment's first record; then it is sealed, whatever its size."""
    keep_seconds: float = 400 * 86_400.0
    """Sealed segments that are older are deleted. A year and a month, since some loads have yearly seasons."""
    keep_bytes: int = 20 * 1024**3
    """When there are more sealed segments than that, the oldest are deleted."""
    full_load: tuple[FullLoad, ...] = ()
    """None: no claim about capacity."""
