"""Administrative acts, as the audit log records them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from broker.access.principal import Principal
from broker.core.errors import Reason

DONE = "done"
"""The result of an act that was carried out."""

T = TypeVar("T")


@attrs.frozen
class Act:
    """One administrative act: a user at a listener, an operation of `broker.access.principal`, and its object.

    ``result`` is "done", or "refused: " and the code of the reason.
    """

    principal: Principal
    listener: str
    operation: str
    object: str = ""
    result: str = DONE


@attrs.frozen
class Rejected(Generic[T]):
    """The result of an act that was refused, and is answered all the same: ``value`` is the answer."""

    value: T
    reason: Reason


class Audit(Protocol):
    """The audit log."""

    def record(self, act: Act) -> None:
        """Record an act, with the present time. Never raises."""


class NoAudit:
    """Implementation of `Audit` that records nothing, for tests and tools."""

    def record(self, act: Act) -> None:
        """Record nothing."""


def audited(audit: Audit, act: Act, carry_out: Callable[[], Any]) -> Any:
    """Carry out an act, and record it with its result. Raises what ``carry_out`` raises.

    A `Rejected` is returned as its value. If the result is a Deferred, the act is recorded when it has fired.
    """

    def done(result: Any) -> Any:
        if isinstance(result, Rejected):
            audit.record(attrs.evolve(act, result=refused(result.reason)))
            return result.value
        audit.record(act)
        return result

    def failed(reason: Failure) -> Failure:
        audit.record(attrs.evolve(act, result=failure(reason.value)))
        return reason

    try:
        result = carry_out()
    except Exception as error:
        audit.record(attrs.evolve(act, result=failure(error)))
        raise
    return result.addCallbacks(done, failed) if isinstance(result, Deferred) else done(result)


def refused(reason: Reason) -> str:
    """Return the result of an act that was refused."""
    return f"refused: {reason.code}"


def failure(error: BaseException | None) -> str:
    """Return the result of an act that raised this exception."""
    reason = getattr(error, "reason", None)
    return refused(reason) if isinstance(reason, Reason) else "failed"
