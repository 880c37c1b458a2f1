"""Limits of the JSON information that a service carries (`broker.core.model.Service.info`).

The broker passes it on as text. A text that some parser refuses would fail later: at other brokers, and at clients,
together with the listing that contains it.
"""

from __future__ import annotations

import re
from itertools import accumulate

MAX_INFO = 16_384
"""Limit of an info in characters, and in bytes at DBP. Hermes' have about 130; a list of some hundred topics fits, and
10,000 services at the limit take some 160 MB."""

MAX_DEPTH = 100
"""Levels of nesting. Parsers recurse; Python's fails near a thousand levels, with all that is parsed with it."""

MAX_DIGITS = 1_000
"""Digits of a number. Python's parser fails at 4,300, with all that is parsed with it."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"')
_LONG_NUMBER = re.compile(rf"[0-9]{{{MAX_DIGITS + 1}}}")
_OTHERS = re.compile(r"[^\[\]{}]+")
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}


def info_fault(info: str) -> str:
    """Return why parsers may refuse a text of valid JSON, as the rest of a sentence; empty for one that all parse."""
    if len(info) > MAX_INFO:
        return f"has more than {MAX_INFO} characters"
    if len(info) <= MAX_DIGITS and info.count("{") + info.count("[") <= MAX_DEPTH:
        return ""  # too few characters and brackets to exceed the limits below
    # Brackets and digits inside of strings do not count.
    bare = _STRING.sub("", info)
    if max(accumulate(map(_STEP.__getitem__, _OTHERS.sub("", bare))), default=0) > MAX_DEPTH:
        return f"is nested deeper than {MAX_DEPTH}"
    if len(bare) > MAX_DIGITS and _LONG_NUMBER.search(bare):
        return f"has a number of more than {MAX_DIGITS} digits"
    return ""
