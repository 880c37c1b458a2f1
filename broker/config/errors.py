"""What is wrong with a configuration: every error at once, each with its place."""

from __future__ import annotations

from collections.abc import Iterable

import attrs


@attrs.frozen
class ConfigError:
    """One error.

    ``line`` counts from 1 and is None where no line is to blame (an unreadable file, a value of the command line);
    ``key`` is the dotted key, empty where no key is to blame (a syntax error).
    """

    line: int | None
    key: str
    text: str

    def located(self, name: str) -> str:
        """The error as one line of text, in the form that editors know: ``FILE:LINE: key: text``."""
        place = name if self.line is None else f"{name}:{self.line}"
        return ": ".join(part for part in (place, self.key, self.text) if part)


class BadConfig(Exception):
    """A configuration that cannot be used. ``errors`` has all that is wrong with it, in order of lines; never empty.

    ``str()`` of it is one line for each error, ready to be shown to an operator. It shows no secret.
    """

    def __init__(self, name: str, errors: Iterable[ConfigError]) -> None:
        self.name = name
        self.errors = tuple(sorted(errors, key=lambda error: (error.line or 0, error.key)))
        super().__init__(name, self.errors)

    def __str__(self) -> str:
        return "\n".join(error.located(self.name) for error in self.errors)
