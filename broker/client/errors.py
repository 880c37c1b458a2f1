"""What can go wrong for a client. All are `MtlError`."""

from __future__ import annotations


class MtlError(Exception):
    """Something did not work. The text is for people."""


class Refused(MtlError):
    """The broker does not do that, and asking again would not help. ``code`` is its code, ``reason`` its words."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}".rstrip())
        self.code = code
        self.reason = reason


class AuthenticationFailed(Refused):
    """The broker wants to know who this is, and there is nothing with which it would be content."""

    def __init__(self, reason: str) -> None:
        super().__init__(401, reason)


class BrokerUnverified(MtlError):
    """The broker did not prove that it knows the user too: it may be somebody else."""


class Rejected(MtlError):
    """The broker does not take a Content. ``recycle``: not now, but perhaps later."""

    def __init__(self, recycle: bool, text: str = "") -> None:
        super().__init__(text or ("the broker has no room for it now" if recycle else "the broker does not take it"))
        self.recycle = recycle


class Unsettled(MtlError):
    """The flow ended before a Content was confirmed: the broker may have it or not."""


class Full(MtlError):
    """There is no room for more Contents at the moment. `broker.client.writer.Writer.room` says when there is."""


class NotConnected(MtlError):
    """There is no flow at the moment: the client starts over."""


class Closed(MtlError):
    """The application has closed it."""


class Lost(MtlError):
    """The broker does not answer, or not as it should. The client starts over, so that applications do not see this,
    but for its text."""


class NotTaken(Exception):
    """For applications to raise where they get a Content that they cannot take: it is rejected.

    ``recycle``: it is to be sent again, perhaps to somebody else.
    """

    def __init__(self, text: str = "", *, recycle: bool = False) -> None:
        super().__init__(text)
        self.recycle = recycle
