"""From a request to the answer of an endpoint: checks, authentication, rights, parameters, and errors as problems.

Order of the checks; each failure is a problem (RFC 9457), counted, and logged at a limited rate::

    Host          421 for a name that is not the listener's (DNS rebinding)
    path, method  404, 405 with Allow; OPTIONS is answered with Allow
    site          403 for a cross-site request to an endpoint that changes something, and for a cross-site upgrade
    credentials   401 for wrong ones; 429 while guesses of a password are refused
    rates         429 for too many requests of an address or a user
    rights        401 without credentials, if there are users; else 403
    drain         503 for registrations, renewals and finds while the broker drains
    parameters    400; 415 for a body that is no JSON, or compressed
    handler       its own `Problem`, or the `Refusal` of the core; 500 for a defect, which is logged

Credentials are ``Authorization: Bearer TOKEN``, ``Authorization: Basic``, or the client certificate. Cookies are not
read: a page of another site cannot use the rights of a user.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from broker.access.logins import RequestLimits, unlimited
from broker.access.principal import Access, Act, Audit, NoAudit, Principal, failure, forbidden
from broker.access.rights import Grants
from broker.core.errors import Reason, Refusal
from broker.rest.http_endpoint import Answer, Call, Endpoint, Routes, convert_body, convert_query, without_any
from broker.rest.messages import Outlet, Request, Response, Stream
from broker.rest.problem import Problem, problem_of
from broker.rest.sites import OtherBrokers, known_host, same_site

LISTENER = "http"
"""The title of the listener, for `Access.allows`."""

DRAINING = "the broker is draining: use another one"

CLIENTS = ("offer", "find")
"""The operations of clients: a drain refuses them, and leaves those of operators and withdrawals."""


@attrs.define(eq=False)
class Dispatch:
    """The dispatcher of one listener.

    ``others`` are the other brokers of a cluster, which clients get by the header ``Link``. ``hosts`` are its names;
    ``refused`` counts and logs a refusal to an address, ``failed`` the current exception, both with the id of the
    request.
    """

    routes: Routes
    access: Access
    refused: Callable[[str, Refusal, str], object]
    failed: Callable[[str, str], object]
    hosts: frozenset[str] = frozenset()
    audit: Audit = attrs.field(factory=NoAudit)
    requests: RequestLimits = attrs.field(factory=unlimited)
    others: OtherBrokers | None = None
    draining: bool = False
    _present: set[_Present] = attrs.field(factory=set, init=False)
    """Answers that wait, and streams."""

    def __attrs_post_init__(self) -> None:
        self.access.changed.append(self._review)

    def stop(self) -> None:
        """Listen to changes of users no longer."""
        if self._review in self.access.changed:
            self.access.changed.remove(self._review)

    def drain(self) -> None:
        """Refuse the operations of clients, and end their answers that wait."""
        self.draining = True
        for each in list(self._present):
            if _ends_with_a_drain(each.endpoint):
                each.end(_draining())

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request. Never raises."""
        try:
            endpoint, path = self._endpoint(request)
            principal = self._authenticate(request)
            if isinstance(principal, Principal):
                return self._linked(self._call(request, principal, endpoint, path), request, endpoint)
        except Exception as error:
            return self._problem(request, error)
        answer: Deferred[Any] = principal.addCallback(
            lambda known: self._linked(
                self._call(request, _present_in(request, known), endpoint, path), request, endpoint
            )
        )
        return answer.addErrback(self._late_problem, request)

    def refusal(self, request: Request, problem: Problem) -> Answer:
        """Return the answer to a request that has an endpoint, and whose answer may not wait."""
        endpoint, _ = self.routes.find(request.method, request.path)
        return self._linked(problem.response(request.id), request, endpoint)

    # inside

    def _endpoint(self, request: Request) -> tuple[Endpoint, Mapping[str, str]]:
        if not known_host(request, self.hosts):
            host = request.headers.get("host", "")[:100]
            raise Problem(421, f"this listener is not {host!r}; http.hosts has its names", Reason.FORBIDDEN)
        try:
            endpoint, path = self.routes.find(request.method, request.path)
        except Problem as problem:
            if problem.status == 405 and request.method == "OPTIONS":
                raise _Answered(Response(204, headers=problem.headers)) from None
            raise
        if (endpoint.writes or "upgrade" in request.headers) and not same_site(request, self.hosts):
            raise Problem(403, "a page of another site may not do this", Reason.FORBIDDEN)
        return endpoint, path

    def _authenticate(self, request: Request) -> Principal | Deferred[Principal]:
        """Return the user of a request. Raises `Refusal`, or the Deferred fails with one."""
        given = request.headers.get("authorization")
        address = request.address
        if given is None:
            known = self.access.by_certificate(request.certificate, address) if request.certificate else None
            return Principal(address=address, request_id=request.id) if known is None else _present_in(request, known)
        scheme, _, credentials = given.strip().partition(" ")
        credentials = credentials.strip()
        if scheme.lower() == "bearer" and credentials:
            return _present_in(request, self.access.by_token(credentials, address))
        if scheme.lower() == "basic":
            checked = self.access.by_password(*_basic(credentials), address)
            # A password that was verified before has its answer already: the request does not wait.
            verified: object = checked.result if checked.called else None
            return _present_in(request, verified) if isinstance(verified, Principal) else checked
        raise Problem(401, "this scheme of Authorization is not known: Bearer or Basic", Reason.WRONG_CREDENTIALS)

    def _call(self, request: Request, principal: Principal, endpoint: Endpoint, path: Mapping[str, str]) -> Answer:
        """Call the endpoint. Never raises."""
        grants, operation, body = self.access.grants(principal, LISTENER), endpoint.operation, None
        try:
            if self.requests.on:
                self.requests.take(principal.name, request.address)
            if operation is not None:
                if not _permitted(grants, endpoint, path):
                    raise self._not_allowed(principal, operation, path)
                if self.draining and _ends_with_a_drain(endpoint):
                    raise _draining()
            query = convert_query(endpoint.query, request.query) if request.query else without_any(endpoint.query)
            if request.body:
                _check_coding(request)
            if request.body or endpoint.body is not None:
                body = convert_body(endpoint.body, request.body, request.headers.get("content-type"))
        except Exception as error:
            self._record(principal, path, endpoint, error)
            return self._problem(request, error)
        call = Call(request, principal, path, query, body, grants)
        try:
            answer = endpoint.handler(call)
        except Exception as error:
            return self._problem(request, error)
        if isinstance(answer, Deferred):
            return self._wait(answer, call, endpoint)
        return self._watched(answer, call, endpoint) if isinstance(answer, Stream) else answer

    def _linked(self, answer: Answer, request: Request, endpoint: Endpoint) -> Answer:
        """Return the answer to a client with the other brokers in its head."""
        if self.others is None or endpoint.operation not in CLIENTS:
            return answer
        if isinstance(answer, Deferred):
            return answer.addCallback(self._linked, request, endpoint)
        return attrs.evolve(answer, headers=[*answer.headers, *self.others.links(request.secure)])

    def _wait(self, answer: Deferred[Any], call: Call, endpoint: Endpoint) -> Deferred[Any]:
        """Return the answer, which is cancelled if the rights of the user end, or if the broker drains."""
        present = _Present(call, endpoint, answer.cancel, streams=False)

        def over(result: object) -> object:
            self._present.discard(present)
            return result

        def failed(failure: Failure) -> Response:
            if present.refusal is not None and isinstance(failure.value, CancelledError):
                return self._problem(call.request, present.refusal)
            return self._late_problem(failure, call.request)

        def arrived(result: Any) -> Any:
            return self._watched(result, call, endpoint) if isinstance(result, Stream) else result

        self._present.add(present)
        return answer.addBoth(over).addCallbacks(arrived, failed)

    def _watched(self, stream: Stream, call: Call, endpoint: Endpoint) -> Stream:
        """Return a stream that ends with the rights of its user."""

        def begin(outlet: Outlet) -> Callable[[], None]:
            ended = stream.begin(outlet)
            present = _Present(call, endpoint, outlet.close, streams=True)
            self._present.add(present)

            def over() -> None:
                self._present.discard(present)
                ended()

            return over

        return attrs.evolve(stream, begin=begin)

    def _review(self) -> None:
        """End the answers that wait, and streams, of users without the right any more."""
        for each in list(self._present):
            principal, operation = each.call.principal, each.endpoint.operation
            grants = self.access.grants(principal, LISTENER)
            if not self.access.stands(principal):
                text = f"the credentials of {principal.name!r} are not valid any more"
                each.end(Problem(401, text, Reason.WRONG_CREDENTIALS))
            elif operation is not None and not _permitted(grants, each.endpoint, each.call.path):
                each.end(self._not_allowed(principal, operation, each.call.path))
            elif each.streams and grants != each.call.grants:
                # What it shows depends on them: its client asks again, with the rights of now.
                each.end(Problem(403, "the rights of the user have changed", Reason.FORBIDDEN))

    def _record(self, principal: Principal, path: Mapping[str, str], endpoint: Endpoint, error: Exception) -> None:
        """Record an administrative request that is refused here; the handlers record those that reach them."""
        operation = endpoint.operation
        if not endpoint.writes or operation is None or not operation.startswith("admin."):
            return
        self.audit.record(Act(principal, LISTENER, operation, " ".join(path.values()), failure(error)))

    def _not_allowed(self, principal: Principal, operation: str, path: Mapping[str, str]) -> Problem:
        if not principal.name and self.access.users:
            return Problem(401, f"this needs a user with the right {operation}", Reason.NOT_AUTHENTICATED)
        return problem_of(forbidden(principal, operation, path.get("name", "")))

    def _late_problem(self, failure: Failure, request: Request) -> Response:
        error = failure.value
        if isinstance(error, CancelledError):
            failure.raiseException()
        try:
            failure.raiseException()
        except Exception:  # so that `failed` logs it
            return self._problem(request, error)
        finally:
            # Its traceback has this frame, which has the error, and those with the body of the request: without the
            # cycle, no garbage collection is needed.
            failure.cleanFailure()

    def _problem(self, request: Request, error: BaseException | None) -> Response:
        """Return the answer to an error, counted and logged. To be called while the error is handled."""
        if isinstance(error, _Answered):
            return error.response
        if isinstance(error, Refusal):
            error = problem_of(error)
        if not isinstance(error, Problem):
            self.failed(request.address, request.id)
            problem = Problem(500, "the broker failed on this request; its log has the reason", Reason.INTERNAL)
            return problem.response(request.id)
        if error.reason is not Reason.NO_SUCH_SERVICE:  # the regular end of a wait
            self.refused(request.address, Refusal(error.reason, error.detail), request.id)
        if error.status == 401:
            error.headers = (*error.headers, *_challenges(request))
        return error.response(request.id)


