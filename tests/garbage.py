"""Tests for which the time of a garbage collection matters."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Prevent garbage collections in the block: objects are freed by their reference counts alone."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
