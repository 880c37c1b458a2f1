"""Encoder of the messages that the broker sends over its ROUTER, as frames after the peer's identity.

Rules:
- ``form`` is the form of the peer's last time. A Hermes node fails on any time but a `Form.FLOAT32`.
- ``hermes`` is true if the peer is a Hermes node (a REQ socket that writes its times as `Form.FLOAT32`). It needs a
  frame after the time: without one it repeats its request. Other peers get the frames of the document.
- A REQ socket may be sent one reply for each request only: it takes the first message for the reply.
- ``now`` is in seconds of the epoch.

See docs/protocols/dbp.md, "Messages" and "Hermes' nodes get other frames".
"""

from __future__ import annotations

from broker.wires.dbp.codec.times import Form, write_time

Sent = tuple[bytes, ...]


def reply(form: Form, now: float, body: bytes) -> Sent:
    """Return the answer to a request: a listing."""
    return (b"", b"o_O", write_time(form, now), body)


def approved(form: Form, now: float, hermes: bool, configuration: bytes = b"{}") -> Sent:
    """Return the approval of a registration. ``configuration`` is the agreement, as "configuration changes"."""
    # The document has six frames or more; Hermes needs four.
    if hermes:
        return (b"", b"OwO", write_time(form, now), b"")
    return (b"", b"OwO", write_time(form, now), configuration, b"", b"")


def agreement(milliseconds: int, liveness: int) -> bytes:
    """Return the agreement as configuration: the heartbeat interval, and the intervals that may be missed."""
    return b'{"heartbeat": %d, "liveness": %d}' % (milliseconds, liveness)


def denied(form: Form, now: float, reason: str, hermes: bool) -> Sent:
    """Return the denial of a registration or an update. Hermes has another command for it than the document.

    ``hermes`` is that of the registration, or of `Denied`: a service that follows the document may use a REQ too.
    """
    return (b"", b"OmO" if hermes else b"(O_O)", write_time(form, now), _text(reason))


def ack(form: Form, now: float, hermes: bool) -> Sent:
    """Return the acknowledgement of an update, or of a heartbeat from a REQ socket."""
    return _bare(b"u.u", form, now, hermes)


def disconnect(form: Form, now: float, hermes: bool) -> Sent:
    """Return the broker's DISCONNECT: it sends no more on this connection. The peer may open a new one."""
    return _bare(b"</3", form, now, hermes)


def heartbeat(form: Form, now: float, name: str) -> Sent:
    """Return the broker's heartbeat, which is also the probe of a silent service that follows the document."""
    return (b"", b"<3", write_time(form, now), _text(name))


def ping(form: Form, now: float) -> Sent:
    """Return the probe of a silent Hermes service, which does not know heartbeats. Any answer is a sign of life."""
    return (b"", b"ping", write_time(form, now), b"")


def pong(form: Form, now: float, name: str) -> Sent:
    """Return the answer to a ping."""
    return (b"", b"pong", write_time(form, now), _text(name))


def _bare(command: bytes, form: Form, now: float, hermes: bool) -> Sent:
    frames = (b"", command, write_time(form, now))
    return (*frames, b"") if hermes else frames


def _text(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