def _permitted(grants: Grants, endpoint: Endpoint, path: Mapping[str, str]) -> bool:
    """Return True if the operation of the endpoint, which has one, is granted for a call with these variables."""
    assert endpoint.operation is not None
    if endpoint.by_name:
        return grants.may_some(endpoint.operation)
    return grants.may(endpoint.operation, path.get("name", ""))


@attrs.define(eq=False)
class _Present:
    """An answer that waits, or a stream. ``close`` ends it."""

    call: Call
    endpoint: Endpoint
    close: Callable[[], object]
    streams: bool
    refusal: Problem | None = None
    """The reason why it was ended; None until then."""

    def end(self, refusal: Problem) -> None:
        """End it. An answer that waits becomes the refusal; a stream is closed, and its next request is refused."""
        self.refusal = refusal
        self.close()


class _Answered(Exception):
    """The end of the checks by an answer that is no error."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


def _check_coding(request: Request) -> None:
    """Raise `Problem` 415 for a body with a coding: a compressed one may be any number of times as large."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        text = "the body must be plain: Content-Encoding is not supported"
        raise Problem(415, text, Reason.SYNTAX, [("Accept-Encoding", "identity")])


def _present_in(request: Request, principal: Principal) -> Principal:
    """Return the user as the audit log names it in this request."""
    return attrs.evolve(principal, address=request.address, request_id=request.id)


def _ends_with_a_drain(endpoint: Endpoint) -> bool:
    """Return True if a drain refuses the calls of an endpoint. A client that ends may withdraw what it has offered."""
    return endpoint.operation in CLIENTS and endpoint.method != "DELETE"


def _draining() -> Problem:
    """Return the refusal of a broker that drains."""
    return Problem(503, DRAINING, Reason.DRAINING, [("Retry-After", "60")])


def _basic(credentials: str) -> tuple[str, str]:
    """Return the user and password of Basic credentials (RFC 7617)."""
    try:
        user, colon, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        colon = ""
    if not colon:
        raise Problem(401, "these are no Basic credentials", Reason.WRONG_CREDENTIALS)
    return user, password


def _challenges(request: Request) -> Sequence[tuple[str, str]]:
    """Return the challenges of a 401. A script of a page gets none for Basic: its browser would open a dialog."""
    bearer = ("WWW-Authenticate", 'Bearer realm="elkobroker"')
    if request.headers.get("sec-fetch-mode", "navigate") != "navigate":
        return [bearer]
    return [bearer, ("WWW-Authenticate", 'Basic realm="elkobroker", charset="UTF-8"')]
