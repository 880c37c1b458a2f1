"""Policies: the providers that operators want for a service, and what a run knows of the farm beside its journal.

They stand in a TOML file, ``plan.toml``, with tables ``[[policy]]``, ``[[event]]`` and ``[[exclude]]`` and the key
``growth``; docs/operations.md has an example. The first policy whose pattern matches a service counts. Every key but
``services``, ``from``, ``to`` and ``factor`` may be left out. Patterns are those of a shell, and match a whole name. A
time without a zone is one of UTC. A pattern that matches no service of the journal is an error: it would look like an
answer.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from math import isfinite
from pathlib import Path
from typing import Any

import attrs

from spark.capacity.tables.time_windows import utc

TARGET = 0.8
"""Target utilisation of a provider in the busiest minute, as far as the journal tells minutes: the rest is for shorter
bursts, and for load that is unevenly spread over the providers."""

MOST_PROVIDERS = 1_000_000
"""A larger number in a policy is a mistake."""


class PolicyError(Exception):
    """A policy file cannot be used; the message has the file, the line, the key and the reason."""


@attrs.frozen
class Policy:
    """The providers that are wanted for services whose names match a pattern.

    - ``headroom``: factor of the bound over the highest peak of eight weeks; None is the rule of `peak_bound`.
    - ``target``: part of its full load that a provider may carry at the bound.
    - ``spares``: providers beyond those; ``n_plus``: providers that may fail at the bound without an overload.
    - ``least``, ``most``: limits of the need; None is no limit.
    - ``cost``: of a provider, in any unit.
    """

    services: str = "*"
    headroom: float | None = None
    target: float = TARGET
    spares: int = 0
    n_plus: int = 1
    least: int = 1
    most: int | None = None
    cost: float | None = None


@attrs.frozen
class Event:
    """A known event: from ``begin`` until ``end`` the demand of the services that match is ``factor`` fold."""

    begin: datetime
    end: datetime
    factor: float
    services: str = "*"


@attrs.frozen
class Exclusion:
    """A time whose hours are no peaks of the services that match."""

    begin: datetime
    end: datetime
    services: str = "*"


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
        """Return the factor of the demand in an hour, by growth and events; an hour without a zone is one of UTC."""
        mine = [
            event.factor
            for event in self.events
            if fnmatchcase(service, event.services) and event.begin <= utc(hour) < event.end
        ]
        return self.growth * max(mine, default=1.0)

    def excluded(self, service: str, hour: datetime) -> bool:
        """Return True if an hour of a service is no peak of it; an hour without a zone is one of UTC."""
        return any(fnmatchcase(service, one.services) and one.begin <= utc(hour) < one.end for one in self.exclusions)

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
        document = tomllib.loads(text)
    except (OSError, UnicodeError) as error:
        raise PolicyError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"{path} is no TOML: {error}") from error
    return _Reader(path, text).assumptions(document, text)


Rule = tuple[Callable[[Any], bool], str]
"""A condition on a value, and the same in words."""


def _number(holds: Callable[[float], bool]) -> Callable[[Any], bool]:
    """Return a test of finite numbers; True and False are none."""

    def test(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and holds(value)

    return test


_PATTERN: Rule = (lambda value: isinstance(value, str) and bool(value), "a pattern of service names, as text")
_MOMENT: Rule = (lambda value: isinstance(value, datetime), "a date with a time, such as 2026-12-24T18:00:00Z")
_COUNT: Rule = (
    _number(lambda value: isinstance(value, int) and 0 <= value <= MOST_PROVIDERS),
    f"a whole number from 0 to {MOST_PROVIDERS}",
)
_FACTOR: Rule = (_number(lambda value: value >= 0), "a number of 0 or more")

POLICY: Mapping[str, Rule] = {
    "services": _PATTERN,
    "headroom": (_number(lambda value: value >= 1), "a number of 1 or more"),
    "target": (_number(lambda value: 0 < value <= 1), "a number above 0 and at most 1"),
    "spares": _COUNT,
    "n_plus": _COUNT,
    "min": _COUNT,
    "max": _COUNT,
    "cost": _FACTOR,
}
EXCLUDE: Mapping[str, Rule] = {"services": _PATTERN, "from": _MOMENT, "to": _MOMENT}
EVENT: Mapping[str, Rule] = {**EXCLUDE, "factor": _FACTOR}
TOP = {"growth": (_number(lambda value: value > 0), "a number above 0")}

NAMES = {"min": "least", "max": "most", "from": "begin", "to": "end"}
"""Members of the values, where they differ from the keys: some of these are words of Python."""


def _wrong(key: str, rule: Rule, value: Any) -> str:
    """Return the message for a value that breaks the rule of its key, in the notation of TOML."""
    shown = str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else str(value)
    return f"{key} must be {rule[1]}, not {shown}"[:300]


class _Reader:
    """Checks a document, and finds the lines of its keys."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()

    def assumptions(self, document: Mapping[str, Any], text: str) -> Assumptions:
        tables = {"policy": POLICY, "event": EVENT, "exclude": EXCLUDE}
        for key, value in document.items():
            if key in tables:
                if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
                    raise self._error(key, -1, "", f"[[{key}]] must be a table with two brackets")
            elif key not in TOP:
                known = ", ".join(["growth", *(f"[[{name}]]" for name in tables)])
                raise self._error("", -1, key, f"there is no key {key}: known are {known}")
            elif not TOP[key][0](value):
                raise self._error("", -1, key, _wrong(key, TOP[key], value))
        checked = {
            table: [self._checked(table, number, one, rules) for number, one in enumerate(document.get(table, ()))]
            for table, rules in tables.items()
        }
        named = [
            (one["services"], self._place(table, number, "services"))
            for table, ones in checked.items()
            for number, one in enumerate(ones)
            if one.get("services", "*") != "*"
        ]
        return Assumptions(
            tuple(Policy(**one) for one in checked["policy"]),
            tuple(Event(**one) for one in checked["event"]),
            tuple(Exclusion(**one) for one in checked["exclude"]),
            float(document.get("growth", 1.0)),
            tuple(named),
            text,
        )

    def _checked(self, table: str, number: int, given: Mapping[str, Any], rules: Mapping[str, Rule]) -> dict[str, Any]:
        for key, value in given.items():
            if key not in rules:
                raise self._error(table, number, key, f"[[{table}]] has no key {key}: known are {', '.join(rules)}")
            if not rules[key][0](value):
                raise self._error(table, number, key, _wrong(key, rules[key], value))
        for key in ("from", "to", "factor"):
            if key in rules and key not in given:
                raise self._error(table, number, "", f"[[{table}]] needs the key {key}")
        values = {key: utc(value) if isinstance(value, datetime) else value for key, value in given.items()}
        made = {NAMES.get(key, key): value for key, value in values.items()}
        if "begin" in made and made["begin"] >= made["end"]:
            raise self._error(table, number, "to", f"[[{table}]] ends before it begins")
        if made.get("most") is not None and made.get("least", 1) > made["most"]:
            raise self._error(table, number, "max", "max is less than min")
        return made

    def _error(self, table: str, number: int, key: str, text: str) -> PolicyError:
        return PolicyError(f"{self._place(table, number, key)}: {text}")

    def _place(self, table: str, number: int, key: str) -> str:
        """Return the file and the line of a key in the table of that number, or of the table's head."""
        head_of = re.compile(rf"\s*\[+\s*{table}\s*\]+") if table else re.compile(r"(?!)")
        heads = [at for at, line in enumerate(self._lines) if head_of.match(line)]
        head = heads[number] if 0 <= number < len(heads) else (heads[0] if heads else None)
        if key:
            begin = 0 if head is None else head + 1
            for at in range(begin, len(self._lines)):
                if head is not None and self._lines[at].lstrip().startswith("["):
                    break
                if re.match(rf"""\s*["']?{re.escape(key)}["']?\s*=""", self._lines[at]):
                    return f"{self._path}, line {at + 1}"
        return f"{self._path}" if head is None else f"{self._path}, line {head + 1}"
