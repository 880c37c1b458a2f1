"""Reading the registry: the entries that a user is shown, by whatever way.

Ways are finds, lists and DNS, the broker's own topics, watches and events, the tables of operators, and the profile
"registry" of MTL. One rule holds for all of them:

- An entry is shown to users with the right `find` for its name. The right to use the way ("subscribe", "view") is
  needed besides, and does not replace it.
- Lists, watches and topics of all names leave out what is not shown. A name that is asked for, and a list whose reader
  may find nothing, is refused.
- An item about several services, such as a provider and its load, is shown to users who may find any of them; an item
  about none that is known, such as the end of a provider, to users who may find all names.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from broker.access.grants import Grants, NameSet

_ALL = NameSet(frozenset("*"))


@attrs.frozen
class RegistryReading:
    """The entries that one user is shown. Equal values show the same, so that readers share what is encoded."""

    names: NameSet = _ALL

    @classmethod
    def of(cls, grants: Grants | None) -> RegistryReading:
        """Return what the grants permit to read; everything without a users file (None)."""
        if grants is None or grants.unlimited:
            return EVERY_ENTRY
        return cls(grants.named("find"))

    @property
    def every(self) -> bool:
        """True if all entries are shown: nothing needs a check."""
        return self.names.every

    @property
    def nothing(self) -> bool:
        """True if no entry is shown, whatever its name."""
        return not self.names.patterns

    def shows(self, name: str) -> bool:
        """Return True if a service of that name is shown."""
        return name in self.names

    def shows_any(self, names: Iterable[str]) -> bool:
        """Return True if something that concerns services of these names is shown."""
        return self.names.every or any(name in self.names for name in names)


EVERY_ENTRY = RegistryReading()
"""All entries."""
