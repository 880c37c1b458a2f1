"""CURVE keys of links: the pair of this broker, and the keys of the members that may connect.

The secret key is in a file of the state directory, `KEY_FILE`, which is created at the first start; the public key is
published as `broker.core.cluster.interfaces.Member.key`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs
from nacl.bindings import crypto_box_keypair, crypto_scalarmult_base

from broker import curve, small_file
from broker.blocking import blocking
from broker.config.files import BadFile, curve_secret
from broker.core.cluster.interfaces import Member

KEY_FILE = "cluster-link.private"
"""Name of the file in the state directory."""


@attrs.frozen
class LinkKey:
    """A pair of keys in Z85."""

    public: str
    secret: str = attrs.field(repr=False)

    @classmethod
    def of(cls, secret: str) -> LinkKey:
        """Return the pair of a secret key in Z85."""
        return cls(curve.encode(crypto_scalarmult_base(curve.decode(secret))), secret)


@blocking
def kept_key(path: str) -> LinkKey:
    """Return the pair whose secret key is in a file. A missing file is created with a new key, readable by its owner.

    Raises OSError with a sentence if the file has no key, or cannot be read or created.
    """
    try:
        if not os.path.lexists(path):
            _create(path)
        return LinkKey.of(curve_secret(Path(path)))
    except BadFile as error:
        raise OSError(f"the key of links in {path}: {error}") from None
    except OSError as error:
        raise OSError(f"the key of links in {path} cannot be created: {error.strerror or error}") from None


@blocking
def _create(path: str) -> None:
    """Create the file, whole or not at all."""
    _, secret = crypto_box_keypair()
    # If the file exists by now, another process was faster: its key counts.
    with suppress(FileExistsError), small_file.written(path, create=True) as file:
        file.write(curve.encode(secret).encode("ascii") + b"\n")


class MemberKeys:
    """The allowed keys: those of the other members that are present."""

    def __init__(self) -> None:
        self.changed: list[Callable[[frozenset[str]], object]] = []
        """Callbacks for keys (Z85) that are not allowed any more."""
        self._names: dict[str, set[str]] = {}
        """Names of members by key: members may share a key."""
        self._keys: dict[str, str] = {}

    def name_of(self, key: str) -> str | None:
        """Return the name of a member with that key; None if there is none."""
        names = self._names.get(key)
        return min(names) if names else None

    def set(self, name: str, member: Member | None) -> None:
        """Allow the key of a member, and that key only; None if the member is gone."""
        new = member.key if member is not None else ""
        old = self._keys.pop(name, "")
        if new:
            self._keys[name] = new
            self._names.setdefault(new, set()).add(name)
        if old and old != new:
            names = self._names[old]
            names.discard(name)
            if not names:
                del self._names[old]
                for call in tuple(self.changed):
                    call(frozenset([old]))
