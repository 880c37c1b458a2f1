"""What operators are shown of MTL: its control sessions, its data flows, and the queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Protocol

from broker.core.interfaces import ILeases
from broker.wires.mtl.sessions.control import Control
from broker.wires.mtl.sessions.data import Data
from broker.wires.mtl.sessions.flows import ReaderFlow, WriterFlow
from broker.wires.mtl.sessions.sessions import Session

MAX_LISTED = 1_000
"""Rows of one answer: more than anybody reads. A pattern finds more."""

MAX_RESOURCES = 50
"""Resources that are shown of one flow."""


class QueueInfo(Protocol):
    """A queue: see `broker.core.queues.interfaces.QueueInfo`."""

    @property
    def space(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def ready(self) -> int: ...
    @property
    def out(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def consumers(self) -> int: ...
    @property
    def durable(self) -> bool: ...


def sessions(control: Control, pattern: str = "*") -> list[dict[str, object]]:
    """The control sessions whose user or address matches a shell pattern."""
    shown = map(_session, control.sessions())
    found = (each for each in shown if _matches(pattern, each["user"], each["address"]))
    return list(islice(found, MAX_LISTED))


def flows(data: Data, leases: ILeases, pattern: str = "*") -> list[dict[str, object]]:
    """The data flows whose user, address or profile matches a shell pattern."""
    shown = (_flow(flow, leases.now) for client in data.clients() for flow in client.flows())
    found = (each for each in shown if _matches(pattern, each["user"], each["address"], each["profile"]))
    return list(islice(found, MAX_LISTED))


def queues(infos: Iterable[QueueInfo], pattern: str = "*") -> list[dict[str, object]]:
    """The queues whose name matches a shell pattern."""
    found = (each for each in infos if fnmatchcase(each.name, pattern))
    return [
        {
            "host": each.space,
            "queue": each.name,
            "ready": each.ready,
            "unconfirmed": each.out,
            "bytes": each.bytes,
            "readers": each.consumers,
            "durable": each.durable,
        }
        for each in islice(found, MAX_LISTED)
    ]


def views(
    control: Control, data: Data, describe: Callable[[], Sequence[QueueInfo]], leases: ILeases
) -> dict[str, Callable[[str], object]]:
    """The console's commands, by name. Each is given a pattern."""
    return {
        "mtl sessions": lambda pattern: sessions(control, pattern),
        "mtl flows": lambda pattern: flows(data, leases, pattern),
        "mtl queues": lambda pattern: queues(describe(), pattern),
    }


def _matches(pattern: str, *texts: object) -> bool:
    return any(fnmatchcase(str(text), pattern) for text in texts)


def _session(session: Session) -> dict[str, object]:
    principal = session.principal
    return {
        "user": "" if principal is None else principal.user,
        "address": session.address,
        "host": "" if principal is None else principal.host,
        "profile": "" if session.profile is None else session.profile.name,
        "authorized": principal is not None,
    }


def _flow(flow: ReaderFlow | WriterFlow, now: float) -> dict[str, object]:
    grant, client = flow.grant, flow.client
    about: dict[str, object] = {
        "user": grant.principal.user,
        "address": client.address,
        "host": grant.principal.host,
        "profile": grant.profile.name,
        "side": grant.side.value,
        "confirm": grant.confirm.value,
        "resources": list(islice(grant.resources, MAX_RESOURCES)),
        "heard": round(now - client.heard, 1),
    }
    if isinstance(flow, ReaderFlow):
        about["sent"] = flow.sequence
        about["dropped"] = flow.dropped
        about["summoned"] = list(islice(flow.summoned, MAX_RESOURCES))
    return about
