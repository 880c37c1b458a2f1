"""No input of any peer may cause a traceback: a failure that is logged fails the test in whose course it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.recording.logs import nothing_fails


@pytest.fixture(autouse=True)
def _nothing_fails() -> Iterator[None]:
    with nothing_fails():
        yield
