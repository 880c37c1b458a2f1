"""The field Authorization of a context."""

from __future__ import annotations

import base64
from collections.abc import Callable

from broker.brokerctl.contexts.context import Context, secret
from broker.brokerctl.failures import Exit, Failure


def authorization(context: Context, ask: Callable[[str], str] | None) -> str:
    """Return the field of a context's token or user, "" for neither. Raises `Failure`.

    ``ask`` returns the password of a user, from the terminal; None if there is no terminal.
    """
    if context.token or context.token_file:
        token = context.token or secret(context.token_file or "", "token")
        if not token.isascii():
            raise Failure(f"{context.token_file} has characters that no token has", Exit.USAGE)
        return f"Bearer {token}"
    if not context.user:
        return ""
    if context.password_file:
        password = secret(context.password_file, "password")
    elif ask is not None:
        password = ask(context.user)
    else:
        raise Failure(f"there is no terminal to ask for the password of {context.user}: set password_file", Exit.USAGE)
    return "Basic " + base64.b64encode(f"{context.user}:{password}".encode()).decode()
