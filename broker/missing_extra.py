"""Imports of a program of an extra: without the extra's libraries, one sentence names it."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

OURS = frozenset({"broker", "spark"})
"""Packages whose absence is a defect, not a missing extra."""


def load(module: str, program: str, extra: str) -> ModuleType:
    """Import the module of a program. Ends the process with a sentence if a library of the extra is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OURS:
            raise
        print(f"{program} needs {error.name}: pip install 'elkobroker[{extra}]'", file=sys.stderr)
        sys.exit(1)
