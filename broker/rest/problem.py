"""Problem details of HTTP (RFC 9457): the one form of errors in the API."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import attrs
import msgspec

from broker.access.logins import GUESS_EVERY
from broker.core.errors import Reason, Refusal
from broker.rest.messages import Response

MEDIA_TYPE = "application/problem+json"


class Problem(Exception):
    """An error answer. ``status`` is that of HTTP, ``detail`` a sentence for people, ``reason`` the machine's code."""

    def __init__(
        self,
        status: int,
        detail: str,
        reason: Reason = Reason.PARAMETER,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.reason = reason
        self.headers = tuple(headers)

    def response(self, request_id: str) -> Response:
        """Return the answer to the request of that id."""
        details = ProblemDetails(HTTPStatus(self.status).phrase, self.status, self.detail, self.reason.code, request_id)
        return Response(self.status, msgspec.json.encode(details), MEDIA_TYPE, self.headers)


@attrs.frozen
class ProblemDetails:
    """The body of an error answer: ``type`` is always about:blank (RFC 9457, 4.2.1), ``code`` the machine's code.

    ``request_id`` is the value of ``X-Request-ID`` of the answer: log lines about the request have it as well.
    """

    title: str
    status: int
    detail: str
    code: str
    request_id: str
    type: str = "about:blank"


STATUS = {
    Reason.NO_SUCH_SERVICE: 404,
    Reason.UNKNOWN_TARGET: 404,
    Reason.FORBIDDEN: 403,
    Reason.NOT_AUTHENTICATED: 401,
    Reason.WRONG_CREDENTIALS: 401,
    Reason.TOO_MANY_GUESSES: 429,
    Reason.LIMIT: 429,
    Reason.NAME_TAKEN: 409,
    Reason.FAILED: 409,
    Reason.TOO_LARGE: 413,
    Reason.ELSEWHERE: 421,
    Reason.DRAINING: 503,
    Reason.UNAVAILABLE: 503,
}
"""The status for a refusal of the core; 400 for all others."""

RETRY = ("Retry-After", f"{GUESS_EVERY:.0f}")
"""The header of a refused guess: the next one may be compared then."""


def problem_of(refusal: Refusal) -> Problem:
    """Return a refusal of the core as a problem."""
    headers = [RETRY] if refusal.reason is Reason.TOO_MANY_GUESSES else []
    return Problem(STATUS.get(refusal.reason, 400), refusal.text, refusal.reason, headers)
