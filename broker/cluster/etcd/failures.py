"""Failures of a request to etcd: one sentence for operators for each, as an `EtcdError`.

Errors are distinguished by the HTTP status and the gRPC code first, and by the text where these are the same.
"""

from __future__ import annotations

from typing import Any

from OpenSSL import SSL
from twisted.internet import defer, error
from twisted.web.client import (  # type: ignore[attr-defined]
    RequestNotSent,
    RequestTransmissionFailed,
    ResponseNeverReceived,
)

from broker.cluster.etcd.codec import Problem, Unintelligible
from broker.cluster.etcd.etcd_interface import (
    BadRequest,
    Compacted,
    Denied,
    EtcdError,
    FutureRevision,
    LeaseExists,
    LeaseGone,
    NoSpace,
    Unavailable,
)
from broker.http_bodies import TooLong

INVALID, NOT_FOUND, DENIED, EXHAUSTED, PRECONDITION, RANGE, UNAVAILABLE, UNAUTHENTICATED = 3, 5, 7, 8, 9, 11, 14, 16
"""Codes of gRPC that etcd uses."""


class NeedsToken(Exception):
    """The endpoint refuses the token, or the request without one."""


def refusal(where: str, status: int, problem: Problem) -> Exception:
    """Return the error of an answer with a status other than 200."""
    code, text = problem.code, problem.text
    match code:
        case 0:
            return _plain(where, status, text)
        case _ if code == UNAUTHENTICATED or (code == INVALID and "user name is empty" in text):
            return NeedsToken(text)
        case _ if code == INVALID and "authentication failed" in text:
            return Denied(f"etcd at {where} does not accept the user and the password")
        case _ if code == DENIED:
            return Denied(f"etcd at {where} denies the user of this broker the right: {text}")
        case _ if code == EXHAUSTED and "too many requests" not in text:
            return NoSpace(
                f"the database of etcd is full (seen at {where}): compact it, defragment each member, disarm the alarm"
            )
        case _ if code == NOT_FOUND and "lease" in text:
            return LeaseGone("the lease does not exist in etcd")
        case _ if code == PRECONDITION and "lease already exists" in text:
            return LeaseExists("the lease exists in etcd already")
        case _ if code == RANGE and "compacted" in text:
            return Compacted("the revision was compacted by etcd")
        case _ if code == RANGE and "future" in text:
            return FutureRevision("the revision is higher than etcd's own: its data were replaced")
        case _ if code == INVALID or status in (400, 404, 405):
            return BadRequest(f"etcd at {where} refuses the request: {text}")
    return _unavailable(where, status, text)


def _plain(where: str, status: int, text: str) -> Exception:
    """Return the error of an answer that is not JSON of the gateway."""
    if "CommonName of client sending a request against gateway" in text:
        return Denied(
            f"etcd at {where} refuses a client certificate with a common name (CN) over HTTP: "
            "use a certificate whose subject has an organisation (O) only"
        )
    if status in (401, 403):
        return Denied(f"{where} answers with HTTP status {status}: {text or 'no text'}")
    if 500 <= status < 600:
        return _unavailable(where, status, text)
    return Unavailable(f"{where} does not answer as etcd does: HTTP status {status}", unknown=True)


def _unavailable(where: str, status: int, text: str) -> Unavailable:
    if "no leader" in text:
        # Refused before anything is proposed, because of the header hasleader.
        return Unavailable(f"etcd at {where} has no quorum")
    if any(each in text for each in ("connection", "broken pipe", "transport", "SubConn")):
        # The gateway of that endpoint connects to the endpoint itself, with the server's certificate.
        return Unavailable(
            f"etcd at {where} cannot connect to itself ({text}); with TLS, its server certificate must have the "
            "extended key usages serverAuth and clientAuth",
            unknown=True,
        )
    return Unavailable(f"etcd at {where} is not available: {text or f'HTTP status {status}'}", unknown=True)


def _reasons(problem: BaseException) -> list[BaseException]:
    """Return an exception with those that it wraps, as Twisted's failures of requests do."""
    found = [problem]
    for each in getattr(problem, "reasons", ()):
        found += _reasons(each.value)
    return found


def is_cancelled(problem: BaseException) -> bool:
    """Return True for the exception of a cancelled request, in which Twisted may hide the cancellation."""
    return any(isinstance(each, defer.CancelledError | error.ConnectingCancelledError) for each in _reasons(problem))


def explained(where: str, problem: Exception, seconds: float, tls: Any = None, answered: bool = False) -> Exception:
    """Return the `EtcdError` of a failed connection or answer, or the CancelledError of a cancelled request. Other
    exceptions are defects, and returned as they are.

    ``tls`` is the `broker.cluster.etcd.etcd_credentials.Tls` of the connection, None without. ``answered`` is True if
    the endpoint has answered before.
    """
    if isinstance(problem, EtcdError | NeedsToken):
        return problem
    if isinstance(problem, TooLong):
        return BadRequest(f"{where} answers with {problem}")
    if isinstance(problem, Unintelligible):
        return Unavailable(f"{where} does not answer as etcd does: {problem}", unknown=True)
    if is_cancelled(problem):
        return defer.CancelledError()
    reasons = _reasons(problem)
    for reason in reasons:
        if isinstance(reason, TooLong):
            return BadRequest(f"{where} answers with {reason}")
        if isinstance(reason, SSL.Error) and tls is not None:
            return Denied(tls.sentence(where, _words(reason)))
    if isinstance(problem, error.ConnectError | error.UserError):
        return Unavailable(f"{where} cannot be reached: {_text(problem)}")
    if isinstance(problem, error.DNSLookupError | ValueError):
        return Unavailable(f"{where}: the name of the host is unknown")
    if isinstance(problem, defer.TimeoutError | error.TimeoutError):
        return Unavailable(f"{where} gives no complete answer within {seconds:g} s", unknown=True)
    if isinstance(problem, RequestNotSent):
        return Unavailable(f"the connection to {where} was closed before the request")
    if isinstance(problem, ResponseNeverReceived) and any(isinstance(each, error.ConnectionClosed) for each in reasons):
        hint = " (does it expect TLS, https?)" if tls is None else " (does it use TLS? its address may be http)"
        hint = "" if answered else hint
        return Unavailable(f"{where} closes the connection without an answer{hint}", unknown=True)
    if isinstance(problem, error.ConnectionClosed | RequestTransmissionFailed) or any(
        isinstance(each, error.ConnectionClosed) for each in reasons
    ):
        return Unavailable(f"{where} closes the connection without a complete answer", unknown=True)
    if len(reasons) > 1 or type(problem).__module__.startswith("twisted.web"):
        return Unavailable(f"{where} does not answer as an HTTP server does", unknown=True)
    return problem


def together(failures: list[EtcdError], unknown: bool) -> EtcdError:
    """Return the one error of a call that failed at every endpoint that was tried."""
    if len(failures) == 1 and isinstance(failures[0], Denied):
        return failures[0]
    sentence = "; ".join(dict.fromkeys(str(each) for each in failures))
    if all(isinstance(each, Denied) for each in failures):
        return Denied(sentence)
    return Unavailable(sentence, unknown)


def _text(problem: Exception) -> str:
    if isinstance(problem, error.TimeoutError):
        return "no answer to the connection"
    return str(problem.args[-1] if problem.args else problem) or type(problem).__name__


def _words(problem: SSL.Error) -> str:
    """Return OpenSSL's reasons for an error, as text."""
    entries = problem.args[0] if problem.args and isinstance(problem.args[0], list) else []
    return ", ".join(each[-1] for each in entries if each and each[-1]) or "the handshake fails"
