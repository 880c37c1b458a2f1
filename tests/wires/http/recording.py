"""HTTP without sockets: the real routes, dispatcher and endpoints of the wire over a farm's registry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import attrs
from twisted.internet.defer import Deferred

from broker.access.principal import Access, Act
from broker.access.rights import AnonymousAccess
from broker.core.errors import Refusal
from broker.rest.dispatch import Dispatch
from broker.rest.http_endpoint import Endpoint, Routes
from broker.rest.messages import Request, Response, Stream
from broker.wires.http.http_settings import Http
from broker.wires.http.sessions.finding import FindingEndpoints
from broker.wires.http.sessions.instances import Instances
from broker.wires.http.sessions.registration import RegistrationEndpoints
from tests.recording.farm import CoreFarm
from tests.wires.recording import ElkoFarm


@attrs.define
class Answered:
    """An answer as a client reads it. ``status`` is 0 while it waits; a stream is no answer of this kind.

    ``deferred``: it was a Deferred.
    """

    status: int = 0
    json: Any = None
    headers: dict[str, str] = attrs.field(factory=dict)
    deferred: bool = False


class HttpFarm(CoreFarm):
    """HTTP over the registry of a farm."""

    step = 0.02

    def __init__(
        self,
        farm: ElkoFarm | None = None,
        http: Http | None = None,
        access: Access | None = None,
        endpoints: Sequence[Endpoint] = (),
    ) -> None:
        self.farm = ElkoFarm() if farm is None else farm
        super().__init__(self.farm.clock)
        self.silence = self.make_silence(self.farm.registry, self.leases, self.clock)
        self.instances = Instances(self.farm.registry, self.leases, http or Http(), self.silence)
        self.access: Access = AnonymousAccess() if access is None else access
        self.refusals: list[Refusal] = []
        self.request_ids: list[str] = []
        """Those of the refusals."""
        self.failures = 0
        self.acts: list[Act] = []
        own = [
            *RegistrationEndpoints(self.instances, self.clock).endpoints(),
            *FindingEndpoints(self.farm.registry, self.access, self.clock).endpoints(),
            *endpoints,
        ]
        self.dispatch = Dispatch(
            Routes(own),
            self.access,
            self._refused,
            self._failed,
            frozenset(["broker.example.com"]),
            self,
        )

    def record(self, act: Act) -> None:
        """Keep an administrative act: this is the audit log."""
        self.acts.append(act)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        address: str = "192.0.2.7",
        local: bool = False,
        certificate: tuple[str, ...] = (),
        query: dict[str, str] | None = None,
        id: str = "",
        **headers: str,
    ) -> Answered:
        """The answer to a request: filled in later, if it waits. Headers have underscores for hyphens."""
        request = Request(
            method,
            path,
            {name: [value] for name, value in (query or {}).items()},
            {"host": "localhost:9080", **{name.replace("_", "-"): value for name, value in headers.items()}},
            b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode(),
            address,
            local,
            certificate=certificate,
            id=id,
        )
        answered = Answered()
        answer = self.dispatch.answer(request)
        if isinstance(answer, Deferred):
            answered.deferred = True
            answer.addCallback(self._fill, answered)
        else:
            self._fill(answer, answered)
        return answered

    def put(
        self,
        name: str,
        instance: str,
        hostport: str = "h:1",
        address: str = "192.0.2.7",
        token: str = "",
        **body: Any,
    ) -> Answered:
        """Register an instance."""
        path = f"/v1/services/{quote(name, safe='')}/{quote(instance, safe='')}"
        return self.ask("PUT", path, {"hostport": hostport, **body}, address, **_owner(token))

    def renew(self, name: str, instance: str, address: str = "192.0.2.7", token: str = "", **body: Any) -> Answered:
        """Renew an instance."""
        return self.ask("POST", f"/v1/services/{name}/{instance}/renew", body, address, **_owner(token))

    def delete(self, name: str, instance: str, address: str = "192.0.2.7", token: str = "") -> Answered:
        """Withdraw an instance."""
        return self.ask("DELETE", f"/v1/services/{name}/{instance}", None, address, **_owner(token))

    def find(self, name: str, **query: Any) -> list[str]:
        """The hostports of a service."""
        answered = self.ask("GET", f"/v1/services/{name}", query={key: str(value) for key, value in query.items()})
        assert answered.status == 200
        return [service["hostport"] for service in answered.json["services"]]

    def _fill(self, answer: Response | Stream, answered: Answered) -> None:
        assert isinstance(answer, Response)
        data = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)
        answered.status = answer.status
        answered.json = json.loads(data) if data else None
        answered.headers = dict(answer.headers)

    def _refused(self, address: str, refusal: Refusal, request_id: str) -> None:
        self.refusals.append(refusal)
        self.request_ids.append(request_id)

    def _failed(self, address: str, request_id: str) -> None:
        self.failures += 1


def _owner(token: str) -> dict[str, Any]:
    return {"owner_token": token} if token else {}
