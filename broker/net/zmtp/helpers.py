"""Selection of the compiled helpers of ZMTP: sealing.c for CURVE, framing.c for messages without encryption.

`broker.net.zmtp.build` makes them. Without them, or by the environment, the same is done in Python.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from broker.net.zmtp.build import BuildFailed, target_of

VARIABLE = "ELKOBROKER_HELPERS"
"""Environment variable: ``python`` or ``compiled``. Unset, it selects the compiled helpers if available."""

NOT_BUILT = "the compiled helper was not built: python -m broker.net.zmtp.build"

Split = Callable[[bytes, int, int, int], tuple[list[list[bytes]], int]]
"""Takes octets, the position at which a message begins, the octets of a message for which no limit is checked, and the
longest frame. Returns whole messages, and the position after them."""

Join = Callable[[Sequence[bytes]], bytes]
"""Returns the octets of one message of at least one frame."""


def helper_path(name: str) -> Path | None:
    """Return the path of a helper (``sealing``, ``framing``), or None if it was not built."""
    try:
        path = target_of(name)
    except BuildFailed:
        return None
    return path if path.exists() else None


@attrs.frozen
class FramingHelper:
    """The functions of framing.c. Both are None without it; ``reason`` is set unless that was asked for."""

    split: Split | None = None
    join: Join | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        """``compiled`` or ``python``."""
        return "python" if self.split is None else "compiled"


def load_framing(environ: Mapping[str, str] = os.environ, path: Path | None = None) -> FramingHelper:
    """Return the functions of framing.c that is built at ``path`` (default: the installed one), if they may be used."""
    if environ.get(VARIABLE) == "python":
        return FramingHelper()
    path = path or helper_path("framing")
    if path is None or sys.implementation.name != "cpython":
        return FramingHelper(reason=NOT_BUILT)
    try:
        # It works with Python's objects, and so must hold the GIL.
        load: Any = ctypes.PyDLL(str(path)).elkobroker_framing
        load.restype = ctypes.py_object
        return FramingHelper(*load())
    except (OSError, AttributeError) as error:
        return FramingHelper(reason=f"{path} cannot be loaded: {error}")


FRAMING = load_framing()
"""That of this process."""
