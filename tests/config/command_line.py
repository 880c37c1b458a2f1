"""The configuration that a command line makes."""

from __future__ import annotations

from broker.app.configuration import Config
from broker.tap import Options


def configured(*words: str) -> Config:
    """The configuration that twistd would be given."""
    options = Options()
    options.parseOptions(words)  # type: ignore[no-untyped-call]
    found = options["configured"]
    assert isinstance(found, Config)
    return found
