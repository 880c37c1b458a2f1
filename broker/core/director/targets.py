"""Recipients of a message for a context or a user: the servers that it concerns.

Departed servers are excluded, although their contexts may still await cleanup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.core.director.names import check_name
from broker.core.director.presence import Presence
from broker.core.director.state import OpenContext, Server
from broker.core.errors import Reason, Refusal


def targets(presence: Presence, context: str | None, user: str | None) -> Sequence[Server]:
    """Return the servers concerned, each once; see `IDirector.say`. Raises `Refusal`."""
    for what, name in (("context", context), ("user", user)):
        if name is not None:
            check_name(what, name)
    if context is None:
        if user is None:
            raise Refusal(Reason.PARAMETER, "request message missing context or user")
        found = _present(place.server for place in presence.contexts_of(user))
        if not found:
            raise Refusal(Reason.NOT_REGISTERED, f"user {user} not found")
        return found
    exact = presence.contexts.get(context)
    clones = presence.sets.get(context)
    concerned = _present(() if clones is None else clones.servers) if exact is None else _present((exact.server,))
    if not concerned:
        raise Refusal(Reason.NOT_REGISTERED, f"context {context} not found")
    if user is not None:

        def meant(place: OpenContext) -> bool:
            return place is exact if exact is not None else clones is not None and place.name in clones.clones

        found = _present(place.server for place in presence.contexts_of(user) if meant(place))
        if not found:
            raise Refusal(Reason.NOT_REGISTERED, f"user {user} is not in context {context}")
        return found
    return concerned


def _present(servers: Iterable[Server]) -> tuple[Server, ...]:
    """Return the servers that have a link, each once."""
    return tuple(dict.fromkeys(server for server in servers if server.links))
