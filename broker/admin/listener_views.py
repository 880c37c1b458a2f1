"""The view of the daemon's listeners: the address of each, and the reason if one is not open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from twisted.internet.interfaces import IReactorTime

from broker.core.model import Listening
from broker.wires.views import AnyView, Column, Row, View

COLUMNS = (
    Column("name", "Name of the listener"),
    Column("where", "Address that it is bound to, or is to be bound to"),
    Column("ready", "True if it is open"),
    Column("seconds", "Time for which it has been in this state", "seconds"),
    Column("reason", "Reason why it is not open"),
)


def listeners(states: Callable[[], Sequence[Listening]], clock: IReactorTime) -> AnyView:
    """Return the view of all listeners."""
    return View(
        "broker listeners",
        "Shows the listeners of the daemon. A pattern selects names.",
        COLUMNS,
        states,
        partial(_listener, clock),
        lambda listening: (listening.name,),
    )


def _listener(clock: IReactorTime, listening: Listening) -> Row:
    about: dict[str, object] = {
        "name": listening.name,
        "where": listening.where,
        "ready": listening.ready,
        "seconds": round(clock.seconds() - listening.since, 1),
    }
    if listening.reason is not None:
        about["reason"] = listening.reason
    return about
