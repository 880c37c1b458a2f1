"""Dumps of the farm for administrators, as lazy pieces.

Rules:
- The counts are those of the moment in which the dump begins. Each piece is made when it is consumed.
- A server or context that is gone by then is omitted. Hidden contexts are never included.
- The cost of a piece is bounded by the context names of one server, or by the users of one context.

`broker.wires.elko.sessions.director_pages` consumes the pieces page by page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker.core.director.farm import Farm
from broker.core.director.interfaces import ContextDump, Dump, ProviderDump
from broker.core.director.state import OpenContext, Server


def by_load(farm: Farm) -> list[Server]:
    """Return all servers, ordered by load, then by the time of their first connection."""
    return sorted(farm.servers, key=lambda server: (server.load, server.number))


def dump(farm: Farm, depth: int, provider: str | None, context: str | None) -> Dump:
    """Implement `IDirector.dump`."""
    servers = [server for server in by_load(farm) if provider is None or server.matches(provider)]
    if context is None:
        return Dump(
            len(servers),
            sum(server.shown for server in servers),
            sum(server.shown_users for server in servers),
            _pieces(farm, servers, depth, None),
        )
    clones = farm.presence.sets.get(context)
    only: dict[Server, list[OpenContext]] = {}
    for found in () if clones is None else clones.clones.values():
        only.setdefault(found.server, []).append(found)
    exact = farm.presence.contexts.get(context)
    if exact is not None:
        only.setdefault(exact.server, []).append(exact)
    servers = [server for server in servers if server in only]
    shown = [found for server in servers for found in only[server]]
    users = sum(len(found.users) for found in shown)
    return Dump(len(servers), len(shown), users, _pieces(farm, servers, depth, only))


def _pieces(
    farm: Farm, servers: Sequence[Server], depth: int, only: dict[Server, list[OpenContext]] | None
) -> Iterator[ProviderDump | ContextDump]:
    if depth <= 0:
        return
    for server in servers:
        if server not in farm.servers:
            continue
        if only is None:
            shown, users = server.shown, server.shown_users
        else:
            shown, users = len(only[server]), sum(len(context.users) for context in only[server])
        yield _server(server, shown, users)
        if depth > 1:
            contexts = tuple(server.contexts.values()) if only is None else only[server]
            for context in contexts:
                # The pieces are consumed over many turns: the context may have closed or become hidden meanwhile.
                if farm.presence.contexts.get(context.name) is context:
                    yield ContextDump(context.name, len(context.users), tuple(context.users) if depth > 2 else ())


def _server(server: Server, contexts: int, users: int) -> ProviderDump:
    return ProviderDump(
        server.label,
        contexts,
        users,
        server.load,
        server.capacity,
        tuple(server.addresses.values()),
        tuple(server.addresses),
        tuple(server.families),
        ",".join(sorted({report.broker for report in server.links})),
    )
