"""Routing: from a method and a path to an endpoint and the variables of its path, by `werkzeug.routing`.

Rules:
- Paths are matched segment by segment while they are still percent-encoded, so that an encoded slash is a part of its
  segment. Encoded unreserved characters are equal to plain ones (RFC 3986, 6.2.2.2).
- A slash at the end, and an empty segment, are significant: there are no redirects.
- A path without an endpoint is a `Problem` 404; one with endpoints of other methods only is a `Problem` 405 with Allow.
- HEAD is answered as GET; the transport leaves out the body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from urllib.parse import quote, unquote

from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.routing import Map, Rule

from broker.core.errors import Reason
from broker.web.endpoint import Endpoint
from broker.web.problem import Problem

_VARIABLE = re.compile(r"\{(\w+)\}")
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class Routes:
    """The routes to a list of endpoints. ``endpoints`` returns the current list; routes are rebuilt when it changes."""

    def __init__(self, endpoints: Callable[[], Sequence[Endpoint]]) -> None:
        self._endpoints = endpoints
        self._known: Sequence[Endpoint] = ()
        self._adapter = Map().bind("")

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """The endpoints as of the last `refresh`."""
        return self._known

    def refresh(self) -> None:
        """Read the list of endpoints again."""
        found = list(self._endpoints())
        if [*map(id, found)] != [*map(id, self._known)]:
            self._known = found
            rules = [_rule(endpoint) for endpoint in found]
            self._adapter = Map(rules, strict_slashes=True, merge_slashes=False).bind("")

    def find(self, method: str, path: str) -> tuple[Endpoint, Mapping[str, str]]:
        """Return the endpoint, and the decoded variables of its path. Raises `Problem` 404, 405 or 400.

        ``path`` is percent-encoded ASCII.
        """
        if not path.startswith("/") or path.startswith("//"):
            raise _nothing_here()
        try:
            endpoint, variables = self._adapter.match(_normalized(path), method=method)
        except MethodNotAllowed as error:
            raise not_with_this_method(error.valid_methods or ()) from None
        except HTTPException:
            raise _nothing_here() from None
        try:
            return endpoint, {name: unquote(value, errors="strict") for name, value in variables.items()}
        except UnicodeDecodeError:
            raise Problem(400, "the path is not UTF-8", Reason.ENCODING) from None


def not_with_this_method(allowed: Iterable[str]) -> Problem:
    """Return the problem of a path that has endpoints of other methods only."""
    allow = ", ".join(sorted({*allowed, "OPTIONS"}))
    return Problem(405, f"this path has {allow}", Reason.UNKNOWN_OP, [("Allow", allow)])


def template_variables(path: str) -> list[str]:
    """Return the names of the variables of an endpoint's path, in order."""
    return _VARIABLE.findall(path)


def _nothing_here() -> Problem:
    return Problem(404, "there is nothing at this path", Reason.UNKNOWN_TARGET)


def _rule(endpoint: Endpoint) -> Rule:
    return Rule(_VARIABLE.sub(r"<\1>", endpoint.path), methods=[endpoint.method], endpoint=endpoint)


def _normalized(path: str) -> str:
    """Return the path with encoded unreserved characters decoded."""
    return path if "%" not in path else _ENCODED.sub(_plain, path)


def _plain(match: re.Match[str]) -> str:
    character = chr(int(match[0][1:], 16))
    return character if character in _UNRESERVED else match[0]


def path_of(endpoint: Endpoint, **variables: str) -> str:
    """Return the path of an endpoint with its variables filled in and percent-encoded."""
    return _VARIABLE.sub(lambda match: quote(variables[match[1]], safe=""), endpoint.path)
