"""Exceptions of the client. All but `NotTaken` are `MtlError`."""

from __future__ import annotations


class MtlError(Exception):
    """Base class of the client's errors. The text is for people."""


class Refused(MtlError):
    """The broker refuses a request for good: repeating it would not help. ``code`` and ``reason`` are the broker's."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}".rstrip())
        self.code = code
        self.reason = reason


class AuthenticationFailed(Refused):
    """The broker requires authentication, and the client's credentials are missing or not accepted."""

    def __init__(self, reason: str) -> None:
        super().__init__(401, reason)


class BrokerUnverified(MtlError):
    """The broker did not prove that it knows the user's password: it may be an impostor."""


class Rejected(MtlError):
    """The broker did not accept a Content. ``recycle`` is True if it may accept the Content later."""

    def __init__(self, recycle: bool, text: str = "") -> None:
        super().__init__(
            text or ("the broker has no room at present" if recycle else "the broker does not accept the Content")
        )
        self.recycle = recycle


class Unsettled(MtlError):
    """The flow ended before a Content was confirmed. Delivery is unknown: the broker may have the Content or not."""


class Full(MtlError):
    """The limit of outstanding Contents is reached. `broker.client.writer.Writer.room` fires when there is room."""


class NotConnected(MtlError):
    """There is no flow at present: the client is reconnecting."""


class Closed(MtlError):
    """The application closed the client or the flow."""


class Lost(MtlError):
    """The connection to the broker is lost, or its answers are invalid. The client reconnects, so applications see only
    the text of this error, in events and logs."""


class Unreachable(MtlError):
    """No broker was found at the first contact. The text names each endpoint with the cause."""


class NoBroker(Lost):
    """An endpoint at which no broker answers, with the cause."""


class Elsewhere(Lost):
    """A resource belongs to another broker of the cluster, whose control flow is at ``endpoint``. Flows go there."""

    def __init__(self, endpoint: str, text: str) -> None:
        super().__init__(text)
        self.endpoint = endpoint


class NotTaken(Exception):
    """Raised by an application's handler to reject a Content.

    ``recycle``: the broker is to deliver the Content again, perhaps to another reader.
    """

    def __init__(self, text: str = "", *, recycle: bool = False) -> None:
        super().__init__(text)
        self.recycle = recycle
