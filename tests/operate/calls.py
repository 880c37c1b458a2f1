"""Calls of endpoints without a transport, and a farm to call them about."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit

from broker.access.principal import Act, Principal
from broker.access.rights import EVERYTHING, Grants
from broker.core.model import Rights, Service
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.rest.http_endpoint import Call, Endpoint, Routes, convert_body, convert_query
from broker.rest.messages import Request, Response, Stream
from tests.recording.farm import CoreFarm, clock_at

BOB = Principal("bob", address="192.0.2.7")


class Log:
    """An audit log in memory."""

    def __init__(self) -> None:
        self.acts: list[Act] = []

    def record(self, act: Act) -> None:
        self.acts.append(act)

    @property
    def lines(self) -> list[tuple[str, str, str, str]]:
        assert all(act.principal == BOB for act in self.acts)
        return [(act.listener, act.operation, act.object, act.result) for act in self.acts]


class Site:
    """Endpoints, called with values."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._routes = Routes(endpoints)

    def call(
        self,
        method: str,
        url: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        grants: Grants = EVERYTHING,
    ) -> Response | Stream:
        """The result of a call by a user with these grants."""
        split = urlsplit(url)
        endpoint, path = self._routes.find(method, split.path)
        query = parse_qs(split.query, keep_blank_values=True)
        data = b"" if body is None else json.dumps(body).encode()
        request = Request(method, split.path, query, headers or {}, data, "192.0.2.7")
        result = endpoint.handler(
            Call(
                request,
                BOB,
                path,
                convert_query(endpoint.query, query),
                convert_body(endpoint.body, data, "application/json"),
                grants,
            )
        )
        assert isinstance(result, Response | Stream)
        return result

    def response(self, method: str, url: str, body: Any = None, **headers: str) -> Response:
        """The response of a call. Header names have underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        result = self.call(method, url, body, named)
        assert isinstance(result, Response)
        return result

    def get(self, url: str, **headers: str) -> Any:
        """The JSON answer of a GET."""
        return json.loads(content(self.response("GET", url, **headers)))

    def post(self, url: str, **body: Any) -> Any:
        """The JSON answer of a POST."""
        return json.loads(content(self.response("POST", url, body)))


def content(response: Response) -> bytes:
    """The whole body of a response."""
    return response.body if isinstance(response.body, bytes) else b"".join(response.body)


def pieces(response: Response) -> Iterator[bytes]:
    """The pieces of a response's body."""
    assert not isinstance(response.body, bytes)
    return response.body


class ApiFarm(CoreFarm):
    """A registry, on a clock that a test advances; the time begins in 2026."""

    def __init__(self, *known: Any) -> None:
        super().__init__(clock_at(1_767_225_600))
        ids = count(100)
        self.restored = Restored(known, 30.0, self.clock, lambda ids: None)
        self.registry = Registry(self.clock, lambda: next(ids), self.restored)

    def join(self, label: str = "bank-1", *names: str, wire: str = "elko", address: str = "192.0.2.1:7") -> int:
        """A new provider with services of these names."""
        provider = self.registry.join(label, wire, address)
        self.registry.offer([Service(name, f"{label}:80", provider) for name in names], Rights())
        return provider
