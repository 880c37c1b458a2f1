"""Endpoints of listeners as other machines reach them: a member of a cluster publishes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from broker.access.identity import is_local
from broker.config.key_checks import hostport
from broker.core.model import Listening


def endpoints(states: Iterable[Listening], advertise: str | None, host: str) -> Mapping[str, str]:
    """Return the endpoints of the open listeners by their titles: ``tcp://HOST:PORT``.

    ``advertise`` is the host under which this machine is reached, None if the configuration has none; ``host`` is the
    machine's name. Listeners at all addresses of the machine have one of these two. Absent are listeners without an
    address of TCP, and those on loopback while ``advertise`` is another host.
    """
    found = {}
    for each in states:
        place = hostport(each.where.removeprefix("tcp://")) if each.ready else None
        reached = None if place is None else reachable(place[0], advertise, host)
        if place is not None and reached is not None:
            found[each.name] = f"tcp://{joined(reached, place[1])}"
    return found


def reachable(address: str, advertise: str | None, host: str) -> str | None:
    """Return the host under which others reach a listener that is bound to ``address``; None if they cannot."""
    try:
        ip = ip_address("127.0.0.1" if address == "localhost" else address)
    except ValueError:
        return None
    if ip.is_loopback:
        return address if advertise is None or is_local(advertise) else None
    return advertise or (host if ip.is_unspecified else address)


def joined(host: str, port: int) -> str:
    """Return host and port as one text, an IPv6 address in brackets."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"
