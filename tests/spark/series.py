"""Recorded series as files, for the tests of what reads them."""

import gzip
from collections.abc import Iterable
from pathlib import Path

import numpy as np

START = 1_700_000_000


def write(path: Path, values: Iterable[object], step: int = 3600, start: int = START) -> Path:
    """Write a series as CSV."""
    lines = ["timestamp,value", *(f"{start + i * step},{value}" for i, value in enumerate(values))]
    text = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def daily(days: int, rng: np.random.Generator) -> np.ndarray:
    """Make a noisy daily curve."""
    hours = np.arange(days * 24)
    return 100 + 60 * np.sin(2 * np.pi * hours / 24) + rng.normal(0, 15, len(hours))
