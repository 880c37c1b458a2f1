"""Text with every character visible, for files that people read."""

from __future__ import annotations

import re

_reservation = re.compile(r'("reservation": ?)"[0-9]+"')


def shown(text: str) -> str:
    """``text`` with control characters as pictures (newline is ␊), and other invisible ones as ⟨U+2028⟩.

    Reservations are not shown: they are drawn at random.
    """
    text = _reservation.sub(r'\1"RANDOM"', text)
    return "".join(character if character.isprintable() else _picture(ord(character)) for character in text)


def _picture(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"
