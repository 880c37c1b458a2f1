"""What services say of themselves: JSON objects that are kept and handed on as they came, but for the name.

Rules:
- An *info* is the object of a registration or an update without its ``name``. The values keep their bytes; the members
  stand as Hermes writes them, with ", " and ": " between, and keys in ASCII.
- Of a member that comes twice the last value counts, in the place of the first.
- An update replaces whole members, also by null, and never looks into them.
- Everybody who lists the catalogue must read everybody's info: what a common JSON reader stumbles over is refused.
- Requests are answered with an object. If it has the key "Error", Hermes takes nothing else of it.
- A service of another wire has no info, and is listed by a mapping (`Offer`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec

from broker.core.errors import Malformed, Reason

MAX_NAME = 255
"""Bytes of a service's name: with it a heartbeat must fit in a datagram, and the registry takes as many characters."""

MAX_INFO = 16_384
"""Bytes of an info, also after updates. Hermes' have about 130, and a list of some hundred topics fits."""

MAX_BODY = 16 * 1024 * 1024
"""Bytes of a listing: a hundred thousand services as they are in practice, or a thousand of the largest."""

ROOM = MAX_BODY - 2
"""Bytes of entries that fit in a body, each counted with `SEPARATOR` more."""

SEPARATOR = 2
"""Bytes between two entries, counted for each of them."""

MAX_DEPTH = 100
"""How deep an info may be nested. Readers recurse, and Python's gives up, with all that was listed, near a thousand."""

MAX_DIGITS = 1_000
"""Digits of a number in an info. Python's reader gives up, with all that was listed, at 4,300."""

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
    bare = _STRING.sub(b"", data)
    if max(accumulate(map(_STEP.__getitem__, bare.translate(None, _NOT_BRACKETS)))) > MAX_DEPTH:
        raise BadInfo(f"the service information is nested deeper than {MAX_DEPTH}", is_hermes(members))
    if len(bare) > MAX_DIGITS and _LONG_NUMBER.search(bare):
        raise BadInfo(f"the service information has a number of more than {MAX_DIGITS} digits", is_hermes(members))
    return members


def _object(members: Mapping[str, msgspec.Raw], hermes: bool) -> bytes:
    info = b"{%b}" % b", ".join([b"%b: %b" % (_json(key), bytes(raw)) for key, raw in members.items()])
    if len(info) > MAX_INFO:
        raise BadInfo(f"the service information has more than {MAX_INFO} bytes", hermes)
    return info


def _json(value: str | float) -> bytes:
    return json.dumps(value).encode("ascii")


# The answers to requests


def entry(name: str, info: bytes) -> bytes:
    """A service as a member of a listing, whatever is in its name."""
    return b"%b: %b" % (_json(harmless(name)), info)


def body(entries: Iterable[bytes], more: Mapping[str, str | float] | None = None) -> bytes:
    """The body of a reply: services, each by its `entry`, in this order, and other members after them."""
    others = [b"%b: %b" % (_json(key), _json(value)) for key, value in (more or {}).items()]
    return b"{%b}" % b", ".join([*entries, *others] if others else entries)


TOO_LONG = body((), {ERROR: f"The Services Listed Have More Than {MAX_BODY} Bytes; Ask for Them by Name"})
"""The body instead of one that would be too long: part of a list would look like all of it."""


def listing(entries: Iterable[tuple[str, bytes]], more: Mapping[str, str | float] | None = None) -> bytes:
    """The body of a reply: services, each with its info, in this order, and other members after them; or `TOO_LONG`."""
    parts: list[bytes] = []
    length = 0
    for name, info in entries:
        part = entry(name, info)
        length += len(part) + SEPARATOR
        if length > ROOM:
            return TOO_LONG
        parts.append(part)
    return body(parts, more)


def harmless(text: str) -> str:
    """The text without surrogates that stand alone: strict readers would read nothing of a listing with one of them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def unknown(*names: str) -> dict[str, str | float]:
    """What a listing says of names that were never registered, in Hermes' words."""
    return {ERROR: "; ".join(f"No Registered Service With the Name {name}" for name in names)}


def inactive(name: str, last_seen: float) -> dict[str, str | float]:
    """What a listing says of one service that was there: the document's inactive warning. ``last_seen`` is a time."""
    text = f"The Registered Service With the Name {name} Is Inactive"
    return {ERROR: text, "status": "inactive", "last_seen": last_seen}


def unlistable() -> dict[str, str | float]:
    """What a listing says of a service whose name is `ERROR`. Other wires may have one."""
    return {ERROR: f"No Service With the Name {ERROR} Can Be Listed"}


# Services that did not come by DBP, and say nothing of themselves


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a service is."""

    ip: str
    port: int


class Offer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One service of another wire, in place of an info. The place is there twice, for either way of looking for it.

    ``providers`` and ``omitted`` are there if several offer the name: all of them, and how many more there are.
    """

    ip: str | None = None
    port: int | None = None
    interfaces: dict[str, Place] | None = None
    hostport: str
    protocol: str
    label: str | None = None
    wire: str | None = None
    provider: int
    load: float | None = None
    restored: bool = False
    providers: Sequence[Offer] | None = None
    omitted: int = 0


_HOSTPORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%[^\]]+)?)\]|([^:\[\]]+)):([0-9]{1,5})", re.ASCII)
_OFFER = msgspec.json.Encoder()


def place(hostport: str) -> Place | None:
    """The host, an IPv6 address without its brackets, and the port; None if these are not what the text says."""
    match = _HOSTPORT.fullmatch(hostport)
    if match is None or not 0 < int(match[3]) <= 65_535:
        return None
    return Place(match[1] or match[2], int(match[3]))


def mapping(offers: Sequence[Offer], omitted: int = 0) -> bytes:
    """What stands for the info of a name: the first offer, and all of them if there are several."""
    first = offers[0]
    if first.ip is not None and first.port is not None:
        first = msgspec.structs.replace(first, interfaces={first.protocol: Place(first.ip, first.port)})
    if len(offers) > 1:
        first = msgspec.structs.replace(first, providers=offers, omitted=omitted)
    return _OFFER.encode(first)
