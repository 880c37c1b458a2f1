"""Filters of services: a small language of conditions on what describes them.

    filter     = term ("or" term)*
    term       = factor ("and" factor)*
    factor     = "not" factor | "(" filter ")" | condition
    condition  = name ("=" | "!=") value | value "in" "tags"
    name       = "service" | "hostport" | "protocol" | "label" | "zone" | "meta." NAME
    value      = a word of letters, digits and _ . : / - , or a text in quotes, with \\ before a quote

Rules:
- ``zone=b and "v2" in tags``, ``not meta.team=bank``. A member that a service lacks equals the empty text.
- A filter is read to the end before any service is looked at: an error has its position, and what was expected there.
- Length and depth are bounded, so that a filter costs no more than some microseconds for each service.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, NoReturn, TypeAlias

import attrs

from broker.core.errors import Reason, Refusal
from broker.core.model import DESCRIPTIONS, Service

MAX_LENGTH = 1_024
"""Limit of the characters of a filter: a screen line has 200."""

MAX_DEPTH = 16
"""Limit of the depth of parentheses and ``not``: people write three."""

NAMES = ("service", "hostport", "protocol", *(name for name in DESCRIPTIONS if name not in ("tags", "meta")))
"""The members that a condition may name, besides ``meta.NAME`` and ``tags``."""

_TOKEN = re.compile(r"""\s*(?:("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(!=|=|\(|\))|([\w.:/\[\]%*+@-]+))""")
_ESCAPE = re.compile(r"\\(.)")


@attrs.frozen
class Equals:
    """A condition: a member has this value."""

    name: str
    value: str

    def __call__(self, service: Service) -> bool:
        if self.name.startswith("meta."):
            found = (service.meta or {}).get(self.name.removeprefix("meta."))
        else:
            found = getattr(service, "name" if self.name == "service" else self.name)
        return (found or "") == self.value


@attrs.frozen
class HasTag:
    """A condition: the service has this tag."""

    tag: str

    def __call__(self, service: Service) -> bool:
        return self.tag in (service.tags or ())


@attrs.frozen
class Not:
    """The opposite of a condition."""

    of: ServiceFilter

    def __call__(self, service: Service) -> bool:
        return not self.of(service)


@attrs.frozen
class All:
    """All of some conditions."""

    of: tuple[ServiceFilter, ...]

    def __call__(self, service: Service) -> bool:
        return all(each(service) for each in self.of)


@attrs.frozen
class AnyOf:
    """Any of some conditions."""

    of: tuple[ServiceFilter, ...]

    def __call__(self, service: Service) -> bool:
        return any(each(service) for each in self.of)


ServiceFilter: TypeAlias = Equals | HasTag | Not | All | AnyOf


class _Token(NamedTuple):
    """A token: ``text`` is its value, ``kind`` is "text", "sign" or "word", "end" at the end. ``at`` counts from 1."""

    kind: str
    text: str
    at: int


def read_filter(text: str) -> ServiceFilter:
    """Return the filter of a text. Raises `Refusal` PARAMETER with the position of an error, and what was expected."""
    if len(text) > MAX_LENGTH:
        raise Refusal(Reason.PARAMETER, f"the filter has more than {MAX_LENGTH} characters")
    return _Parser(text).whole()


class _Parser:
    """The parser of one filter, by recursive descent."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._next = 0
        self._depth = 0

    def whole(self) -> ServiceFilter:
        found = self._either()
        if self._token.kind != "end":
            self._fail("and, or, or the end")
        return found

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _either(self) -> ServiceFilter:
        return self._joined("or", self._both, AnyOf)

    def _both(self) -> ServiceFilter:
        return self._joined("and", self._factor, All)

    def _joined(self, word: str, part: Callable[[], ServiceFilter], join: type[All] | type[AnyOf]) -> ServiceFilter:
        parts = [part()]
        while self._took("word", word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else join(tuple(parts))

    def _factor(self) -> ServiceFilter:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"a condition, at a depth of {MAX_DEPTH} at most")
        found: ServiceFilter
        if self._took("word", "not"):
            found = Not(self._factor())
        elif self._took("sign", "("):
            found = self._either()
            if not self._took("sign", ")"):
                self._fail("and, or, or )")
        else:
            found = self._condition()
        self._depth -= 1
        return found

    def _condition(self) -> ServiceFilter:
        first = self._value("a condition, such as zone=b or v2 in tags")
        if self._took("word", "in"):
            if not self._took("word", "tags"):
                self._fail("tags")
            return HasTag(first.text)
        known = first.text in NAMES or (first.text.startswith("meta.") and first.text != "meta.")
        if first.kind != "word" or not known:
            if self._token.text in ("=", "!="):
                self._next -= 1
                self._fail(f"{', '.join(NAMES)} or meta.NAME")
            self._fail("in tags")
        negative = self._token.text == "!="
        if not (self._took("sign", "=") or self._took("sign", "!=")):
            self._fail("=, != or in tags")
        equals = Equals(first.text, self._value("a value").text)
        return Not(equals) if negative else equals

    def _value(self, expected: str) -> _Token:
        token = self._token
        if token.kind not in ("word", "text") or (token.kind == "word" and token.text in ("and", "or", "in")):
            self._fail(expected)
        self._next += 1
        return token

    def _took(self, kind: str, text: str) -> bool:
        if self._token[:2] != (kind, text):
            return False
        self._next += 1
        return True

    def _fail(self, expected: str) -> NoReturn:
        token = self._token
        there = "the end" if token.kind == "end" else repr(token.text[:40])
        raise Refusal(Reason.PARAMETER, f"filter, position {token.at}: expected {expected}, and not {there}")


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            while text[at].isspace():
                at += 1
            what = "an unfinished text in quotes" if text[at] in "\"'" else f"the character {text[at]!r}"
            raise Refusal(Reason.PARAMETER, f"filter, position {at + 1}: {what} is no part of a filter")
        kind = ("text", "sign", "word")[(match.lastindex or 1) - 1]
        value = match[match.lastindex or 1]
        begin = match.start(match.lastindex or 1) + 1
        found.append(_Token(kind, _ESCAPE.sub(r"\1", value[1:-1]) if kind == "text" else value, begin))
        at = match.end()
    return [*found, _Token("end", "", len(text) + 1)]
