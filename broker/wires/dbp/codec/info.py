"""Infos: JSON objects with which services describe themselves. They are stored and forwarded unchanged.

Rules:
- An *info* is the object of a registration or an update without its ``name``. The values keep their bytes; the members
  are formatted like Hermes', with ", " and ": " between, and keys in ASCII.
- Of a repeated member, the last value counts, in the position of the first.
- An update replaces whole members, also by null, and never parts of them.
- A listing contains the infos of all services, and each client must be able to parse all of it. So an info on which a
  common JSON parser fails is refused.

See docs/protocols/dbp.md, "Registration" and "Denied". `broker.wires.dbp.codec.details` parses the members that the
broker evaluates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate

import msgspec

from broker.core.errors import Malformed, Reason

MAX_NAME = 255
"""Bytes of a service's name: a heartbeat with it must fit in a datagram. The registry permits as many characters."""

MAX_INFO = 16_384
"""Bytes of an info, also after updates. Hermes' have about 130 bytes; a list of some hundred topics fits."""

MAX_DEPTH = 100
"""Levels of nesting of an info. Parsers recurse; Python's fails near a thousand levels, with the whole listing."""

MAX_DIGITS = 1_000
"""Digits of a number in an info. Python's parser fails at 4,300, with the whole listing."""

KEYS = 1_000
"""Keys of infos that are cached in encoded form. All services of a farm have the same few keys; the cache takes at most
16 MB, usually next to none."""

ERROR = "Error"
"""The key that Hermes takes as the sign of a failed listing."""

MMI = "mmi."
"""Prefix of the names that are questions to the broker (8/MMI)."""

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"')
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class BadInfo(Malformed):
    """An invalid info; ``text`` is the reason. ``hermes`` is true if it has members that only Hermes' infos have."""

    def __init__(self, text: str, hermes: bool = False) -> None:
        super().__init__(Reason.PARAMETER, text)
        self.hermes = hermes


def take_name(data: bytes, registering: bool) -> tuple[str | None, bytes, bool]:
    """Parse the object of a registration, or of an update, which may have no name.

    Returns the name, the info, and True if the object is Hermes'. Raises `BadInfo`.
    """
    members = _members(data)
    hermes = is_hermes(members)
    raw = members.pop("name", None)
    if raw is None:
        if registering:
            raise BadInfo("the service information has no name", hermes)
        return None, _object(members, hermes), hermes
    try:
        name = _TEXT.decode(raw)
    except msgspec.DecodeError:
        raise BadInfo("the name of the service is no text", hermes) from None
    if not name:
        raise BadInfo("the name of the service is empty", hermes)
    if len(name.encode()) > MAX_NAME:
        raise BadInfo(f"the name of the service has more than {MAX_NAME} bytes", hermes)
    if registering and (name == ERROR or name.startswith(MMI)):
        raise BadInfo(f"no service may be called {ERROR}, nor {MMI} and more", hermes)
    return name, _object(members, hermes), hermes


def merge(info: bytes, changes: bytes) -> bytes:
    """Return an info with the changes of an update; both are from `take_name`. Raises `BadInfo` if it is too long."""
    return _object({**_MEMBERS.decode(info), **_MEMBERS.decode(changes)}, False)


def is_hermes(members: Mapping[str, object]) -> bool:
    """Return True if these are members that Hermes registers, and that no service of the document has."""
    return "interfaces" in members and "reg_time" in members


def _members(data: bytes) -> dict[str, msgspec.Raw]:
    """Return the members of an object that every JSON parser can parse, undecoded. Raises `BadInfo`."""
    if len(data) > MAX_INFO:
        hermes = b'"interfaces"' in data and b'"reg_time"' in data  # a guess: too long to be parsed
        raise BadInfo(f"the service information has more than {MAX_INFO} bytes", hermes)
    try:
        data.decode()  # the decoder below skips values, and so does not check their UTF-8
        members = _MEMBERS.decode(data)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        raise BadInfo("the service information is no JSON object") from None
    if len(data) <= MAX_DIGITS and data.count(b"{") + data.count(b"[") <= MAX_DEPTH:
        return members  # too few bytes and brackets to exceed the limits checked below
    # Brackets and digits inside of strings do not count.
    bare = _STRING.sub(b"", data)
    if max(accumulate(map(_STEP.__getitem__, bare.translate(None, _NOT_BRACKETS)))) > MAX_DEPTH:
        raise BadInfo(f"the service information is nested deeper than {MAX_DEPTH}", is_hermes(members))
    if len(bare) > MAX_DIGITS and _LONG_NUMBER.search(bare):
        raise BadInfo(f"the service information has a number of more than {MAX_DIGITS} digits", is_hermes(members))
    return members


def _object(members: Mapping[str, msgspec.Raw], hermes: bool) -> bytes:
    info = b"{%b}" % b", ".join([b"%b: %b" % (_key(key), bytes(raw)) for key, raw in members.items()])
    if len(info) > MAX_INFO:
        raise BadInfo(f"the service information has more than {MAX_INFO} bytes", hermes)
    return info


@lru_cache(KEYS)
def _key(key: str) -> bytes:
    return json.dumps(key).encode("ascii")
