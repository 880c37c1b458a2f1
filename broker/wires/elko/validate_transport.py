"""Checks of the transport of a listener: its path, and the origins of web pages that may connect."""

from __future__ import annotations

import re
from collections.abc import Iterator

from broker.config.problem import Problem
from broker.wires.elko.config import ElkoListener

MAX_PATH = 200
"""Characters of a path: with a session id and a number it must fit into a request line."""

MAX_ORIGINS = 1_000
"""Origins that one listener may list: no list that is maintained by hand is longer."""

FOR_BROWSERS = ("websocket", "http")
"""The transports that have paths and origins."""

_PATH = re.compile(r"/[A-Za-z0-9._~/-]*")
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def transport_problems(here: str, listener: ElkoListener) -> Iterator[Problem]:
    """Yield the errors in a listener's ``path`` and ``origins``."""
    path = listener.path
    if listener.transport not in FOR_BROWSERS:
        for key, given in (("path", path is not None), ("origins", bool(listener.origins))):
            if given:
                yield Problem(f"{here}.{key}", 'has no effect without transport = "websocket" or "http"')
        return
    if path is not None and not _PATH.fullmatch(path):
        yield Problem(f"{here}.path", "must begin with / and have letters, digits, dots, hyphens, underscores, tildes")
    elif path is not None and len(path) > MAX_PATH:
        yield Problem(f"{here}.path", f"has more than {MAX_PATH} characters")
    if len(listener.origins) > MAX_ORIGINS:
        yield Problem(f"{here}.origins", f"has more than {MAX_ORIGINS} entries")
    for number, origin in enumerate(listener.origins):
        yield from _origin(f"{here}.origins[{number}]", origin)


def _origin(key: str, origin: str) -> Iterator[Problem]:
    if origin in ("*", "null"):
        return
    match = _ORIGIN.fullmatch(origin)
    if match is None:
        yield Problem(key, 'must be an origin such as "https://game.example.org", without a path, or "*" for all')
    elif origin.endswith(_DEFAULT_PORTS.get(match["scheme"], "\0")):
        yield Problem(key, "names the default port of its scheme, which browsers omit")
