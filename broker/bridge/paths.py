"""The paths of services and messages over bridges, by which loops are cut.

A path has an id, unique at the site where the service or message began, and the sites that it has left: ``12 west
east``. It travels in the meta of a service, or in a header of a message, so that it passes through the brokers of a
cluster as well. A site takes nothing that has left it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

from broker.config.bridge_settings import MAX_PATH

HEADER = b"X-Elkobroker-Path"
"""Name of the header of a message, which mc0 and MTL deliver as any of that form."""

MAX_BYTES = 1_024
"""Bytes of a path: an id and `MAX_PATH` names of sites."""

_PATH = re.compile(r"[A-Za-z0-9-]{1,64}(?: [A-Za-z0-9][A-Za-z0-9._-]{0,63})+")


@attrs.frozen
class Path:
    """A path: the ``id`` of its origin, and the ``sites`` in their order."""

    id: str
    sites: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str | bytes | None) -> Path | None:
        """Return the path in a text; None if it is none."""
        if text is None or len(text) > MAX_BYTES:
            return None
        known = text if isinstance(text, str) else text.decode("ascii", "replace")
        if _PATH.fullmatch(known) is None:
            return None
        id, *sites = known.split(" ")
        return cls(id, tuple(sites)) if len(sites) <= MAX_PATH else None

    def __str__(self) -> str:
        return " ".join((self.id, *self.sites))

    @property
    def origin(self) -> tuple[str, str]:
        """The id and the first site, which the same service or message has on each way."""
        return self.id, self.sites[0]

    def onward(self, here: str, there: str) -> Path | None:
        """Return the path of what leaves the site ``here`` for ``there``; None if it may not go there."""
        if there in self.sites or len(self.sites) >= MAX_PATH:
            return None
        return Path(self.id, (*self.sites, here))

    def objection(self, here: str, neighbour: str, hops: int) -> str:
        """Return the reason for which the site ``here`` does not take what comes from a neighbour by this path; empty
        if there is none."""
        if self.sites[-1] != neighbour:
            return "malformed"
        if here in self.sites:
            return "loop"
        return "hops" if len(self.sites) > hops else ""


def split(headers: Sequence[bytes]) -> tuple[Path | None, list[bytes]]:
    """Return the path in the headers of a message, None without one, and the other headers."""
    found: Path | None = None
    rest: list[bytes] = []
    for name, value in zip(headers[::2], headers[1::2], strict=False):
        if name == HEADER:
            found = Path.parse(bytes(value))
        else:
            rest += (name, value)
    return found, rest
