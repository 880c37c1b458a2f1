"""JSON bodies of requests. RFC 11 answers valid JSON, and drops invalid: so both are recognized exactly.

Rules:
- All that the grammar allows is JSON: numbers of any length, any escapes, repeated members (the last counts). Lone
  surrogates are JSON, too: users of the value have to expect them.
- A byte order mark, NaN and Infinity are not in the grammar.
- JSON that is nested beyond the limit is answered as too deep, so it still has to be valid. Python's decoder recurses
  and would fail: `is_json` checks it without recursion.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate

from broker.wires.mtl.codec.faults import Fault, IllFormed

MAX_DEPTH = 32
"""Nesting of a body: real ones have two levels. Decoders recurse."""

MAX_DIGITS = 20
"""Characters of a whole number that are read: no valid number of a request has as many."""


class TooDeep(Exception):
    """Valid JSON, but nested beyond `MAX_DEPTH`."""


def read(data: bytes) -> object:
    """Decode a body. Raises `IllFormed`, or `TooDeep`."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise IllFormed(Fault.ENCODING, "the body is not UTF-8") from None
    if _depth(text) > MAX_DEPTH:
        if is_json(text):
            raise TooDeep
        raise _no_json()
    try:
        return _DECODER.decode(text)
    except ValueError:
        raise _no_json() from None


def _no_json() -> IllFormed:
    return IllFormed(Fault.JSON, "the body is not JSON")


def _number(text: str) -> int:
    """Return a whole number, cut to `MAX_DIGITS`. Python refuses those of over 4,300 digits, which are JSON too."""
    return int(text[:MAX_DIGITS])


def _constant(text: str) -> object:
    raise ValueError(text)  # NaN and Infinity, which Python accepts


_DECODER = json.JSONDecoder(parse_int=_number, parse_constant=_constant)

_ANY_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_NO_BRACKET = re.compile(r"[^][{}]++")
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}


def _depth(text: str) -> int:
    """Return the nesting of a text if it is JSON; if not, at least the nesting before the mistake."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    brackets = _NO_BRACKET.sub("", _ANY_STRING.sub("", text))
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0)


# The grammar, without recursion. The text is reduced to one character for each token; control characters stand for
# strings, other scalars and keys, since there are none in JSON but white space.

_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*+"')
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?|true|false|null")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_WHITE = str.maketrans("", "", " \t\n\r")

_NEIGHBOURS = re.compile(
    r"(?=[\x02[{])(?:"
    r"[\x02\]}](?=[,\]}]|\Z)"  # a value ends
    r"|\x03(?=[\x02[{])"  # a key
    r"|\[(?=[\x02[{\]])"
    r"|\{(?=[\x03}])"
    r"|,(?=[\x02\x03[{])"
    r")*+"
)
"""Sequences of tokens that may follow each other, whatever bracket they are in."""

_SCALARS = re.compile(r"[\x02\x03]++")
_COMMAS = re.compile(r",++|;++")
_OPEN = {"]": "[", "}": "{", ",": "[", ";": "{"}


def is_json(text: str) -> bool:
    """Return True if a text is JSON, at any depth. Takes linear time."""
    if _CONTROL.search(text):
        return False
    tokens = _SCALAR.sub("\2", _STRING.sub("\1", text)).translate(_WHITE)
    tokens = tokens.replace("\1:", "\3").replace("\1", "\2")
    if _NEIGHBOURS.fullmatch(tokens) is None:
        return False
    # Left to check: brackets match, and each comma is in a bracket of its kind. ";" is a comma before a key.
    opened = ["."]
    for token in _COMMAS.sub(lambda commas: commas[0][0], _SCALARS.sub("", tokens.replace(",\3", ";"))):
        if token in "[{":
            opened.append(token)
        elif opened[-1] != _OPEN[token]:
            return False
        elif token in "]}":
            opened.pop()
    return len(opened) == 1
