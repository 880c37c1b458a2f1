"""Client keys that are allowed at a ROUTER: those of its key directory, and those of the users file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred

from broker.access.principal import Access

Changed = Callable[[frozenset[str]], object]
"""Is called with the keys (Z85) that are no longer allowed or have another name."""


class KeyDirectory(Protocol):
    """The allow-list in a directory; `broker.net.allowed_keys.AllowedKeys` implements it."""

    changed: list[Changed]

    def name_of(self, key: str) -> str | None:
        """Return the name of a key, or None if it is not allowed."""

    def refresh(self) -> Deferred[None]:
        """Read the directory now."""

    def stop(self) -> None:
        """Stop watching the directory."""


class KnownKeys:
    """The keys of both; each may be absent. A key in both has its name in the users file."""

    def __init__(self, directory: KeyDirectory | None, access: Access | None) -> None:
        self.changed: list[Changed] = []
        """Callbacks for changes."""
        self._directory = directory
        self._access = access
        self._users = {} if access is None else dict(access.keys)
        if directory is not None:
            directory.changed.append(self._directory_changed)
        if access is not None:
            access.changed.append(self._users_changed)

    def name_of(self, key: str) -> str | None:
        """Return the name of a key (Z85), that of its user or of its file; None if it is not allowed."""
        user = self._users.get(key)
        if user is not None or self._directory is None:
            return user
        return self._directory.name_of(key)

    def refresh(self) -> Deferred[Any] | None:
        """Read the directory now. The users file is refreshed by its owner."""
        return None if self._directory is None else self._directory.refresh()

    def stop(self) -> None:
        """Stop watching the directory."""
        if self._directory is not None:
            self._directory.stop()

    def _directory_changed(self, gone: frozenset[str]) -> None:
        self._tell(frozenset(key for key in gone if key not in self._users))

    def _users_changed(self) -> None:
        assert self._access is not None
        before = {key: self.name_of(key) for key in {**self._users, **self._access.keys}}
        self._users = dict(self._access.keys)
        self._tell(frozenset(key for key, name in before.items() if name is not None and self.name_of(key) != name))

    def _tell(self, gone: frozenset[str]) -> None:
        for call in tuple(self.changed):
            call(gone)
