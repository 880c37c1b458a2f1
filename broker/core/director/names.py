"""Names of contexts and users, with their families and clone sets; see "Names" in docs/protocols/elko-director.md."""

from __future__ import annotations

from broker.core.errors import Reason, Refusal
from broker.core.model import MAX_NAME, MAX_TEXT


def family(context: str) -> str:
    """Return the family of a context: the part before the first dash."""
    return context.partition("-")[0]


def context_set(context: str) -> str | None:
    """Return the clone set of a context: its name up to the last dash; None with less than two dashes."""
    base = context.rpartition("-")[0]
    return base if "-" in base else None


def user_set(user: str) -> str | None:
    """Return the clone set of a user: the name up to the second dash; None with less than two dashes."""
    kind, _, rest = user.partition("-")
    name, dash, _ = rest.partition("-")
    return f"{kind}-{name}" if dash else None


def check_name(what: str, name: str) -> None:
    """Raise `Refusal` PARAMETER if a name is empty or too long. ``what`` is the kind of the name in the text."""
    if not 0 < len(name) <= MAX_NAME:
        problem = "is empty" if not name else f"has more than {MAX_NAME} characters"
        raise Refusal(Reason.PARAMETER, f"the name of a {what} {problem}")


def check_text(what: str, text: str) -> None:
    """Raise `Refusal` PARAMETER if a text is too long. ``what`` is its subject in the text."""
    if len(text) > MAX_TEXT:
        raise Refusal(Reason.PARAMETER, f"{what} has more than {MAX_TEXT} characters")
