"""Keys of a terminal: bytes to names. Pure."""

from __future__ import annotations

import re

_SEQUENCES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b[Z": "back tab",
}
_NAMES = {"\x1b": "escape", "\t": "tab", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace"}
_KEY = re.compile(r"\x1b(?:\[[0-9;]*[@-~]|O[@-~])|.", re.DOTALL)


def keys(data: bytes) -> list[str]:
    """Return the keys in one read of a terminal: characters, or names of others. Unknown ones are left out."""
    found = []
    for each in _KEY.findall(data.decode(errors="ignore")):
        name = _SEQUENCES.get(each) or _NAMES.get(each) or (each if len(each) == 1 and each.isprintable() else "")
        if name:
            found.append(name)
    return found
