"""What services say of themselves: JSON objects that are kept and handed on as they came, but for the name.

Rules:
- An *info* is the object of a registration or an update without its ``name``. The values keep their bytes; the members
  stand as Hermes writes them, with ", " and ": " between, and keys in ASCII.
- Of a member that comes twice the last value counts, in the place of the first.
- An update replaces whole members, also by null, and never looks into them.
- Everybody who lists the catalogue must read everybody's info: what a common JSON reader stumbles over is refused.
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
"""Bytes of a service's name: with it a heartbeat must fit in a datagram, and the registry takes as many characters."""

MAX_INFO = 16_384
"""Bytes of an info, also after updates. Hermes' have about 130, and a list of some hundred topics fits."""

MAX_DEPTH = 100
"""How deep an info may be nested. Readers recurse, and Python's gives up, with all that was listed, near a thousand."""

MAX_DIGITS = 1_000
"""Digits of a number in an info. Python's reader gives up, with all that was listed, at 4,300."""

KEYS = 1_000
"""Keys of infos that are kept encoded. A farm's services all have the same few; at most 16 MB, usually nothing."""

ERROR = "Error"
"""The key that makes Hermes take a listing for a failure."""

MMI = "mmi."
"""Names that begin so are questions to the broker (8/MMI)."""

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"')
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class BadInfo(Malformed):
    """An info that is not taken; ``text`` says why. ``hermes`` tells that it has what only Hermes' have."""

    def __init__(self, text: str, hermes: bool = False) -> None:
        super().__init__(Reason.PARAMETER, text)
        self.hermes = hermes


def take_name(data: bytes, registering: bool) -> tuple[str | None, bytes, bool]:
    """The name and the info of a registration, or of an update, which may have no name; and whether it is Hermes'.

    Raises `BadInfo`.
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
    """An info after an update; both come from `take_name`. Raises `BadInfo` if it would be too long."""
    return _object({**_MEMBERS.decode(info), **_MEMBERS.decode(changes)}, False)


def is_hermes(members: Mapping[str, object]) -> bool:
    """Whether these are the members that Hermes registers with, and nobody who follows the document."""
    return "interfaces" in members and "reg_time" in members


def _members(data: bytes) -> dict[str, msgspec.Raw]:
    """The members of an object that every reader can read."""
    if len(data) > MAX_INFO:
        hermes = b'"interfaces"' in data and b'"reg_time"' in data  # as far as it was read
        raise BadInfo(f"the service information has more than {MAX_INFO} bytes", hermes)
    try:
        data.decode()  # The decoder does not look into values.
        members = _MEMBERS.decode(data)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        raise BadInfo("the service information is no JSON object") from None
    if len(data) <= MAX_DIGITS and data.count(b"{") + data.count(b"[") <= MAX_DEPTH:
        return members  # it cannot have what is looked for now
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
