"""The endpoint with the user of a request, and the document of the API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from broker.access.principal import OPERATIONS, Access
from broker.admin.api.pieces import answer
from broker.web import openapi
from broker.web.http_endpoint import Call, Endpoint
from broker.web.messages import Response

TITLE = "elkobroker"

ABOUT = """The operators' interface of elkobroker: the registry of services behind all its wires, their sessions, topics
and queues, metrics, events as they happen, and actions. Lists have `pattern`, `where`, `sort`, `offset` and `limit`;
errors are problem details (RFC 9457)."""


@attrs.frozen
class WhoAmI:
    """The user of the request: its name (empty for the anonymous one), the means by which it is known, and the
    operations that it may do. ``users`` is true if a users file is configured."""

    name: str
    method: str
    operations: list[str]
    users: bool


def endpoints(access: Access, listener: str, version: str, all: Callable[[], Sequence[Endpoint]]) -> list[Endpoint]:
    """Return the endpoints. ``listener`` is the title that rights name, ``all`` returns all endpoints."""

    def whoami(call: Call) -> Response:
        user = call.principal
        operations = [operation for operation in OPERATIONS if access.allows(user, listener, operation)]
        return answer(WhoAmI(user.name, user.method.value, operations, access.users))

    def document(call: Call) -> Response:
        return answer(openapi.document(all(), TITLE, version, ABOUT))

    return [
        Endpoint(
            "GET",
            "/v1/whoami",
            "get_user",
            "Returns the user of the request, and its rights.",
            whoami,
            answer=WhoAmI,
            operation=None,
            tag="access",
        ),
        Endpoint(
            "GET",
            "/openapi.json",
            "get_document",
            "Returns this document.",
            document,
            answer=dict[str, Any],
            operation=None,
            tag="access",
        ),
    ]
