"""Names of contexts and users: families, and clones by their dashes."""

from __future__ import annotations

from broker.core.errors import Reason, Refusal
from broker.core.model import MAX_NAME, MAX_TEXT


def family(context: str) -> str:
    """The family of a context: what is before the first dash."""
    return context.partition("-")[0]


def context_set(context: str) -> str | None:
    """The clone set of a context, its name up to the last dash; None for one that has less than two dashes."""
    base = context.rpartition("-")[0]
    return base if "-" in base else None


def user_set(user: str) -> str | None:
    """The set of a user's clones, their name up to the second dash; None for one that has less than two dashes."""
    kind, _, rest = user.partition("-")
    name, dash, _ = rest.partition("-")
    return f"{kind}-{name}" if dash else None


def check_name(what: str, name: str) -> None:
    """Refuse a name that is empty or too long to be kept."""
    if not 0 < len(name) <= MAX_NAME:
        problem = "is empty" if not name else f"has more than {MAX_NAME} characters"
        raise Refusal(Reason.PARAMETER, f"the name of a {what} {problem}")


def check_text(what: str, text: str) -> None:
    """Refuse a text that is too long to be kept."""
    if len(text) > MAX_TEXT:
        raise Refusal(Reason.PARAMETER, f"{what} has more than {MAX_TEXT} characters")
