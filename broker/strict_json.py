"""JSON by its grammar alone, and the bounds at which decoders fail.

Python's decoder accepts NaN and the infinities, which are not JSON, and fails at deep nesting and at long numbers,
which are. The limits are those of each format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import accumulate

_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_NO_BRACKET = re.compile(r"[^][{}]++")
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}


def strict_decoder(parse_int: Callable[[str], object] = int) -> json.JSONDecoder:
    """Return a decoder whose ``decode`` raises ValueError for a text that is not JSON.

    The nesting of the text, and its digits unless ``parse_int`` takes any number of them, must be bounded before.
    """
    return json.JSONDecoder(parse_int=parse_int, parse_constant=_constant)


def is_deeper(text: str, depth: int) -> bool:
    """Return True if a text of JSON is nested deeper than ``depth``. In other text, at least the brackets before the
    mistake count."""
    if text.count("[") + text.count("{") <= depth:
        return False
    brackets = _NO_BRACKET.sub("", without_strings(text))
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > depth


def without_strings(text: str) -> str:
    """Return a text of JSON without its strings and keys: the characters inside of them are no brackets or numbers."""
    return _STRING.sub("", text)


def _constant(text: str) -> object:
    raise ValueError(text)  # NaN and the infinities
