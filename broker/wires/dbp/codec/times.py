"""Codec of DBP's time frame. The document defines it as "current epoch time" only, so peers have several forms.

Rules:
- Four bytes are a float32, little-endian: the form that Hermes sends, and the only one that it can parse. Its error is
  up to a minute, so that no conclusion may be drawn from it.
- Eight bytes that are no text are a float64, little-endian; big-endian if only that gives a plausible time.
- All other frames are a decimal number in ASCII.
- A peer is answered in the form that it used last.

See docs/protocols/dbp.md, "Time".
"""

from __future__ import annotations

import enum
import math
import re
import struct

from broker.core.errors import Malformed, Reason

MAX_TIME = 32
"""Bytes of a time in text. Seconds with all the digits of a float64 have about twenty."""

_OUR_DAYS = (1e9, 1e10)
"""Plausible times in seconds, from the year 2001 to 2286. A float64 in the wrong byte order is hardly ever between."""


class Form(enum.Enum):
    """Encoding of a time."""

    FLOAT32 = "<f"
    FLOAT64 = "<d"
    FLOAT64_BIG = ">d"
    TEXT = "text"


_FLOAT32 = struct.Struct("<f")
_FLOAT64 = struct.Struct("<d")
_FLOAT64_BIG = struct.Struct(">d")

_is_decimal = re.compile(rb"[0-9]++(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]++)?").fullmatch


class BadTime(Malformed):
    """Bytes that are no time."""

    def __init__(self) -> None:
        super().__init__(Reason.SYNTAX, "the time is neither a float nor a decimal number")


def read_time(data: bytes) -> tuple[Form, float | None]:
    """Return the form of a time frame, and its seconds of the epoch, None for a NaN or infinity. Raises `BadTime`."""
    size = len(data)
    if size == 4:
        return Form.FLOAT32, _finite(_FLOAT32.unpack(data)[0])
    if size == 8 and not _is_text(data):
        little, big = _FLOAT64.unpack(data)[0], _FLOAT64_BIG.unpack(data)[0]
        if _is_of_our_days(big) and not _is_of_our_days(little):
            return Form.FLOAT64_BIG, big
        return Form.FLOAT64, _finite(little)
    return Form.TEXT, read_text(data)


def read_text(data: bytes) -> float:
    """Return the seconds of a time in text. Raises `BadTime`."""
    if len(data) > MAX_TIME or not _is_decimal(data):
        raise BadTime
    seconds = float(data)
    if seconds == math.inf:
        raise BadTime
    return seconds


def _is_text(data: bytes) -> bool:
    return data.isascii() and data.decode("ascii").isprintable()


def _is_of_our_days(seconds: float) -> bool:
    return _OUR_DAYS[0] <= seconds < _OUR_DAYS[1]


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def write_time(form: Form, now: float) -> bytes:
    """Encode a time frame for ``now``, in seconds of the epoch."""
    if form is Form.TEXT:
        return b"%.6f" % now
    if form is Form.FLOAT32:
        return _FLOAT32.pack(now)
    return (_FLOAT64 if form is Form.FLOAT64 else _FLOAT64_BIG).pack(now)
