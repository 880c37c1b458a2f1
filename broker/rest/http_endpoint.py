"""Endpoints of HTTP: a method at a path, its parameters and answers as types, its handler, and the way to it.

The router, the checks of parameters and the OpenAPI document come from these values alone. Parameters and bodies are
frozen attrs classes whose fields are of plain types, `typing.Literal` or `typing.Annotated` with `msgspec.Meta` (bounds
and a description); a field's default makes a parameter optional. A query parameter is converted from its text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import quote, unquote

import attrs
import msgspec
from twisted.internet.defer import Deferred
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.routing import Map, Rule

from broker.access.principal import Principal
from broker.access.rights import EVERYTHING, Grants
from broker.core.errors import Reason
from broker.rest.messages import Request, Response, Stream
from broker.rest.problem import Problem
from broker.validation import sentence

Answer = Response | Stream | Deferred[Any]
"""The result of a handler; a Deferred fires with one of the others, or fails with a `Problem` or a `Refusal`."""


@attrs.frozen
class NoParameters:
    """The query of an endpoint without parameters."""


@attrs.frozen(eq=False)
class Call:
    """One call of an endpoint: the request, its user, and its checked parameters.

    ``path`` has the decoded variables of the path, ``query`` is an instance of `Endpoint.query`, ``body`` one of
    `Endpoint.body`, or None without one. ``grants`` are those of the user at the listener, by which a handler decides
    on names.
    """

    request: Request
    principal: Principal
    path: Mapping[str, str]
    query: Any
    body: Any = None
    grants: Grants = EVERYTHING


@attrs.frozen(eq=False)
class Endpoint:
    """An endpoint.

    - ``method``, and ``path`` with variables in braces: ``/v1/services/{name}``. A variable matches one segment.
    - ``name``: the operationId of OpenAPI; ``summary``: a sentence; ``tag``: its group.
    - ``handler``: answers a call; it may raise a `Problem` or a `broker.core.errors.Refusal`.
    - ``query``, ``body``, ``answer``: the types of the parameters, of the JSON body (None: no body is
      allowed) and of the JSON answer (None: the answer is no JSON).
    - ``headers``: optional headers that the handler reads, with their descriptions.
    - ``operation``: the right that a user needs, see `broker.access.principal`; None: no right, not even a user.
    - ``by_name``: True if the right for any name suffices to call the handler, which decides on the names. Otherwise
      the right is needed for the variable ``name`` of the path, without one for all names.
    - ``writes``: True for an endpoint that changes something: it is refused to cross-site requests and recorded in the
      audit log if ``operation`` begins with ``admin.``.
    - ``status``: the status of success; ``statuses``: others than errors, with their meaning.
    """

    method: str
    path: str
    name: str
    summary: str
    handler: Callable[[Call], Answer]
    query: type[Any] = NoParameters
    body: type[Any] | None = None
    answer: Any = None
    headers: Mapping[str, str] = attrs.field(factory=dict)
    operation: str | None = "view"
    by_name: bool = False
    writes: bool = False
    tag: str = "farm"
    status: int = 200
    statuses: Mapping[int, str] = attrs.field(factory=dict)


# Conversion of query parameters and JSON bodies into the frozen attrs classes of an endpoint.
#
# Rules:
# - An unknown parameter, a missing one, a value of the wrong type and a value out of bounds are a `Problem` 400, which
#   names the parameter.
# - A parameter may be repeated only if its type is an array.
# - Query parameters are texts, and are converted; in JSON, a number in a string is an error.
# - Numbers are finite: ``nan`` and ``inf`` are errors.

T = TypeVar("T")

MAX_SHOWN = 100
"""Characters of a peer's text in a problem."""


def convert_query(type_: type[T], given: Mapping[str, Sequence[str]]) -> T:
    """Return the parameters of a query. Raises `Problem` 400."""
    arrays = _fields(type_)
    values: dict[str, Any] = {}
    for name, texts in given.items():
        if name not in arrays:
            raise _unknown("parameter", name, arrays)
        if not arrays[name] and len(texts) > 1:
            raise Problem(400, f"the parameter {name} is given more than once")
        values[name] = list(texts) if arrays[name] else texts[0]
    return _converted(values, type_, strict=False)


def convert_body(type_: type[T] | None, given: bytes, content_type: str | None) -> T | None:
    """Return the JSON body, or None for an endpoint without one. Raises `Problem` 400 or 415.

    An empty body is an empty object. The Content-Type may be missing or wrong: ``curl -d`` sends that of URL-encoded
    forms, and ``fetch`` in a browser text/plain. A page of another site may send these without being asked; its
    requests are refused by their Origin and Sec-Fetch-Site (`broker.rest.sites`).
    """
    if type_ is None:
        if given:
            raise Problem(400, "this request has no body")
        return None
    media = (content_type or "").partition(";")[0].strip().lower()
    if given and media == "multipart/form-data":
        raise Problem(415, "the body must be JSON: Content-Type: application/json", Reason.SYNTAX)
    try:
        values = msgspec.json.decode(given or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, f"the body is not JSON: {error}", Reason.SYNTAX) from None
    if not isinstance(values, dict):
        raise Problem(400, "the body must be a JSON object", Reason.SYNTAX)
    fields = _fields(type_)
    for name in values:
        if name not in fields:
            raise _unknown("member", name, fields)
    return _converted(values, type_, strict=True)


