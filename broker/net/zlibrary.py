"""Functions of libzmq itself, for what pyzmq does at too high a price or not at all."""

from __future__ import annotations

import ctypes
import functools
from typing import Any


@functools.cache
def function(name: str) -> Any:
    """A function of the libzmq that pyzmq's extension uses, or None if it cannot be found.

    It is called without giving up the interpreter's lock, so it must not wait; `ctypes.get_errno` says why it failed.
    """
    try:
        from zmq.backend.cython import _zmq

        return getattr(ctypes.PyDLL(_zmq.__file__, use_errno=True), name)
    except (ImportError, OSError, AttributeError):
        return None
