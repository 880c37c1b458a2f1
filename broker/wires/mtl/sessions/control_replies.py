"""Replies of the control flow with a fixed content, and the statuses of refusals."""

from __future__ import annotations

from broker.core.errors import Elsewhere, Reason, Refusal
from broker.wires.mtl.codec import control_messages as wire
from broker.wires.mtl.codec.control_messages import EncodedReply, ReplyStatus

NOT_OPEN = wire.error(ReplyStatus.BAD_REQUEST, "open")
NO_PROFILE = wire.error(ReplyStatus.BAD_REQUEST, "no profile is chosen")
NO_SUCH_PROFILE = wire.error(ReplyStatus.BAD_REQUEST, "there is no such profile")
NOT_ASKED = wire.error(ReplyStatus.BAD_REQUEST, "the broker needs no authentication")
NOT_IMPLEMENTED = wire.error(ReplyStatus.NOT_IMPLEMENTED)
STOPPING = wire.error(ReplyStatus.UNAVAILABLE, "the broker is stopping")
DRAINING = wire.error(ReplyStatus.UNAVAILABLE, "the broker is draining: connect to another one")
DEFECT = wire.error(ReplyStatus.INTERNAL_ERROR, "a defect of the broker, which was logged")

_STATUS = {
    Reason.LIMIT: ReplyStatus.TOO_MANY,
    Reason.TOO_MANY_GUESSES: ReplyStatus.TOO_MANY,
    Reason.FORBIDDEN: ReplyStatus.FORBIDDEN,
    Reason.NAME_NOT_ALLOWED: ReplyStatus.FORBIDDEN,
    Reason.TOPIC_NOT_ALLOWED: ReplyStatus.FORBIDDEN,
    Reason.UNAVAILABLE: ReplyStatus.UNAVAILABLE,
}
"""Statuses of refusals by their reason; all others are answered by 400."""


def refused(refusal: Refusal) -> EncodedReply:
    """Return the reply to a refused request. For a resource of another broker, it names that and its endpoint."""
    if isinstance(refusal, Elsewhere):
        place = {"owner": refusal.owner, "endpoint": refusal.endpoint}
        return wire.error(ReplyStatus.MISDIRECTED, refusal.text, place)
    return wire.error(_STATUS.get(refusal.reason, ReplyStatus.BAD_REQUEST), refusal.text)
