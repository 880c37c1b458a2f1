"""Client keys that a ROUTER admits, by the users file.

Rules:
- The key of a user is admitted, with the user's name.
- Any other key is that of the anonymous user, and admitted while that user has any right there. Without a users file
  these are all keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import attrs

from broker.access.principal import Access, Principal

Changed = Callable[[Collection[str]], object]
"""Is called with the keys (Z85) that are no longer admitted, or have another name."""


@attrs.frozen
class _Admitted:
    """The keys that are admitted at one moment."""

    users: Mapping[str, str]
    others: bool
    """True if keys without a user are admitted too."""

    def name_of(self, key: str) -> str | None:
        return self.users.get(key, "" if self.others else None)


@attrs.frozen
class _Gone(Collection[str]):
    """The keys with a name before, and another one or none now. There are endless ones without a user, which only
    membership shows."""

    before: _Admitted
    now: _Admitted

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, str)
        name = self.before.name_of(key)
        return name is not None and self.now.name_of(key) != name

    def __iter__(self) -> Iterator[str]:
        return (key for key in {**self.before.users, **self.now.users} if key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class KnownKeys:
    """The admitted keys of a ROUTER, which is the listener, or listeners, with these titles in the users file."""

    def __init__(self, access: Access, *titles: str) -> None:
        self.changed: list[Changed] = []
        """Callbacks for changes."""
        self._access = access
        self._titles = titles
        self._admitted = self._look()
        access.changed.append(self._users_changed)

    def name_of(self, key: str) -> str | None:
        """Return the user of a key (Z85), empty for the anonymous one; None if the key is not admitted."""
        return self._admitted.name_of(key)

    def _look(self) -> _Admitted:
        others = any(self._access.grants(Principal(), title).some for title in self._titles)
        return _Admitted(dict(self._access.keys), others)

    def _users_changed(self) -> None:
        before, self._admitted = self._admitted, self._look()
        if before != self._admitted:
            gone = _Gone(before, self._admitted)
            for call in tuple(self.changed):
                call(gone)
