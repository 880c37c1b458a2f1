"""Timeouts, limits and CURVE keys of a client."""

from __future__ import annotations

import enum
from collections.abc import Callable

import attrs

from broker.wires.mtl.codec.data_messages import MAX_BODY


@attrs.frozen
class Settings:
    """Timeouts and limits of a client. Times are in seconds. The defaults suit a broker with default configuration."""

    timeout: float = 10.0
    """Time limit for a reply, in seconds; after it the client reconnects."""
    first_contact: float | None = 2.0
    """Time limit for the first contact with a broker, in seconds: a client that never had a session fails then with
    `broker.client.errors.Unreachable` where no broker can be at the endpoints. A broker that accepts connections has
    ``timeout``. None waits for a broker that starts later."""
    call_timeout: float | None = 30.0
    """Time limit of the blocking client's calls without one of their own, in seconds; None for no limit."""
    failover: float = 2.0
    """Time limit for the reply to the first request of a session, in seconds, if there are several endpoints; after it
    the client tries the next one. A broker answers that request at once."""
    heartbeat: float = 5.0
    """Silence of a data flow, in either direction, after which the client sends a Ping, in seconds."""
    dead_after: int = 3
    """Heartbeats without a message from the broker after which the flow is lost."""
    least_pause: float = 0.1
    most_pause: float = 10.0
    """Pauses between attempts to connect, in seconds: the delay doubles from the least to the most. The least bounds
    the load that a rejected client puts on the broker; the most bounds the time to notice that a broker is back."""
    least_resend_pause: float = 0.1
    most_resend_pause: float = 30.0
    """Pauses before a Content is sent again after a reject with recycle, in seconds."""
    window: int = 1_000
    """Unconfirmed Contents of one writer, at most."""
    window_bytes: int = 16 * 1024 * 1024
    """Bytes of unconfirmed Contents of one writer above which it accepts no further Content."""
    pending: int = 100
    """Contents of one reader that the application may be processing, where the broker grants no window. Above it the
    client stops receiving."""
    pending_bytes: int = 64 * 1024 * 1024
    """Bytes of the Contents that the application may be processing, whatever the window."""
    high_water: int = 1_000
    """Messages that libzmq queues for each socket in each direction, in addition to the limits above."""
    max_body: int = MAX_BODY
    """Bytes of a Content's body, at most. Larger ones are not sent; a peer that sends one is disconnected."""


@attrs.frozen
class Keys:
    """CURVE keys in Z85: the public key of the broker, and the key pair of the client."""

    server: str
    public: str
    secret: str = attrs.field(repr=False)


# Events of a data flow that an application is notified of: loss, recovery, and refused Contents.


class Event(enum.Enum):
    """Changes of a flow that an application is notified of."""

    LOST = "lost"
    """The flow is lost, and the client is reconnecting."""
    BACK = "back"
    """The flow is restored. Resources are summoned again, and unconfirmed Contents are sent again where ``resend`` was
    set. Contents between the two events are missing where they are not confirmed."""
    REFUSED = "refused"
    """The broker refused a Content of a writer without confirmation."""


OnEvent = Callable[[Event, str], object]
"""Callback for events, with a text for people."""
