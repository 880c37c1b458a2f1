"""Users files for tests: verifiers that are quick to check, and files as careful tools write them."""

from __future__ import annotations

import json
from pathlib import Path

from broker.access import editing, users_document
from broker.access.passwords import MIN_ITERATIONS, of
from broker.config.daemon_settings import OPEN_FILE

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
OTHER_KEY = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
"""CURVE public keys."""

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
hash = "{users_document.token_hash(TOKEN)}"
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
users = ["anonymous"]
operations = ["find"]
names = ["public-*"]
"""
"""Ann may do everything, and has a token that expires at second 1000 of the epoch. Bob has some names, the anonymous
user fewer."""


def user(name: str, *credentials: str) -> str:
    """The table of a user, with lines of credentials."""
    return "\n".join(["[[users]]", f'name = "{name}"', *credentials, ""])


def right(users: str, operations: str = "*", listeners: str = "*", *names: str) -> str:
    """The table of a right: patterns between spaces, and patterns of names."""
    return "\n".join(
        [
            "[[rights]]",
            f"users = {json.dumps(users.split())}",
            f"operations = {json.dumps(operations.split())}",
            f"listeners = {json.dumps(listeners.split())}",
            *([f"names = {json.dumps(names)}"] if names else []),
            "",
        ]
    )


ELSEWHERE = right("anonymous", "*", "elko* director* console http dbp dns")
"""The right of peers without a user to everything at listeners that a test is not about."""

ACCESS = '\n[access]\nfile = "users.toml"\n'
"""The section that names the users file."""


OPEN = f'\n[access]\nfile = "{OPEN_FILE}"\n'
"""The section that names the users file by which everybody may do everything."""


def token(text: str) -> str:
    """The table of a token, after that of its user."""
    return f'[[users.tokens]]\nlabel = "{text}"\nhash = "{users_document.token_hash(text)}"\n'


def give_password(path: Path, name: str, password: str) -> None:
    """Give a user of a file a password, or another one. The user is added if it is not there."""
    if name not in {each.name for each in editing.users(str(path))}:
        editing.add_user(str(path), name)
    editing.set_password(str(path), name, password)


def put(path: Path, content: str, mode: int = 0o600) -> str:
    """Write a file as careful tools do: whole, under another name, then renamed. Returns the path as text."""
    temporary = path.with_suffix(".new")
    temporary.write_text(content)
    temporary.chmod(mode)
    temporary.rename(path)
    return str(path)
