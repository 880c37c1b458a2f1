"""What an operator is told of a configuration that is valid: what it comes to, and what may surprise."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

from broker.config import endpoint, files, zmq_endpoint
from broker.config.endpoint import Endpoint
from broker.config.validate import (
    effective_auth,
    effective_dbp_beacon,
    effective_dbp_offer,
    effective_mc0_auth,
    effective_mtl_auth,
    effective_offer,
    hostport,
    mtl_curve,
    mtl_data_place,
)
from broker.config.values import (
    Config,
    Console,
    Dbp,
    Director,
    DirectorListener,
    ElkoListener,
    Journal,
    Listener,
    Mc0,
    Mtl,
)
from broker.config.zmq_endpoint import ZEndpoint
from broker.wires.elko.validate_transport import FOR_BROWSERS

_DAY = 86_400
_UNITS = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"))


def resolves(host: str) -> bool:
    """Whether this machine knows an address of ``host``. Blocks while it asks."""
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


def report(config: Config, resolves: Callable[[str], bool] = resolves) -> str:
    """A line for each listener, the other wires, the journal, the console and the launchers, then one for each warning.

    ``config`` is one that was found valid. Blocks while published names are resolved. Shows no secret.
    """
    lines = [_listener(each) for each in config.elko.listeners]
    if config.director.enabled:
        lines += [_director(each) for each in config.director.listeners]
    lines.append(_mc0(config.mc0))
    lines.append(_dbp(config.dbp))
    lines.append(_mtl(config.mtl))
    lines.append(_journal(config.journal))
    lines.append(_console(config.console))
    names = ", ".join(entry.name for entry in config.launchers.table) or "none"
    lines.append(f"launchers: {names}, start {config.launchers.start}")
    if not config.elko.listeners:
        lines.append("warning: elko.listeners is empty: no Elko server can connect")
    for each in config.elko.listeners:
        lines += [f"warning: elko.listeners[{each.name}]: {text}" for text in _warnings(each, resolves)]
    if config.director.enabled:
        lines += [f"warning: {text}" for text in _director_warnings(config.director, resolves)]
    if config.mc0.enabled:
        lines += [f"warning: {text}" for text in _mc0_warnings(config.mc0)]
    if config.dbp.enabled:
        lines += [f"warning: {text}" for text in _dbp_warnings(config.dbp)]
    if config.mtl.enabled:
        lines += [f"warning: {text}" for text in _mtl_warnings(config.mtl)]
    if config.journal.enabled:
        lines += [f"warning: {text}" for text in _journal_warnings(config.journal)]
    return "\n".join(lines)


def _listener(listener: Listener) -> str:
    where = endpoint.parse(listener.endpoint)
    offer = " ".join(effective_offer(listener)) or "nothing"
    parts = (
        f"{_carried(listener)}bound to {_bound(where)}",
        f"published as {listener.publish or _bound(where)}",
        f"allow {' '.join(listener.allow)}",
        f"auth {effective_auth(listener)}",
        f"offer {offer}",
    )
    return f"listener {listener.name}: {', '.join(parts)}"


def _director(listener: DirectorListener) -> str:
    where = endpoint.parse(listener.endpoint)
    parts = (
        f"{_carried(listener)}bound to {_bound(where)}",
        f"published as {listener.publish or _bound(where)}",
        f"allow {' '.join(listener.allow)}",
        f"auth {effective_auth(listener)}",
    )
    return f"director listener {listener.name}: {', '.join(parts)}"


def _carried(listener: ElkoListener) -> str:
    """What its transport is, for a line that goes on; nothing where it is TCP."""
    if listener.transport not in FOR_BROWSERS:
        return "" if listener.transport == "tcp" else f"{listener.transport} "
    return f"{listener.transport} at {listener.path or '/'} for {' '.join(listener.origins) or 'no'} pages, "


def _bound(where: Endpoint) -> str:
    return f"{where.kind} {where.where}" if where.kind in ("tls", "unix") else where.where


def _zbound(where: ZEndpoint) -> str:
    return where.where if where.kind == "systemd" else f"{where.kind} {where.where}"


def _mc0(mc0: Mc0) -> str:
    if not mc0.enabled:
        return "mc0: off"
    where = zmq_endpoint.parse(mc0.endpoint)
    parts = [f"bound to {_zbound(where)}", f"auth {effective_mc0_auth(mc0)}"]
    if mc0.client_keys is not None:
        parts.append(f"client keys {mc0.client_keys}")
    elif mc0.any_key:
        parts.append("client keys any")
    parts.append(f"rules {len(mc0.rules) or 'none'}")
    return f"mc0: {', '.join(parts)}"


def _dbp(dbp: Dbp) -> str:
    if not dbp.enabled:
        return "dbp: off"
    where = zmq_endpoint.parse(dbp.endpoint)
    beacon = " ".join(f"{address}:{dbp.beacon_port}" for address in effective_dbp_beacon(dbp)) or "none"
    parts = (
        f"bound to tcp {where.where}",
        f"udp {where.port if dbp.udp_port is None else dbp.udp_port}",
        f"beacon {beacon}",
        f"offer {' '.join(effective_dbp_offer(dbp)) or 'nothing'}",
    )
    return f"dbp: {', '.join(parts)}"


def _mtl(mtl: Mtl) -> str:
    if not mtl.enabled:
        return "mtl: off"
    where = zmq_endpoint.parse(mtl.endpoint)
    data = mtl_data_place(mtl)
    parts = [f"bound to {_zbound(where)}", f"data {'there too' if data is None else data.where}"]
    if mtl.data_endpoint is not None:
        parts.append(f"told as {mtl.data_endpoint}")
    parts.append(f"auth {effective_mtl_auth(mtl)}{' over curve' if mtl_curve(mtl) else ''}")
    if mtl.users is not None:
        parts.append(f"users {mtl.users}")
    parts.append(f"hosts {' '.join(mtl.hosts)}")
    return f"mtl: {', '.join(parts)}; rules {len(mtl.rules) or 'none'}; queues {len(mtl.queues) or 'none'}"


def _journal(journal: Journal) -> str:
    if not journal.enabled:
        return "journal: off"
    days = journal.keep_seconds / _DAY
    size = next(((unit, name) for unit, name in _UNITS if journal.keep_bytes >= unit), _UNITS[-1])
    parts = [
        journal.directory or "in the state directory",
        *(() if journal.name is None else (f"as {journal.name}",)),
        f"kept {days:.4g} {'day' if days == 1 else 'days'}",
        f"{journal.keep_bytes / size[0]:.4g} {size[1]}",
    ]
    return f"journal: {', '.join(parts)}; full_load {len(journal.full_load) or 'none'}"


def _console(console: Console) -> str:
    if not console.enabled:
        return "console: off"
    where = endpoint.parse(console.endpoint)
    return f"console: bound to {_bound(where)}, {'no password' if console.password is None else 'password'}"


def _director_warnings(director: Director, resolves: Callable[[str], bool]) -> Iterator[str]:
    if not director.listeners:
        yield "director.listeners is empty: nobody can reach the director"
    for listener in director.listeners:
        here = f"director.listeners[{listener.name}]"
        where = endpoint.parse(listener.endpoint)
        for text in (*_published(listener, where, resolves), *_pages(listener)):
            yield f"{here}: {text}"
        if where.loopback:
            continue
        if effective_auth(listener) == "password":
            if where.kind == "tcp":
                yield f"{here}: the password crosses the network in the clear; tls: would hide it"
            continue
        if "provider" in listener.allow:
            yield f"{here}: open: anybody who reaches {where.where} may serve contexts, and is sent users"
        if "admin" in listener.allow:
            yield f"{here}: open: anybody who reaches {where.where} may steer and shut down all Context Servers"


def _warnings(listener: Listener, resolves: Callable[[str], bool]) -> Iterator[str]:
    where = endpoint.parse(listener.endpoint)
    yield from _published(listener, where, resolves)
    yield from _pages(listener)
    if where.loopback:
        return
    if effective_auth(listener) == "open":
        yield from _open(listener, where)
    elif where.kind == "tcp":
        yield "the password crosses the network in the clear; tls: would hide it"
    if effective_auth(listener) == "password" and listener.allow_before_auth:
        yield "allow_before_auth: anybody who reaches it may find services without the password"


def _pages(listener: ElkoListener) -> Iterator[str]:
    if effective_auth(listener) != "open":
        return
    if "*" in listener.origins:
        yield "origins: open to every page: each that somebody looks at who reaches it may do what he may"
    elif "null" in listener.origins:
        yield "origins: null is the origin of many pages, such as files that somebody opens"


def _published(listener: ElkoListener, where: Endpoint, resolves: Callable[[str], bool]) -> Iterator[str]:
    if listener.publish is None:
        if where.wildcard:
            yield f"{where.where} is published, which is an address for nobody; set publish"
        return
    host, _ = hostport(listener.publish) or ("", 0)
    if host in ("0.0.0.0", "::"):
        yield f"{listener.publish} is published, which is an address for nobody"
    elif not resolves(host):
        yield f"{host} is published, but does not resolve on this machine"


def _open(listener: Listener, where: Endpoint) -> Iterator[str]:
    steer = (
        ", and may watch, steer and shut down all of them, since admin is allowed" if "admin" in listener.allow else ""
    )
    yield f"open: anybody who reaches {where.where} may find every service{steer}"
    if any(pattern.startswith("*") for pattern in effective_offer(listener)):
        yield "open: anybody may offer a service of any name, and collect what others send to it"


def _mc0_warnings(mc0: Mc0) -> Iterator[str]:
    where = zmq_endpoint.parse(mc0.endpoint)
    unkeyed = effective_mc0_auth(mc0) == "open"
    if unkeyed and not where.loopback:
        what = "do what mc0.rules allow to peers without a key" if mc0.rules else "read and write every topic"
        yield f"mc0: open: anybody who reaches {where.where} may {what}"
    if mc0.any_key:
        yield "mc0.any_key: any client key is let in, also one that was made a moment ago"
    if mc0.client_keys is not None and not _has_keys(mc0.client_keys):
        yield f"mc0.client_keys: {mc0.client_keys} has no file NAME{files.PUBLIC} yet: nobody can connect"
    yield from _rule_warnings(mc0, unkeyed)


def _has_keys(directory: str) -> bool:
    try:
        return files.has_public_keys(directory)
    except files.BadFile:
        return False


def _rule_warnings(mc0: Mc0, unkeyed: bool) -> Iterator[str]:
    for_all: str | None = None
    for index, rule in enumerate(mc0.rules):
        here = f"mc0.rules[{index}]"
        if for_all is not None:
            yield f"{here}: never counts, since {for_all} is for everybody"
        elif not all(pattern.strip("*") for pattern in rule.keys):
            for_all = here
        elif unkeyed:
            yield f"{here}: never counts, since nobody has a key where auth is open"


def _dbp_warnings(dbp: Dbp) -> Iterator[str]:
    where = zmq_endpoint.parse(dbp.endpoint)
    offer = effective_dbp_offer(dbp)
    if not where.loopback:
        yield f"dbp: open: anybody who reaches {where.where} may find every service"
        if any(pattern.startswith("*") for pattern in offer):
            yield "dbp: open: anybody may register a service of any name, and collect what others send to it"
        elif offer:
            yield "dbp: open: anybody may register what dbp.offer allows, and collect what others send to it"
        if not dbp.check_address:
            yield "dbp.check_address: anybody may end any service, or keep up one that is gone"
    if not offer:
        why = "" if dbp.offer is not None else f"; by default, since {where.where} can be reached from elsewhere"
        yield f"dbp.offer: nothing may be registered{why}"


def _mtl_warnings(mtl: Mtl) -> Iterator[str]:
    where = zmq_endpoint.parse(mtl.endpoint)
    if not where.loopback:
        if effective_mtl_auth(mtl) == "open" or mtl.anonymous:
            what = "do what mtl.rules allow to users without a name" if mtl.rules else "read and write everything"
            yield f"mtl: open: anybody who reaches {where.where} may {what}"
        if mtl.plain and not mtl_curve(mtl):
            yield "mtl.plain: passwords cross the network in the clear"
        elif mtl.users is not None and not mtl_curve(mtl):
            yield "mtl: what is read and written crosses the network in the clear; a secret_key_file would hide it"
        if where.wildcard and mtl.data_endpoint is not None:
            yield f"mtl.data_endpoint: every client is sent to {mtl.data_endpoint}, whichever way it came"
    for name, entries in (
        ("rules", [rule.users for rule in mtl.rules]),
        ("queues", [each.queues for each in mtl.queues]),
    ):
        for_all: str | None = None
        for index, patterns in enumerate(entries):
            here = f"mtl.{name}[{index}]"
            if for_all is not None:
                yield f"{here}: never counts, since {for_all} is for all"
            elif not all(pattern.strip("*") for pattern in patterns):
                for_all = here


def _journal_warnings(journal: Journal) -> Iterator[str]:
    if not journal.full_load:
        yield "journal.full_load is empty: nothing will be said about the capacity of any service"
    for_all: str | None = None
    for index, entry in enumerate(journal.full_load):
        here = f"journal.full_load[{index}]"
        if for_all is not None:
            yield f"{here}: never counts, since {for_all} is for every service"
        elif not all(pattern.strip("*") for pattern in entry.services):
            for_all = here
