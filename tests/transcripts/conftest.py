"""The option that rewrites golden conversations."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-transcripts",
        action="store_true",
        help="rewrite tests/transcripts/golden from the broker's present messages (name that folder's tests too)",
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """True if golden conversations are to be written, not compared with."""
    # The default is for runs in which this file was found too late for its option to count.
    return bool(request.config.getoption("--rewrite-transcripts", default=False))
