"""What the broker sends over its ROUTER, as frames after the peer's identity.

Rules:
- ``form`` is the one in which the peer wrote its last time. A Hermes node dies of any time but a `Form.FLOAT32`.
- ``hermes`` says that the peer is a Hermes node (a REQ socket that writes its times as `Form.FLOAT32`). It needs a
  frame after the time: without one it sends its request again. Peers of the document get what the document has.
- To a REQ socket nothing may be sent but one reply for each request: the first thing that comes is taken for it.
"""

from __future__ import annotations

from broker.wires.dbp.codec.times import Form, write_time

Sent = tuple[bytes, ...]


def reply(form: Form, now: float, body: bytes) -> Sent:
    """To a request: a listing."""
    return (b"", b"o_O", write_time(form, now), body)


def approved(form: Form, now: float, hermes: bool, configuration: bytes = b"{}") -> Sent:
    """To a registration. The document has six frames or more, the first after the time for "configuration changes"."""
    if hermes:
        return (b"", b"OwO", write_time(form, now), b"")
    return (b"", b"OwO", write_time(form, now), configuration, b"", b"")


def agreement(milliseconds: int, liveness: int) -> bytes:
    """The configuration that tells a service how often the broker expects it, and how many times it may be missed."""
    return b'{"heartbeat": %d, "liveness": %d}' % (milliseconds, liveness)


def denied(form: Form, now: float, reason: str, hermes: bool) -> Sent:
    """To a registration or an update. A Hermes service knows another command than the document's: it gives up in order.

    ``hermes`` is that of the registration, or of `Denied`: a service that follows the document may use a REQ too.
    """
    return (b"", b"OmO" if hermes else b"(O_O)", write_time(form, now), _text(reason))


def ack(form: Form, now: float, hermes: bool) -> Sent:
    """To an update, and to a heartbeat that a REQ socket sent."""
    return _bare(b"u.u", form, now, hermes)


def disconnect(form: Form, now: float, hermes: bool) -> Sent:
    """The broker does not speak to this peer any more; it may come again on a new connection."""
    return _bare(b"</3", form, now, hermes)


def heartbeat(form: Form, now: float, name: str) -> Sent:
    """The broker lives. Also the probe of a silent service that follows the document."""
    return (b"", b"<3", write_time(form, now), _text(name))


def ping(form: Form, now: float) -> Sent:
    """The probe of a silent Hermes service, which does not know heartbeats. Anything that comes back is life."""
    return (b"", b"ping", write_time(form, now), b"")


def pong(form: Form, now: float, name: str) -> Sent:
    """To a ping."""
    return (b"", b"pong", write_time(form, now), _text(name))


def _bare(command: bytes, form: Form, now: float, hermes: bool) -> Sent:
    frames = (b"", command, write_time(form, now))
    return (*frames, b"") if hermes else frames


def _text(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
