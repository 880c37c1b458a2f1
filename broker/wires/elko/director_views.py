"""Views of the director for operators: Context Servers, contexts and users."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker.core.director.interfaces import ContextDump, IDirector, ProviderDump, UserPlace
from broker.wires.views import AnyView, Column, Row, View

MAX_CONTEXTS = 50
"""Contexts shown of one user: a user is in one or two."""

PROVIDER_COLUMNS = (
    Column("label", "Label of the Context Server"),
    Column("load", "Load that it reported last"),
    Column("capacity", "Users that it takes; -1 for no limit", "users"),
    Column("contexts", "Open contexts", "contexts"),
    Column("users", "Users in them", "users"),
    Column("hostports", "Its addresses"),
    Column("protocols", "The protocol of each address"),
    Column("serving", "Families of contexts that it serves"),
    Column("broker", "Brokers to which it is connected, in a cluster"),
)

CONTEXT_COLUMNS = (
    Column("context", "Name of the context"),
    Column("provider", "Label of its Context Server"),
    Column("users", "Users in it", "users"),
)

USER_COLUMNS = (
    Column("user", "Name of the user"),
    Column("contexts", f"The first {MAX_CONTEXTS} contexts that the user is in"),
)


def views(director: IDirector) -> Sequence[AnyView]:
    """Return the views of the director."""

    def users() -> Iterator[UserPlace]:
        """Yield the present users, without those that leave before their turn."""
        return (place for name in director.users() if (place := director.find_user(name)).on)

    return [
        View(
            "director providers",
            "Shows the Context Servers in the order of their loads. A pattern selects labels or addresses.",
            PROVIDER_COLUMNS,
            lambda: director.dump(1, None, None).pieces,
            _provider,
            lambda server: (server.label, *server.hostports),
        ),
        View(
            "director contexts",
            "Shows the open contexts, by their servers. A pattern selects names.",
            CONTEXT_COLUMNS,
            lambda: _contexts(director),
            lambda found: {"context": found[1].context, "provider": found[0], "users": found[1].count},
            lambda found: (found[1].context,),
            sums=("users",),
        ),
        View(
            "director users",
            "Shows the users that are in a context. A pattern selects names.",
            USER_COLUMNS,
            users,
            lambda place: {"user": place.user, "contexts": list(place.contexts[:MAX_CONTEXTS])},
            lambda place: (place.user,),
        ),
    ]


def _contexts(director: IDirector) -> Iterator[tuple[str, ContextDump]]:
    """Yield the contexts with the labels of their servers."""
    label = ""
    for piece in director.dump(2, None, None).pieces:
        if isinstance(piece, ProviderDump):
            label = piece.label
        else:
            yield label, piece


def _provider(server: ProviderDump) -> Row:
    return {
        "label": server.label,
        "load": server.load,
        "capacity": server.capacity,
        "contexts": server.contexts,
        "users": server.users,
        "hostports": list(server.hostports),
        "protocols": list(server.protocols),
        "serving": list(server.serving),
        "broker": server.broker,
    }
