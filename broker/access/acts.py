"""Administrative acts, as the audit log records them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import attrs

from broker.access.principal import Principal
from broker.core.errors import Refusal

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


class Audit(Protocol):
    """The audit log."""

    def record(self, act: Act) -> None:
        """Record an act, with the present time. Never raises."""


class NoAudit:
    """Implementation of `Audit` that records nothing, for tests and tools."""

    def record(self, act: Act) -> None:
        """Record nothing."""


def audited(audit: Audit, act: Act, carry_out: Callable[[], T]) -> T:
    """Carry out an act, and record it with its result. Raises what ``carry_out`` raises."""
    try:
        result = carry_out()
    except Refusal as refusal:
        audit.record(attrs.evolve(act, result=f"refused: {refusal.reason.code}"))
        raise
    except Exception:
        audit.record(attrs.evolve(act, result="failed"))
        raise
    audit.record(act)
    return result
