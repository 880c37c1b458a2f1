"""Endpoints of HTTP: a method at a path, its parameters and answers as types, and its handler.

The router, the checks of parameters and the OpenAPI document come from these values alone. Parameters and bodies are
frozen attrs classes whose fields are of plain types, `typing.Literal` or `typing.Annotated` with `msgspec.Meta` (bounds
and a description); a field's default makes a parameter optional. A query parameter is converted from its text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from twisted.internet.defer import Deferred

from broker.access.grants import EVERYTHING, Grants
from broker.access.principal import Principal
from broker.web.messages import Request, Response, Stream

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
