"""Tests for which the time of a garbage collection matters, or what it finds."""

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


def set_aside() -> None:
    """Exclude all present objects from later collections, which see only what is made from now on.

    Garbage is collected first: it would stay until the end of the process.
    """
    gc.collect()
    gc.freeze()
