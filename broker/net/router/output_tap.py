"""Tap of the output of a ROUTER: copies of the messages to some of its peers, before they are encoded.

It shadows the methods by which sessions send, in this one object and until it is removed. A ROUTER without a tap has
neither a check nor a call for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from broker.net.interfaces.router import NUMBER, Part

if TYPE_CHECKING:
    from broker.net.router.router import Router

METHODS = ("send", "reply", "send_all", "send_each")


def tap_output(router: Router, seen: Callable[[bytes, Sequence[Part]], object]) -> None:
    """Call ``seen`` with the identity and the frames of each message that is sent, until `untap_output`."""

    def to_one(send: Callable[..., Any]) -> Callable[..., Any]:
        def tapped(identity: bytes, frames: Sequence[Part]) -> Any:
            seen(identity, frames)
            return send(identity, frames)

        return tapped

    def send_all(receivers: Collection[Any], frames: Sequence[Part], now: float) -> Any:
        for receiver in receivers:
            seen(receiver.identity, frames)
        return type(router).send_all(router, receivers, frames, now)

    def send_each(receivers: Collection[Any], before: bytes, after: bytes, body: Part, now: float) -> Any:
        for receiver in receivers:
            number = (receiver.sequence + 1).to_bytes(NUMBER)
            seen(receiver.identity, (before + number + after, body))
        return type(router).send_each(router, receivers, before, after, body, now)

    kind = type(router)
    shadows = (to_one(kind.send.__get__(router)), to_one(kind.reply.__get__(router)), send_all, send_each)
    for name, shadow in zip(METHODS, shadows, strict=True):
        setattr(router, name, shadow)


def untap_output(router: Router) -> None:
    """Remove the tap. No-op without one."""
    for name in METHODS:
        router.__dict__.pop(name, None)
