"""Messages of the Elko Director protocol for the orders and notices of the core."""

from __future__ import annotations

from msgspec import UNSET

from broker.core.director import interfaces as core
from broker.wires.elko.codec import director as wire
from broker.wires.elko.codec.blocks import encode

Notification = core.Order | core.ContextPlace | core.UserPlace

Message = (
    wire.DoReserve
    | wire.SayOut
    | wire.RelayOut
    | wire.CloseOut
    | wire.ReinitOut
    | wire.ShutdownOut
    | wire.ContextFound
    | wire.UserFound
)


class MessageCache:
    """Encodes notifications. Consecutive recipients of the same object share one encoding."""

    def __init__(self) -> None:
        self._told: Notification | None = None
        self._data = b""

    def of(self, told: Notification) -> bytes:
        """Return the encoded message of a notification."""
        if told is not self._told:
            self._data = encode(message(told))
            self._told = told
        return self._data


def message(told: Notification) -> Message:
    """Return the message of a notification."""
    if isinstance(told, core.UserPlace):
        return user_found(told)
    if isinstance(told, core.ContextPlace):
        return context_found(told)
    if isinstance(told, core.DoReserve):
        return wire.DoReserve(context=told.context, user=told.user or UNSET, reservation=told.reservation)
    if isinstance(told, core.Say):
        return wire.SayOut(context=told.context or UNSET, user=told.user or UNSET, text=told.text)
    if isinstance(told, core.Relay):
        assert isinstance(told.msg, dict), "only objects are given to be relayed"
        return wire.RelayOut(context=told.context or UNSET, user=told.user or UNSET, msg=told.msg)
    if isinstance(told, core.Close):
        dup = True if told.dup else UNSET
        return wire.CloseOut(context=told.context or UNSET, user=told.user or UNSET, dup=dup)
    if isinstance(told, core.Shutdown):
        return wire.ShutdownOut(kill=True if told.kill else UNSET)
    return wire.ReinitOut()


def context_found(place: core.ContextPlace) -> wire.ContextFound:
    """Return the message with the place of a context. The document has a clone set itself as not open."""
    provider = place.provider
    return wire.ContextFound(
        context=place.context,
        open=provider is not None,
        provider=UNSET if provider is None else provider,
        clones=place.clones or UNSET,
    )


def user_found(place: core.UserPlace) -> wire.UserFound:
    """Return the message with the contexts of a user."""
    return wire.UserFound(user=place.user, on=place.on, contexts=place.contexts or UNSET)
