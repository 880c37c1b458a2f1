"""The checks before an endpoint: host, path, site, credentials, rights, parameters; and what becomes of errors."""

from __future__ import annotations

import base64
import gc
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ref

import attrs
import pytest
from twisted.internet.defer import Deferred, succeed

from broker.access.principal import Act, Method, Principal
from broker.core.errors import Reason, Refusal
from broker.rest.http_endpoint import Call, Endpoint
from broker.rest.messages import Outlet, Request, Response, Stream
from tests.access.test_users_access import Rig
from tests.access.users import FILE, TOKEN
from tests.garbage import no_collection
from tests.wires.http.recording import HttpFarm


@attrs.frozen
class Order:
    """The body of an order."""

    kill: bool = False


class Desk:
    """Endpoints that record their calls, and answer by ``then``."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.then: Callable[[Call], Any] = lambda call: Response(body=b"{}")
        self.endpoints = [
            Endpoint("GET", "/open", "open", "", self._handle, operation=None),
            Endpoint("GET", "/view", "view", "", self._handle),
            Endpoint(
                "POST", "/order/{name}", "order", "", self._handle, body=Order, operation="admin.shutdown", writes=True
            ),
        ]

    def _handle(self, call: Call) -> Any:
        self.calls.append(call)
        return self.then(call)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def http(desk: Desk) -> HttpFarm:
    return HttpFarm(endpoints=desk.endpoints)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "users.toml")


@pytest.fixture
def guarded(rig: Rig, desk: Desk) -> HttpFarm:
    """With a users file: ann has every right, bob some, the anonymous user fewer."""
    return HttpFarm(access=rig.access, endpoints=desk.endpoints)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


ANN = basic("ann", "pencil")
BOB = basic("bob", "crayon")


# host, path, site


def test_a_request_for_another_host_is_misdirected(http: HttpFarm, desk: Desk) -> None:
    assert http.ask("GET", "/open", host="evil.example.com").status == 421
    assert http.ask("GET", "/open", host="broker.example.com").status == 200
    assert len(desk.calls) == 1


def test_options_are_answered_with_the_methods(http: HttpFarm, desk: Desk) -> None:
    answered = http.ask("OPTIONS", "/open")
    assert (answered.status, answered.headers["Allow"]) == (204, "GET, HEAD, OPTIONS")
    assert http.ask("OPTIONS", "/nothing").status == 404
    assert http.ask("POST", "/open").headers["Allow"] == "GET, HEAD, OPTIONS"
    assert desk.calls == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://localhost:9080", "sec_fetch_site": "same-origin"}, 200),
        ({"origin": "http://evil.example.com"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:8000"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
    ],
)
def test_a_page_of_another_site_changes_nothing(
    http: HttpFarm, desk: Desk, headers: dict[str, Any], status: int
) -> None:
    assert http.ask("POST", "/order/x", {}, **headers).status == status
    assert http.ask("GET", "/view", upgrade="websocket", **headers).status == status
    assert http.ask("GET", "/view", **headers).status == 200, "a page cannot read the answer"
    assert len(desk.calls) == (3 if status == 200 else 1)


# credentials and rights


@pytest.mark.parametrize(
    ("headers", "name", "method"),
    [
        ({}, "", Method.NONE),
        ({"authorization": ANN}, "ann", Method.PASSWORD),
        ({"authorization": f"Bearer {TOKEN}"}, "ann", Method.TOKEN),
        ({"authorization": f"bearer   {TOKEN} "}, "ann", Method.TOKEN),
    ],
)
def test_credentials_make_a_principal(
    guarded: HttpFarm, desk: Desk, headers: dict[str, Any], name: str, method: Method
) -> None:
    assert guarded.ask("GET", "/open", **headers).status == 200
    assert desk.calls[0].principal == Principal(name, method, "192.0.2.7", desk.calls[0].principal.credential)


def test_a_client_certificate_is_a_credential(guarded: HttpFarm, desk: Desk) -> None:
    assert guarded.ask("GET", "/view", certificate=("ann.example",)).status == 200
    assert desk.calls[0].principal.name == "ann"
    assert guarded.ask("GET", "/view", certificate=("eve.example",)).status == 401


@pytest.mark.parametrize(
    "given",
    [
        basic("ann", "wrong"),
        basic("eve", "pencil"),
        "Bearer ebt_wrong",
        "Bearer",
        "Basic",
        "Basic !",
        "Basic " + base64.b64encode(b"no colon").decode(),
        "Basic " + base64.b64encode(b"\xff:\xff").decode(),
        "Digest x",
        "",
    ],
)
def test_wrong_credentials_are_refused_even_where_none_are_needed(guarded: HttpFarm, desk: Desk, given: str) -> None:
    answered = guarded.ask("GET", "/open", authorization=given)
    assert answered.status == 401
    assert "WWW-Authenticate" in answered.headers
    assert desk.calls == []


def test_a_script_of_a_page_gets_no_dialog_of_its_browser(guarded: HttpFarm) -> None:
    assert guarded.ask("GET", "/view").headers["WWW-Authenticate"].startswith("Basic")
    assert guarded.ask("GET", "/view", sec_fetch_mode="cors").headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    ("authorization", "status"),
    [(None, 401), (BOB, 403), (ANN, 200)],
)
def test_a_right_is_needed(guarded: HttpFarm, desk: Desk, authorization: str | None, status: int) -> None:
    headers: dict[str, Any] = {} if authorization is None else {"authorization": authorization}
    assert guarded.ask("GET", "/view", **headers).status == status
    assert guarded.ask("POST", "/order/x", {}, **headers).status == status
    assert len(desk.calls) == (2 if status == 200 else 0)


def test_rights_are_by_name(guarded: HttpFarm) -> None:
    assert guarded.ask("PUT", "/v1/services/bob-1/a", {"hostport": "h:1"}, authorization=BOB).status == 201
    assert guarded.ask("PUT", "/v1/services/bank/a", {"hostport": "h:1"}, authorization=BOB).status == 403
    assert guarded.ask("GET", "/v1/services/bob-1").status == 401
    assert guarded.ask("GET", "/v1/services/public-1").status == 200


def test_users_own_instances_wherever_they_are(guarded: HttpFarm) -> None:
    path, body = "/v1/services/bob-1/a", {"hostport": "h:1"}
    assert guarded.ask("PUT", path, body, authorization=BOB).status == 201
    assert guarded.ask("PUT", path, body, "192.0.2.8", authorization=BOB).status == 200
    assert guarded.ask("PUT", path, body, authorization=ANN).status == 409


def test_guesses_are_limited(guarded: HttpFarm) -> None:
    statuses = [guarded.ask("GET", "/open", authorization=basic("ann", str(n))).status for n in range(50)]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert guarded.ask("GET", "/open", authorization=ANN).status == 429
    assert guarded.ask("GET", "/open", authorization=BOB).status == 200


def test_a_verified_password_is_not_checked_again(guarded: HttpFarm, desk: Desk) -> None:
    assert guarded.ask("GET", "/open", authorization=ANN).status == 200
    again = guarded.ask("GET", "/open", address="192.0.2.9", authorization=ANN)
    assert (again.status, again.deferred) == (200, False)
    assert [call.principal.address for call in desk.calls] == ["192.0.2.7", "192.0.2.9"]
    assert desk.calls[0].principal.name == desk.calls[1].principal.name == "ann"
    assert guarded.ask("GET", "/open", authorization=basic("ann", "wrong")).status == 401


def test_a_verified_password_is_refused_as_a_wrong_one_while_guesses_are(guarded: HttpFarm) -> None:
    assert guarded.ask("GET", "/open", authorization=ANN).status == 200
    for number in range(50):
        guarded.ask("GET", "/open", authorization=basic("ann", str(number)))
    wrong = guarded.ask("GET", "/open", authorization=basic("ann", "x"))
    right = guarded.ask("GET", "/open", authorization=ANN)
    assert (wrong.status, wrong.json, wrong.deferred) == (right.status, right.json, right.deferred)
    assert right.status == 429
    assert right.headers["Retry-After"] == "4"
    assert guarded.ask("GET", "/open", address="192.0.2.9", authorization=ANN).status == 200


def test_a_verified_password_ends_with_the_user(guarded: HttpFarm, rig: Rig) -> None:
    assert guarded.ask("GET", "/open", authorization=BOB).status == 200
    rig.change(FILE.replace('name = "bob"', 'name = "rob"'))
    assert guarded.ask("GET", "/open", authorization=BOB).status == 401


# rights that end


def test_an_answer_that_waits_ends_with_the_right(guarded: HttpFarm, rig: Rig) -> None:
    answered = guarded.ask("GET", "/v1/services/bob-1", query={"wait": "10"}, authorization=BOB)
    public = guarded.ask("GET", "/v1/services/public-1", query={"wait": "10"})
    assert answered.status == 0
    rig.change(FILE.replace('name = "bob"', 'name = "rob"'))
    assert (answered.status, answered.json["code"]) == (401, "wrong-credentials")
    assert public.status == 0


def test_an_answer_that_waits_is_forbidden_when_the_user_loses_the_name(guarded: HttpFarm, rig: Rig) -> None:
    lost = guarded.ask("GET", "/v1/services/bob-1", query={"wait": "10"}, authorization=BOB)
    kept = guarded.ask("GET", "/v1/services/shared", query={"wait": "10"}, authorization=BOB)
    rig.change(FILE.replace('"{user}-*", ', ""))
    assert (lost.status, lost.json["code"]) == (403, "forbidden")
    assert kept.status == 0


def test_a_stream_ends_with_the_right(guarded: HttpFarm, rig: Rig, desk: Desk) -> None:
    ended = []

    class Out:
        behind = False
        closed = False
        over: Any = None

        def write(self, data: bytes) -> None:
            raise AssertionError

        def close(self) -> None:
            self.closed = True
            self.over()

    def begin(outlet: Outlet) -> Callable[[], None]:
        return lambda: ended.append(outlet)

    desk.then = lambda call: succeed(Stream(begin))
    streams: list[Any] = []
    answer: Any = guarded.dispatch.answer(
        Request("GET", "/view", headers={"host": "localhost", "authorization": ANN}, local=False)
    )
    answer.addCallback(streams.append)
    out = Out()
    out.over = streams[0].begin(out)
    rig.change(FILE + "\n# nothing of importance\n")
    assert not out.closed
    rig.change(FILE.replace('users = ["ann"]', 'users = ["eve"]'))
    assert out.closed
    assert ended == [out]
    rig.change(FILE)


# errors


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Refusal(Reason.LIMIT, "full"), 429, "limit"),
        (Refusal(Reason.NAME_TAKEN, "taken"), 409, "name-taken"),
        (Refusal(Reason.UNKNOWN_TARGET, "none"), 404, "unknown-target"),
        (ZeroDivisionError(), 500, "internal"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_an_error_of_a_handler_is_a_problem(
    http: HttpFarm, desk: Desk, error: Exception, status: int, code: str, late: bool
) -> None:
    waiting: Deferred[Response] = Deferred()

    def fail(call: Call) -> Deferred[Response]:
        if late:
            return waiting
        raise error

    desk.then = fail
    answered = http.ask("GET", "/open")
    if late:
        waiting.errback(error)
    assert (answered.status, answered.json["code"]) == (status, code)
    assert http.failures == (status == 500)
    assert [refusal.reason.code for refusal in http.refusals] == ([] if status == 500 else [code])


def test_a_late_error_needs_no_garbage_collection(http: HttpFarm, desk: Desk) -> None:
    """Its traceback has the frames of the handler, with the body of the request."""
    kept: list[ref[Order]] = []

    async def fail(order: Order) -> Response:
        kept.append(ref(order))
        raise Refusal(Reason.LIMIT, "full")

    desk.then = lambda call: Deferred.fromCoroutine(fail(Order()))
    gc.collect()
    with no_collection():
        assert http.ask("GET", "/open").status == 429
        assert kept[0]() is None


def test_an_unknown_parameter_is_a_problem(http: HttpFarm, desk: Desk) -> None:
    assert http.ask("GET", "/open", query={"x": "1"}).status == 400
    assert http.ask("GET", "/open", b"{}").status == 400
    assert http.ask("POST", "/order/x", {"kill": 1}).status == 400
    assert http.ask("POST", "/order/x", b"{}", content_type="multipart/form-data").status == 415
    assert desk.calls == []


# the audit log


def test_refused_administrative_requests_are_recorded(guarded: HttpFarm, desk: Desk) -> None:
    guarded.ask("GET", "/view", authorization=ANN)
    guarded.ask("POST", "/order/x", {"kill": True}, authorization=ANN)  # its handler records it
    guarded.ask("POST", "/order/x%2Fy", {}, authorization=BOB)
    guarded.ask("POST", "/order/x", {"kill": "what"}, authorization=ANN)
    assert [(act.principal.name, act.operation, act.object, act.result) for act in guarded.acts] == [
        ("bob", "admin.shutdown", "x/y", "refused: forbidden"),
        ("ann", "admin.shutdown", "x", "refused: parameter"),
    ]
    assert all(isinstance(act, Act) and act.listener == "http" for act in guarded.acts)


def test_a_problem_and_an_act_have_the_id_of_the_request(guarded: HttpFarm, desk: Desk) -> None:
    answered = guarded.ask("POST", "/order/x", {}, authorization=BOB, id="mine")
    assert (answered.status, answered.json["request_id"]) == (403, "mine")
    guarded.ask("POST", "/order/x", {"kill": "what"}, authorization=ANN, id="yours")
    guarded.ask("GET", "/view", authorization=f"Bearer {TOKEN}", id="first")
    guarded.ask("GET", "/view", authorization=ANN, id="second")
    guarded.ask("GET", "/open", id="third")
    assert [act.principal.request_id for act in guarded.acts] == ["mine", "yours"]
    assert [call.principal.request_id for call in desk.calls] == ["first", "second", "third"]
    assert guarded.request_ids == ["mine", "yours"]


def test_a_compressed_body_is_refused_as_such(http: HttpFarm) -> None:
    body = b'{"hostport": "h:1"}'
    refused = http.ask("PUT", "/v1/services/bank/a", gzip.compress(body), content_encoding="gzip")
    assert (refused.status, refused.headers["Accept-Encoding"]) == (415, "identity")
    assert "Content-Encoding" in refused.json["detail"]
    assert http.ask("PUT", "/v1/services/bank/a", body, content_encoding="Identity").status == 201


# a drain


def test_a_drain_refuses_clients_and_serves_operators(http: HttpFarm) -> None:
    http.put("bank", "a", ttl=2)
    http.put("bank", "ending")
    waiting = http.ask("GET", "/v1/services/post", query={"wait": "10"})
    http.dispatch.drain()
    assert waiting.status == 503
    assert http.put("bank", "b").status == 503
    assert http.renew("bank", "a").json["code"] == "draining"
    assert http.ask("GET", "/v1/services/bank").status == 503
    assert http.ask("GET", "/view").status == 200
    assert http.delete("bank", "ending").status == 204
    http.wait(2.5)
    assert len(http.instances) == 0
    http.dispatch.draining = False
    assert http.put("bank", "a").status == 201
