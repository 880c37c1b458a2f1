"""How a client behaves, and with which keys it comes."""

from __future__ import annotations

import attrs

from broker.wires.mtl.codec.data import MAX_BODY


@attrs.frozen
class Settings:
    """How a client behaves. Times are in seconds; the defaults suit a broker with its own defaults."""

    timeout: float = 10.0
    """Without an answer in this time the broker is taken for dead. It lets those who came with a wrong password wait
    for up to 4 s."""
    heartbeat: float = 5.0
    """Silence of a data flow, in either direction, after which the client sends a Ping."""
    dead_after: int = 3
    """Heartbeats without a word of the broker after which it is taken for dead."""
    least_pause: float = 0.1
    most_pause: float = 10.0
    """Between attempts: the pause doubles with each, from the least to the most. The least keeps a client that is
    turned away at once from keeping the broker busy; the most is what a broker that is back may be missed for."""
    least_again: float = 0.1
    most_again: float = 30.0
    """The same before a Content is sent again for which there was no room."""
    window: int = 1_000
    """Contents of one writer that may be unconfirmed."""
    window_bytes: int = 16 * 1024 * 1024
    """Bytes of them: when there are more, no further one is taken."""
    pending: int = 100
    """Contents of one reader that the application may still be busy with, where the broker set no window; then no
    further ones are received."""
    pending_bytes: int = 64 * 1024 * 1024
    """Bytes of them, whatever the broker set."""
    high_water: int = 1_000
    """Messages that libzmq holds for each socket, in each direction, beside all these."""
    max_body: int = MAX_BODY
    """Bytes of a Content's body: larger ones are not sent, and who sends a larger one is disconnected."""


@attrs.frozen
class Keys:
    """CURVE keys, in Z85: the broker's public key, and the client's own pair."""

    server: str
    public: str
    secret: str = attrs.field(repr=False)
