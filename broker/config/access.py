"""The section ``[access]``: the users file, the audit log, and the rates of requests."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import attrs

from broker.access.document import parse
from broker.access.guarded_reading import BadUsers, read
from broker.config.files import Named as Files
from broker.config.problem import Problem, in_ranges
from broker.config.section import Resolves, Section

RANGES: dict[str, tuple[float, float]] = {
    # One act must fit, which has a few kilobytes at most.
    "audit_bytes": (65_536, 1024**4),
    "audit_files": (1, 1_000),
    # 0 is no limit.
    "requests_per_address": (0, 1_000_000),
    "requests_per_user": (0, 1_000_000),
    # With 0 no request could be made.
    "requests_burst": (1, 1_000_000),
}
"""Minimum and maximum of each number."""

SOON = 7 * 86_400.0
"""Seconds before the expiry of a token in which ``--check`` warns of it."""

FIRST_OR_LAST = "a users file comes or goes at a restart only: until then, all listeners check rights as before"
"""The reason why a reload does not take the first users file, or give up the last one."""


@attrs.frozen
class Access:
    """Users and rights of all listeners, and the audit log. Sizes in bytes, rates in requests a second."""

    file: str | None = None
    """The users file. Relative to the configuration file, whose reading makes it absolute. None: no users."""
    audit: str | None = None
    """The audit log; None: ``audit.jsonl`` in the state directory. Relative as ``file`` is."""
    audit_bytes: int = 16 * 1024 * 1024
    """Size at which the audit log is rotated."""
    audit_files: int = 10
    """Rotated audit logs that are kept."""
    requests_per_address: float = 0.0
    """Requests of one address; 0 is no limit."""
    requests_per_user: float = 0.0
    """Requests of one user; 0 is no limit."""
    requests_burst: int = 1_000
    """Requests at once before these rates apply."""


def _problems(access: Access) -> Iterator[Problem]:
    yield from in_ranges("access", access, RANGES)
    for name, path in (("file", access.file), ("audit", access.audit)):
        if path is not None and (not path or "\0" in path):
            yield Problem(f"access.{name}", "is no path")
    if access.file:
        try:
            parse(access.file, read(access.file))
        except BadUsers as error:
            for sentence in error.args:
                yield Problem("access.file", str(sentence))


def _summary(access: Access) -> Iterator[str]:
    if access.file is None:
        return
    try:
        found = parse(access.file, read(access.file))
    except BadUsers as error:
        yield f"access: {error}"
        return
    yield (
        f"access: {access.file}: {len(found.users)} users, {len(found.tokens)} tokens, {len(found.keys)} keys, "
        f"{len(found.certificates)} certificates, {len(found.rights)} rights"
    )


def _warnings(access: Access, resolves: Resolves) -> Iterator[str]:
    if access.file is None:
        return
    try:
        found = parse(access.file, read(access.file))
    except BadUsers:
        return
    now = time.time()
    for token in found.tokens.values():
        if token.expires <= now:
            yield f"access.file: the token {token.label!r} of {token.user} has expired"
        elif token.expires <= now + SOON:
            days = math.ceil((token.expires - now) / 86_400)
            yield f"access.file: the token {token.label!r} of {token.user} expires within {days} days"


def _files(access: Access, files: Files) -> Access:
    return attrs.evolve(access, file=files.absolute(access.file), audit=files.absolute(access.audit))


ACCESS = Section(
    "access",
    Access,
    Access(),
    _problems,
    summary=_summary,
    warnings=_warnings,
    reloadable=("audit", "audit_bytes", "audit_files", "requests_per_address", "requests_per_user", "requests_burst"),
    # With or without users, listeners are opened in different ways: see docs/configuration.md.
    replaceable={"file": FIRST_OR_LAST},
    read=_files,
    example=(Path(__file__).parent / "access.toml").read_text,
)
"""The section."""
