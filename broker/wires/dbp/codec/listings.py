"""Encoder of listings, the answers to requests: JSON objects with a member for each service, and others after them.

Rules:
- An answer is always an object. If it has the key "Error", Hermes ignores all other members.
- A service of another wire has no info, and is listed by a mapping (`ListedOffer`).
- A listing that would be too long is replaced by an error (`TOO_LONG`).

See docs/protocols/dbp.md, "Requests" and "Out of the registry". `broker.wires.dbp.sessions.listing` selects the
services, and caches what is encoded here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from broker.wires.dbp.codec.info import ERROR

MAX_BODY = 16 * 1024 * 1024
"""Bytes of a listing: a hundred thousand services of real size, or a thousand of the largest."""

ROOM = MAX_BODY - 2
"""Bytes for the entries of a body, without its braces. Each entry counts with `SEPARATOR` bytes more."""

SEPARATOR = 2
"""Bytes between two entries, counted for each of them."""


def _json(value: str | float) -> bytes:
    return json.dumps(value).encode("ascii")


def entry(name: str, info: bytes) -> bytes:
    """Encode a service as a member of a listing. The name may be any text."""
    return b"%b: %b" % (_json(harmless(name)), info)


def body(entries: Iterable[bytes], more: Mapping[str, str | float] | None = None) -> bytes:
    """Return the body of a reply: services, each by its `entry`, in this order, and other members after them."""
    others = [b"%b: %b" % (_json(key), _json(value)) for key, value in (more or {}).items()]
    return b"{%b}" % b", ".join([*entries, *others] if others else entries)


TOO_LONG = body((), {ERROR: f"The Services Listed Have More Than {MAX_BODY} Bytes; Ask for Them by Name"})
"""The body that replaces one that would be too long: a part of a list would look like all of it."""


def listing(entries: Iterable[tuple[str, bytes]], more: Mapping[str, str | float] | None = None) -> bytes:
    """Return the body of a reply, or `TOO_LONG`: services, each with its info, in this order, and other members."""
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
    """Return the text with lone surrogates replaced: strict parsers would refuse the whole listing with one of them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def unknown(*names: str) -> dict[str, str | float]:
    """Return the error for names that were never registered, in Hermes' words."""
    return {ERROR: "; ".join(f"No Registered Service With the Name {name}" for name in names)}


def inactive(name: str, last_seen: float) -> dict[str, str | float]:
    """Return the document's inactive warning, for a name that was registered. ``last_seen`` is the time of its end, in
    seconds of the epoch."""
    text = f"The Registered Service With the Name {name} Is Inactive"
    return {ERROR: text, "status": "inactive", "last_seen": last_seen}


def unlistable() -> dict[str, str | float]:
    """Return the error for a service whose name is `ERROR`, which other wires permit."""
    return {ERROR: f"No Service With the Name {ERROR} Can Be Listed"}


# services of other wires, which have no info


class Place(msgspec.Struct, frozen=True, gc=False):
    """Address of a service."""

    ip: str
    port: int


class Offer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One service of another wire, in place of an info. It has the address twice, under the keys of the document and
    under those of Hermes.

    If several providers offer the name, ``providers`` has all of them, and ``omitted`` the number of further ones.
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
    """Parse a hostport. The host of an IPv6 address has no brackets. Returns None for any other text."""
    match = _HOSTPORT.fullmatch(hostport)
    if match is None or not 0 < int(match[3]) <= 65_535:
        return None
    return Place(match[1] or match[2], int(match[3]))


def mapping(offers: Sequence[Offer], omitted: int = 0) -> bytes:
    """Encode the replacement of an info: the first offer, and all of them if there are several."""
    first = offers[0]
    if first.ip is not None and first.port is not None:
        first = msgspec.structs.replace(first, interfaces={first.protocol: Place(first.ip, first.port)})
    if len(offers) > 1:
        first = msgspec.structs.replace(first, providers=offers, omitted=omitted)
    return _OFFER.encode(first)
