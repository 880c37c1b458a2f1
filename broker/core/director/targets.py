"""Which servers a message for a context or a user concerns."""

from __future__ import annotations

from collections.abc import Sequence

from broker.core.director.names import check_name
from broker.core.director.state import OpenContext, Server
from broker.core.director.whereabouts import Whereabouts
from broker.core.errors import Reason, Refusal


def targets(where: Whereabouts, context: str | None, user: str | None) -> Sequence[Server]:
    """Each server concerned once; see `IDirector.say`."""
    for what, name in (("context", context), ("user", user)):
        if name is not None:
            check_name(what, name)
    if context is None:
        if user is None:
            raise Refusal(Reason.PARAMETER, "request message missing context or user")
        found = dict.fromkeys(place.server for place in where.contexts_of(user))
        if not found:
            raise Refusal(Reason.NOT_REGISTERED, f"user {user} not found")
        return tuple(found)
    exact = where.contexts.get(context)
    clones = where.sets.get(context)
    if exact is None and clones is None:
        raise Refusal(Reason.NOT_REGISTERED, f"context {context} not found")
    if user is not None:

        def meant(place: OpenContext) -> bool:
            return place is exact if exact is not None else clones is not None and place.name in clones.clones

        found = dict.fromkeys(place.server for place in where.contexts_of(user) if meant(place))
        if not found:
            raise Refusal(Reason.NOT_REGISTERED, f"user {user} is not in context {context}")
        return tuple(found)
    if exact is not None:
        return (exact.server,)
    assert clones is not None
    return tuple(clones.servers)
