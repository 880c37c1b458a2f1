"""Users files for tests: verifiers that are quick to check, and files as careful tools write them."""

from __future__ import annotations

from pathlib import Path

from broker.access import tokens
from broker.access.password_verifiers import MIN_ITERATIONS, of

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
"""A CURVE public key."""

ANN = of("pencil", MIN_ITERATIONS)
BOB = of("crayon", MIN_ITERATIONS)
TOKEN = "ebt_" + "t" * 43
"""Fixed: it is in the names of tests, which all processes must agree on."""

FILE = f"""\
# the users of a small farm
[[users]]
name = "ann"
passwords = ["{ANN.text()}"]  # since May
certificates = ["Ann.example"]
keys = ["{KEY}"]
[[users.tokens]]
label = "ci"
hash = "{tokens.hashed(TOKEN)}"
expires = "1970-01-01T00:16:40Z"

[[users]]
name = "bob"
passwords = ["{BOB.text()}"]

[[rights]]
users = ["ann"]
operations = ["*"]

[[rights]]
users = ["bob"]
operations = ["find", "offer"]
listeners = ["elko*", "http"]
names = ["{{user}}-*", "shared"]

[[rights]]
users = [""]
operations = ["find"]
names = ["public-*"]
"""
"""Ann may do everything, and has a token that expires at second 1000 of the epoch. Bob has some names, the anonymous
user fewer."""


def put(path: Path, content: str, mode: int = 0o600) -> str:
    """Write a file as careful tools do: whole, under another name, then renamed. Returns the path as text."""
    temporary = path.with_suffix(".new")
    temporary.write_text(content)
    temporary.chmod(mode)
    temporary.rename(path)
    return str(path)
