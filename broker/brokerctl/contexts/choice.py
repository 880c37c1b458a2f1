"""The choice of the broker for one command: options first, then the environment, then the contexts file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from broker.brokerctl.contexts.context import Context, check
from broker.brokerctl.contexts.file import BUILT_IN, path_of, read

URL = "ELKOBROKER_URL"
TOKEN = "ELKOBROKER_TOKEN"


@attrs.frozen
class Given:
    """The options of the command line that choose the broker; None for those that are absent."""

    context: str | None = None
    url: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    token_file: str | None = None
    user: str | None = None
    password_file: str | None = None


def chosen(given: Given, environ: Mapping[str, str]) -> tuple[str, Context]:
    """Return the name and the checked context for a command. Raises `Failure`.

    The first of these gives the address: ``--url``, ``--context``, ELKOBROKER_URL, the current context of the file, the
    broker on this machine. The other options replace the keys of that context. ELKOBROKER_TOKEN is used where neither
    options nor the context have credentials: the token of one broker is not sent to another that has its own.
    """
    if given.url is not None:
        name, context = "", Context(given.url)
    elif given.context is not None:
        path = path_of(environ)
        name, context = given.context, _beside(read(path).named(given.context), path)
    elif environ.get(URL):
        name, context = "", Context(environ[URL])
    else:
        path = path_of(environ)
        contexts = read(path)
        name = contexts.current or BUILT_IN
        context = _beside(contexts.named(name), path)
    keys = attrs.asdict(given, filter=lambda field, value: bool(value) and field.name not in ("context", "url"))
    options: dict[str, Any] = dict(keys)
    if "token_file" in options:
        context = attrs.evolve(context, token=None, user=None, password_file=None)
    elif "user" in options:
        context = attrs.evolve(context, token=None, token_file=None, password_file=None)
    context = attrs.evolve(context, **options)
    if not context.authenticates and (token := environ.get(TOKEN)):
        context = attrs.evolve(context, token=token.strip())
    check(context)
    return name, context


def _beside(context: Context, path: Path) -> Context:
    """Return the context with its files relative to the contexts file."""
    changed: dict[str, Any] = {}
    for key in ("ca", "cert", "key", "token_file", "password_file"):
        if value := getattr(context, key):
            changed[key] = str(path.parent / Path(value).expanduser())
    return attrs.evolve(context, **changed)
