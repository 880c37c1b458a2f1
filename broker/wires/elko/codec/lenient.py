"""Parser for lenient JSON: the dialect of Elko's documents and users, with the meaning that the original gives it.

Beyond strict JSON:

- A block is a sequence of objects, with or without white space between them.
- Keys may be bare: an ASCII letter, ``_`` or ``$``, then letters, digits, ``_`` and ``$``; not true, false or null.
- Strings are in quotes or apostrophes, and may hold control characters. ``\\xXX`` is an escape like ``\\uXXXX``; a
  digit that is not hexadecimal counts as -1. Octal escapes have the original's odd values, see `_OCTAL`. A backslash
  before any other character gives that character.
- Numbers may be hexadecimal (``0xFF``), begin with ``+``, and lack the digits on one side of the point. Integers that
  begin with 0 are octal, though 8 and 9 may occur in them. A sign alone is 0.
- ``/* comments */``, and ``// comments``, which extend to the end of the block, since its lines were joined.
- A comma may follow the last member or element. The last occurrence of a repeated key counts.
- An incomplete word, number, string or comment between objects at the end of the block is ignored.

Unlike the original: nesting, the length of integers and the number of tokens are limited, integers do not wrap at 64
bits, a number beyond the range of a double is an error, and digits are ASCII only.

`blocks` reads here every block that is not one strict message. "Accepted input" in docs/protocols/elko-broker.md
describes the dialect for client authors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from broker.core.errors import Malformed, Reason

MAX_DEPTH = 64
"""Levels of nested objects and arrays. Real messages have four levels."""

MAX_DIGITS = 255
"""Digits of an integer. Conversion takes quadratic time; integers of this length fit into a double, even hexadecimal
ones."""

MAX_TOKENS = 30_000
"""Words, strings, numbers and marks of a block: a willserve of 1,000 services has fewer. Parsing them takes some 20
ms."""

TOKENS_PER_STEP = 500
"""Tokens, or marks of a line, between two steps: some 300 µs, so that the scheduler ends the quantum in time."""

EXCERPT = 20
"""Characters that an error quotes on each side of its position: enough to find it, not enough to fill a log."""

# White space is that of Java's Character.isWhitespace, which excludes the no-break spaces. All repetitions are
# possessive (*+, ++): no match is retried, which keeps every pattern linear.
_GAP = r"(?:[\t-\r\x1c-\x20\u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000]++|/\*.*?\*/)*+"
_ESCAPE = r"\\(?:[0-7]++|u.{4}|x.{2}|[^0-7ux])"
_QUOTED = rf'(?:[^"\\]++|{_ESCAPE})*+'
_APOSTROPHED = rf"(?:[^'\\]++|{_ESCAPE})*+"
# Every prefix of a number, complete or not, since the end of the block may cut it off anywhere. \w in a symbol includes
# a few more numerals than Java's letters and digits.
_NUMBER = r"[-+]?+(?:0[xX][0-9A-Fa-f]*+|\.(?![0-9])|[0-9]*+(?:\.[0-9]*+)?+(?:[eE][-+]?+[0-9]*+)?+)"
_SYMBOL = r"[A-Za-z_$][\w$]*+"

_gap = re.compile(_GAP, re.DOTALL)
_token = re.compile(
    rf"""{_GAP}(?:([{{}}\[\]:,])|"({_QUOTED})"|'({_APOSTROPHED})'|({_SYMBOL})|(?=[-+.0-9])({_NUMBER}))""", re.DOTALL
)
_NOTHING, _MARK, _QUOTATION, _APOSTROPHES, _WORD, _DIGITS = range(6)
# The groups of _token; _NOTHING if it does not match.
_STRINGS = (_QUOTATION, _APOSTROPHES)
_escape = re.compile(_ESCAPE, re.DOTALL)
_surrogates = re.compile("([\ud800-\udbff][\udc00-\udfff])|[\ud800-\udfff]")
_fraction = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")

_CONSTANTS = {"true": True, "false": False, "null": None}
_HEX = {digit: int(digit, 16) for digit in "0123456789abcdefABCDEF"}
_LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_OCTAL = ("", "\u0033", "\u01cb", "\u0e8b", "\u748b", "\ua48b", "\u248b")
"""Values of an octal escape by the number of its digits: in the original each digit makes the value v 8 v + 51,
whichever digit it is. From the sixth digit on this does not change the 16 bits that are kept."""


def objects(text: str) -> list[dict[str, object]]:
    """Return the top-level objects of one block, in order, or raise `Malformed`: see `objects_in_steps`."""
    return [each for each in objects_in_steps(text) if each is not None]


def objects_in_steps(text: str) -> Iterator[dict[str, object] | None]:
    """Yield the top-level objects of one block, in order, and None after each `TOKENS_PER_STEP` tokens.

    ``text`` is the decoded block, its lines joined by one space, without one at its end: there it would complete a word
    that is otherwise ignored. Values are dict, list, str, int, float, bool and None; strings hold no surrogates if
    ``text`` holds none. Raises `Malformed` with Reason.SYNTAX at the first invalid token, after the objects before it
    were yielded. No other exception is raised, and the time is linear in the length of ``text``.
    """
    parser = _Parser(text)
    while parser.another():
        yield from parser.members()


class _Parser:
    """Parser of one text. A method that reads something leaves its last token as the current one."""

    __slots__ = ("_at", "_kind", "_left", "_match", "_text", "_token")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._match: re.Match[str] | None = None
        self._kind = _NOTHING
        self._left = MAX_TOKENS
        self._token = ""

    def _next(self) -> str:
        """Read a token. Returns it if it is a mark, else an empty string."""
        self._left -= 1
        if self._left < 0:
            raise _malformed(f"more than {MAX_TOKENS} tokens in a block", self._text, self._at)
        match = self._match = _token.match(self._text, self._at)
        if match is None:
            self._kind = _NOTHING
            return ""
        self._at = match.end()
        self._kind = kind = match.lastindex or _NOTHING
        self._token = token = match[kind]
        return token if kind == _MARK else ""

    def another(self) -> bool:
        """Read the opening brace of the next top-level object. Returns False at the end of the block."""
        if self._next() == "{":
            return True
        if self._kind == _NOTHING:
            start = self._start()
            rest = self._text[start : start + 2]
            # The original ignores an incomplete token at the end of a block, which a slash, a comment or a quote
            # begins.
            cut_off = rest in ("", "/", "/*", "//") or rest[0] in "\"'"
        else:
            cut_off = self._kind in (_WORD, _DIGITS) and self._at == len(self._text)
        if not cut_off:
            raise self._expected("'{'")
        return False

    def members(self) -> Iterator[dict[str, object] | None]:
        """Parse the object whose brace is the current token: yield None for each step, and the object at last.

        ``outer`` has the containers around the innermost one that is open.
        """
        whole: dict[str, object] = {}
        inner: dict[str, object] | list[object] = whole
        outer: list[dict[str, object] | list[object]] = []
        after_value = False
        step = self._left - TOKENS_PER_STEP
        while True:
            if self._left < step:
                yield None
                step = self._left - TOKENS_PER_STEP
            mark = self._next()
            closing = "]" if isinstance(inner, list) else "}"
            if mark == closing:
                if not outer:
                    break
                inner = outer.pop()
                after_value = True
            elif after_value:
                if mark != ",":
                    raise self._expected(f"',' or '{closing}'")
                after_value = False
            else:
                value = self._member(inner, mark, len(outer) + 1)
                after_value = value is None
                if value is not None:
                    outer.append(inner)
                    inner = value
        yield whole

    def _member(
        self, inner: dict[str, object] | list[object], mark: str, depth: int
    ) -> dict[str, object] | list[object] | None:
        """Append the element, or the member with its key, that begins with the current token. Returns a container."""
        if isinstance(inner, list):
            value = self._value(mark, depth)
            inner.append(value)
        else:
            key = self._key()
            if self._next() != ":":
                raise self._expected("':'")
            value = inner[key] = self._value(self._next(), depth)
        return value if isinstance(value, dict | list) else None

    def _key(self) -> str:
        kind = self._kind
        if kind == _WORD and self._token not in _CONSTANTS:
            return self._token
        if kind in _STRINGS:
            return _string(self._token)
        raise self._expected("a key or '}'")

    def _value(self, mark: str, depth: int) -> object:
        """Return the value that begins with the current token, which is ``mark`` or not a mark: an empty container for
        an opening bracket."""
        kind = self._kind
        if kind in _STRINGS:
            return _string(self._token)
        if kind == _DIGITS:
            return self._number()
        if kind == _WORD and self._token in _CONSTANTS:
            return _CONSTANTS[self._token]
        if mark == "{" or mark == "[":
            if depth == MAX_DEPTH:
                raise self._expected(f"at most {MAX_DEPTH} levels of nesting")
            return {} if mark == "{" else []
        raise self._expected("a value")

    def _number(self) -> int | float:
        token = self._token
        unsigned = token.lstrip("+-")
        if unsigned[:2] in ("0x", "0X"):
            if len(unsigned) == 2:
                raise _malformed("expected a hexadecimal digit", self._text, self._at)
            value = self._integer(unsigned[2:], 16)
        elif unsigned.isdecimal():
            value = self._integer(unsigned, 8 if unsigned[0] == "0" else 10)
        elif not unsigned:
            return 0
        elif not _fraction.fullmatch(token):
            raise _malformed("expected a digit", self._text, self._at)
        else:
            double = float(token)
            if not math.isfinite(double):
                raise self._out_of_range()
            return double
        return -value if token[0] == "-" else value

    def _integer(self, digits: str, radix: int) -> int:
        if len(digits) > MAX_DIGITS:
            raise self._out_of_range()
        if radix != 8:
            return int(digits, radix)
        value = 0
        # int(digits, 8) would refuse 8 and 9, which the original accepts in octal integers.
        for digit in digits:
            value = value * 8 + int(digit)
        return value

    def _out_of_range(self) -> Malformed:
        return _malformed("number out of range", self._text, self._start())

    def _start(self) -> int:
        """Return the position of the current token, or of the failed match."""
        match = self._match
        if match is None:
            gap = _gap.match(self._text, self._at)
            return gap.end() if gap else self._at
        return match.start(self._kind) - (self._kind in _STRINGS)

    def _expected(self, what: str) -> Malformed:
        """Return the error for a current token, or the lack of one, in place of ``what``."""
        text = self._text
        start = self._start()
        if self._match is None and start < len(text):
            first, two = text[start], text[start : start + 2]
            if first in "\"'":
                return _malformed("string without its closing quote", text, start)
            if two == "/*":
                return _malformed("comment without its closing */", text, start)
            if two == "//":
                return _malformed(
                    f"expected {what} before the comment, which takes the rest of the block,", text, start
                )
        return _malformed(f"expected {what}", text, start)


def _string(body: str) -> str:
    """Return the value of a string with this text between its quotes."""
    if "\\" not in body:
        return body
    string = _escape.sub(_unescape, body)
    return string if string.isascii() else _surrogates.sub(_join, string)


def _unescape(match: re.Match[str]) -> str:
    escape = match[0]
    kind = escape[1]
    if kind in "ux":
        value = 0
        for digit in escape[2:]:
            value = value * 16 + _HEX.get(digit, -1)
        return chr(value & 0xFFFF)
    if kind in "01234567":
        return _OCTAL[min(len(escape) - 1, len(_OCTAL) - 1)]
    return _LETTERS.get(kind, kind)


def _join(match: re.Match[str]) -> str:
    """Combine a pair of surrogates; an unpaired one becomes ``?``, as in the original."""
    return match[1].encode("utf-16-le", "surrogatepass").decode("utf-16-le") if match[1] else "?"


def _malformed(what: str, text: str, place: int) -> Malformed:
    excerpt = text[max(0, place - EXCERPT) : place + EXCERPT]
    shown = "".join(character if character.isprintable() else "?" for character in excerpt)
    return Malformed(Reason.SYNTAX, f"{what} at position {place}", near=shown)


_inside = re.compile(rf"""(?:[^]["'/{{}}]++|"{_QUOTED}"|'{_APOSTROPHED}'|/\*.*?\*/)*+""", re.DOTALL)
_string_rest = {'"': re.compile(_QUOTED, re.DOTALL), "'": re.compile(_APOSTROPHED, re.DOTALL)}


class BracketBalance:
    """Incremental scanner that determines after each line of a block whether all objects begun so far are complete.

    It examines brackets, strings and comments only. A block that it reports as complete, `objects` reads to its end or
    refuses; a block that `objects` could continue with another object, it reports as complete. If that has become
    impossible (after a ``//`` comment or an unmatched bracket, nested too deep, over `MAX_TOKENS`, after other text
    than objects at the top level) the block is never complete, and extends to the next empty line. It takes linear time
    and keeps no text.
    """

    __slots__ = ("_closed", "_comment", "_cut_off", "_left", "_never", "_open", "_quote")

    def __init__(self) -> None:
        self._open: list[str] = []
        """The brackets that must close the open ones, the innermost last."""
        self._quote = ""
        """The quote that must close the open string, or empty."""
        self._cut_off = ""
        """The escape in that string that the end of the line cut off: a few characters at most."""
        self._comment = False
        self._closed = False
        self._left = MAX_TOKENS
        self._never = False
        """True once the block cannot be complete before an empty line."""

    @property
    def complete(self) -> bool:
        """True if at least one object has been closed so far, and no object, string or comment is open."""
        return self._closed and not (self._never or self._open or self._comment)

    def feed(self, line: str) -> bool:
        """Scan the next line of a block at once: see `scan`. Returns `complete`."""
        for _ in self.scan(line):
            pass
        return self.complete

    def scan(self, line: str) -> Iterator[None]:
        """Scan the next line of a block, without its newline, and yield after each `TOKENS_PER_STEP` marks. Lines are
        joined by a space."""
        if not self._never:
            at = 0
            if self._quote:
                line = f"{self._cut_off} {line}"
                at = self._rest_of_string(line, 0)
            elif self._comment:
                at = self._rest_of_comment(line, 0)
            step = self._left - TOKENS_PER_STEP
            while at < len(line):
                at = self._step(line, at)
                if self._left < step:
                    yield
                    step = self._left - TOKENS_PER_STEP

    def _step(self, line: str, at: int) -> int:
        """Skip text without effect and scan one mark, string or comment. Returns the next position."""
        self._left -= 1
        if self._left < 0:
            self._never = True
            return len(line)
        match = (_inside if self._open else _gap).match(line, at)
        at = match.end() if match else at
        mark = line[at : at + 1]
        if mark == "/":
            following = line[at + 1 : at + 2]
            if following == "*":
                return self._rest_of_comment(line, at + 2)
            if self._open and following != "/":
                return at + 1
        elif not mark:
            return at
        elif mark == "{" or (mark == "[" and self._open):
            if len(self._open) < MAX_DEPTH:
                self._open.append("}" if mark == "{" else "]")
                return at + 1
        elif self._open and mark in "\"'":
            self._quote = mark
            return self._rest_of_string(line, at + 1)
        elif self._open and mark == self._open[-1]:
            self._open.pop()
            self._closed = self._closed or not self._open
            return at + 1
        self._never = True
        return len(line)

    def _rest_of_string(self, line: str, at: int) -> int:
        match = _string_rest[self._quote].match(line, at)
        end = match.end() if match else at
        if line[end : end + 1] == self._quote:
            self._quote = ""
            return end + 1
        self._cut_off = line[end:]
        return len(line)

    def _rest_of_comment(self, line: str, at: int) -> int:
        end = line.find("*/", at)
        self._comment = end < 0
        return len(line) if self._comment else end + 2
