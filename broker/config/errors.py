"""Problems of the values of a configuration, and its errors: all of them at once, each with its place."""

from __future__ import annotations

from collections.abc import Iterable

import attrs


@attrs.frozen
class Problem:
    """A problem at ``key``. ``other`` is the key that it disagrees with, if there is one."""

    key: str
    text: str
    other: str = ""


@attrs.frozen
class ConfigError:
    """One error.

    ``line`` counts from 1 and is None for an error without a line (an unreadable file, a value of the command line);
    ``key`` is the dotted key, empty for an error without a key (a syntax error).
    """

    line: int | None
    key: str
    text: str

    def located(self, name: str) -> str:
        """Return the error as one line of text, in the form that editors recognise: ``FILE:LINE: key: text``."""
        place = name if self.line is None else f"{name}:{self.line}"
        return ": ".join(part for part in (place, self.key, self.text) if part)


class BadConfig(Exception):
    """A configuration that cannot be used. ``errors`` has all errors, in order of lines; never empty.

    ``str()`` gives one line for each error, for operators. It shows no secret.
    """

    def __init__(self, name: str, errors: Iterable[ConfigError]) -> None:
        self.name = name
        self.errors = tuple(sorted(errors, key=lambda error: (error.line or 0, error.key)))
        super().__init__(name, self.errors)

    def __str__(self) -> str:
        return "\n".join(error.located(self.name) for error in self.errors)
