"""The check that a bad value of the configuration is reported at its line and key."""

from __future__ import annotations

import pytest

from broker.app.configuration import parse
from broker.config.key_checks import BadConfig


def assert_one_problem(text: str, line: int, key: str, problem: str) -> None:
    """Assert that the configuration ``text`` is refused for one problem: at ``line``, of ``key``, with that text."""
    with pytest.raises(BadConfig) as caught:
        parse(text, "broker.toml")
    (error,) = caught.value.errors
    assert (error.line, error.key) == (line, key)
    assert problem in error.text
