"""Policies: the providers that operators want for a service, and what a run knows of the farm beside its journal.

They stand in a TOML file, ``plan.toml``, with tables ``[[policy]]``, ``[[event]]`` and ``[[exclude]]`` and the key
``growth``; docs/operations.md has an example. The first policy whose pattern matches a service counts. Every key but
``services``, ``from``, ``to`` and ``factor`` may be left out. Patterns are those of a shell, and match a whole name. A
time without a zone is one of UTC. A pattern that matches no service of the journal is an error: it would look like an
answer.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import attrs
import msgspec
from msgspec import Meta

from spark.capacity.tables.time_windows import utc

TARGET = 0.8
"""Target utilisation of a provider in the busiest minute, as far as the journal tells minutes: the rest is for shorter
bursts, and for load that is unevenly spread over the providers."""

MOST_PROVIDERS = 1_000_000
"""A larger number in a policy is a mistake."""

FINITE = sys.float_info.max
"""Limit that leaves out infinity only."""

Pattern = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0, le=MOST_PROVIDERS)]
Factor = Annotated[float, Meta(ge=0, le=FINITE)]


class PolicyError(Exception):
    """A policy file cannot be used; the message has the file, the line, the key and the reason."""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The providers that are wanted for services whose names match a pattern.

    - ``headroom``: factor of the bound over the highest peak of eight weeks; None is the rule of `peak_bound`.
    - ``target``: part of its full load that a provider may carry at the bound.
    - ``spares``: providers beyond those; ``n_plus``: providers that may fail at the bound without an overload.
    - ``least``, ``most``: limits of the need; None is no limit.
    - ``cost``: of a provider, in any unit.
    """

    services: Pattern = "*"
    headroom: Annotated[float, Meta(ge=1, le=FINITE)] | None = None
    target: Annotated[float, Meta(gt=0, le=1)] = TARGET
    spares: Count = 0
    n_plus: Count = 1
    least: Count = msgspec.field(default=1, name="min")
    most: Count | None = msgspec.field(default=None, name="max")
    cost: Factor | None = None

    def __post_init__(self) -> None:
        if self.most is not None and self.least > self.most:
            raise ValueError("`max` must not be less than min")


class Exclusion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A time whose hours are no peaks of the services that match."""

    begin: datetime = msgspec.field(name="from")
    end: datetime = msgspec.field(name="to")
    services: Pattern = "*"

    def __post_init__(self) -> None:
        for name in ("begin", "end"):
            msgspec.structs.force_setattr(self, name, utc(getattr(self, name)))
        if self.begin >= self.end:
            raise ValueError("`to` must be after from")

    def holds(self, service: str, hour: datetime) -> bool:
        """Return True for an hour of a service that matches; an hour without a zone is one of UTC."""
        return fnmatchcase(service, self.services) and self.begin <= utc(hour) < self.end


class Event(Exclusion, frozen=True, kw_only=True):
    """A known event: meanwhile the demand of the services that match is ``factor`` fold."""

    factor: Factor


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tables and keys of a policy file."""

    policy: tuple[Policy, ...] = ()
    event: tuple[Event, ...] = ()
    exclude: tuple[Exclusion, ...] = ()
    growth: Annotated[float, Meta(gt=0, le=FINITE)] = 1.0


@attrs.frozen
class Assumptions:
    """A policy file: all that a run knows of the farm beside its journal."""

    policies: tuple[Policy, ...] = ()
    events: tuple[Event, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    growth: float = 1.0
    named: tuple[tuple[str, str], ...] = ()
    """Each pattern with its place in the file, for `need_services`."""
    text: str = ""
    """The text of the file."""

    def of(self, service: str) -> Policy:
        """Return the policy of a service."""
        return next((one for one in self.policies if fnmatchcase(service, one.services)), DEFAULT)

    def factor(self, service: str, hour: datetime) -> float:
        """Return the factor of the demand in an hour, by growth and events."""
        return self.growth * max((event.factor for event in self.events if event.holds(service, hour)), default=1.0)

    def excluded(self, service: str, hour: datetime) -> bool:
        """Return True if an hour of a service is no peak of it."""
        return any(one.holds(service, hour) for one in self.exclusions)

    def need_services(self, known: Iterable[str]) -> None:
        """Raise `PolicyError` for the first pattern that matches none of the services."""
        known = list(known)
        for pattern, place in self.named:
            if not any(fnmatchcase(service, pattern) for service in known):
                raise PolicyError(f"{place}: services = {pattern!r} matches no service of the journal")


DEFAULT = Policy()


def read_assumptions(path: Path) -> Assumptions:
    """Read a policy file. Raises `PolicyError`."""
    try:
        text = path.read_text(encoding="utf-8")
        read = msgspec.toml.decode(text, type=_Document)
    except (OSError, UnicodeError, OverflowError, RecursionError) as error:
        raise PolicyError(f"{path} cannot be read: {error}") from error
    except msgspec.ValidationError as error:
        raise PolicyError(_placed(path, text, str(error))) from error
    except msgspec.DecodeError as error:
        raise PolicyError(f"{path} is no TOML: {error}") from error
    tables: dict[str, Sequence[Policy | Exclusion]] = {
        "policy": read.policy,
        "event": read.event,
        "exclude": read.exclude,
    }
    named = [
        (one.services, _place(path, text, table, number, "services"))
        for table, ones in tables.items()
        for number, one in enumerate(ones)
        if one.services != "*"
    ]
    return Assumptions(read.policy, read.event, read.exclude, read.growth, tuple(named), text)


def _placed(path: Path, text: str, fault: str) -> str:
    """Return a message of msgspec behind the file, the line and the key that it is about."""
    told, found, at = fault.rpartition(" - at `$.")
    told, names = (told, re.findall(r"\w+", at)) if found else (fault, [])
    # Either ("growth",), or ("policy", "0") and a key, which the message may have in its stead.
    named = re.search(r"(?:field |^)`(.*)`", told)
    table, number = names[:2] if len(names) > 1 else ("", "0")
    key = names[-1] if len(names) in (1, 3) else named[1] if named else ""
    told = told.replace("`array`, got `object`", "a table with two brackets")
    where = " ".join(filter(None, (f"[[{table}]]" if table else "", key)))
    return ": ".join(filter(None, (_place(path, text, table, int(number), key), where, told)))


def _place(path: Path, text: str, table: str, number: int, key: str) -> str:
    """Return the file and the line of a key in the table of that number, or of the head of that table."""
    lines = list(enumerate(text.splitlines(), 1))
    head = 0
    if table:
        heads = [at for at, line in lines if re.match(rf"\s*\[+\s*{table}\s*\]", line)]
        head = heads[number] if number < len(heads) else 0
    for at, line in lines[head:]:
        if key and re.match(rf"""\s*\[?\s*["']?{re.escape(key)}["']?\s*[=\]]""", line):
            return f"{path}, line {at}"
        if head and line.lstrip().startswith("["):
            break
    return f"{path}, line {head}" if head else str(path)