def _read_fields(type_: Any) -> Mapping[str, bool]:
    """Return the fields of an attrs class by name, and True for those that are arrays."""
    hints = get_type_hints(type_)
    return {field.name: _is_array(hints[field.name]) for field in attrs.fields(type_)}


_fields: Callable[[Any], Mapping[str, bool]] = cache(_read_fields)


def _without_any(type_: Any) -> Any:
    return _converted({}, type_, strict=False)


without_any: Callable[[Any], Any] = cache(_without_any)
"""Returns the parameters of a query without any. Raises `Problem` 400 if one is required."""


def _is_array(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (tuple, list, Sequence):
        return True
    return any(_is_array(each) for each in get_args(hint))


def _unknown(kind: str, name: str, known: Mapping[str, bool]) -> Problem:
    given = f"; known: {', '.join(known)}" if known else ""
    return Problem(400, f"unknown {kind} {name[:MAX_SHOWN]!r}{given}")


def _converted(values: dict[str, Any], type_: type[T], strict: bool) -> T:
    try:
        result = msgspec.convert(values, type_, strict=strict)
    except msgspec.ValidationError as error:
        raise Problem(400, sentence(error)) from None
    except RecursionError:
        raise Problem(400, "the value is nested too deeply") from None
    for field in attrs.fields(type_):  # type: ignore[arg-type]
        value = getattr(result, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise Problem(400, f"{field.name} must be a finite number")
    return result


# Routing: from a method and a path to an endpoint and the variables of its path, by `werkzeug.routing`.
#
# Rules:
# - Paths are matched segment by segment while they are still percent-encoded, so that an encoded slash is a part of its
#   segment. Encoded unreserved characters are equal to plain ones (RFC 3986, 6.2.2.2).
# - A slash at the end, and an empty segment, are significant: there are no redirects.
# - A path without an endpoint is a `Problem` 404; one with endpoints of other methods only is a `Problem` 405 with
#   Allow.
# - HEAD is answered as GET; the transport leaves out the body.

_VARIABLE = re.compile(r"\{(\w+)\}")
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


MATCHES, LONGEST = 2_048, 256
"""Matches that are kept, and characters of a path of which one is kept: 2 MiB at most. A match costs 20 calls."""


class Routes:
    """The endpoints of the daemon and its wires, each registered once, and the routes to them."""

    def __init__(self, endpoints: Iterable[Endpoint] = ()) -> None:
        self.endpoints: list[Endpoint] = []
        """All endpoints, in the order of their registration."""
        self._map = Map(strict_slashes=True, merge_slashes=False)
        self._adapter = self._map.bind("")
        self._kept = lru_cache(MATCHES)(self._match)
        self.add(endpoints)

    def add(self, endpoints: Iterable[Endpoint]) -> None:
        """Register endpoints."""
        for endpoint in endpoints:
            self.endpoints.append(endpoint)
            self._map.add(_rule(endpoint))
        self._kept.cache_clear()

    def find(self, method: str, path: str) -> tuple[Endpoint, Mapping[str, str]]:
        """Return the endpoint, and the decoded variables of its path. Raises `Problem` 404, 405 or 400.

        ``path`` is percent-encoded ASCII.
        """
        return (self._kept if len(path) <= LONGEST else self._match)(method, path)

    def _match(self, method: str, path: str) -> tuple[Endpoint, Mapping[str, str]]:
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


class _MatchedRule(Rule):
    """A rule by which no URL is built: the code for that would be compiled at each start, a millisecond for a rule."""

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        def no_url(*arguments: Any, **variables: Any) -> tuple[str, str]:
            raise NotImplementedError("path_of fills in the variables of a path")

        return no_url


def _rule(endpoint: Endpoint) -> Rule:
    return _MatchedRule(_VARIABLE.sub(r"<\1>", endpoint.path), methods=[endpoint.method], endpoint=endpoint)


def _normalized(path: str) -> str:
    """Return the path with encoded unreserved characters decoded."""
    return path if "%" not in path else _ENCODED.sub(_plain, path)


def _plain(match: re.Match[str]) -> str:
    character = chr(int(match[0][1:], 16))
    return character if character in _UNRESERVED else match[0]


def path_of(endpoint: Endpoint, **variables: str) -> str:
    """Return the path of an endpoint with its variables filled in and percent-encoded."""
    return _VARIABLE.sub(lambda match: quote(variables[match[1]], safe=""), endpoint.path)
