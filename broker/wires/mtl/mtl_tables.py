"""Views of MTL: its control sessions, its data flows, and the queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, islice

from broker.access.rights import RegistryReading
from broker.core.interfaces import ILeases
from broker.core.queues.queue_interfaces import QueueInfo
from broker.wires.mtl.durable_queues import LeftQueues
from broker.wires.mtl.sessions.control_flow import ControlFlow
from broker.wires.mtl.sessions.control_sessions import ControlSession
from broker.wires.mtl.sessions.data_clients import ReaderFlow, WriterFlow
from broker.wires.mtl.sessions.data_flow import DataFlow
from broker.wires.tables import AnyView, Column, Row, View

ServiceOf = Callable[[str], str | None]
"""Returns the name of the service in a resource, None if it has none."""

MAX_RESOURCES = 50
"""Resources that are shown of one flow."""

SESSION_COLUMNS = (
    Column("user", "Name of the user; empty before authentication"),
    Column("address", "Address of the connection"),
    Column("connection", "Number of the connection, which disconnects it"),
    Column("host", "Virtual host that the session opened"),
    Column("profile", "Profile that the session opened"),
    Column("authorized", "True if the session may open resources"),
)

FLOW_COLUMNS = (
    Column("user", "Name of the user"),
    Column("address", "Address of the connection"),
    Column("host", "Virtual host of the flow"),
    Column("profile", "Profile of the flow"),
    Column("side", "Reader or Writer"),
    Column("confirm", "Confirmation of Contents"),
    Column("resources", f"The first {MAX_RESOURCES} resources that the lease covers"),
    Column("heard", "Time since the last command of the client", "seconds"),
    Column("sent", "Sequence of the last Content sent to a reader"),
    Column("dropped", "Contents dropped because a reader does not read", "Contents"),
    Column("summoned", f"The first {MAX_RESOURCES} resources that a reader has summoned"),
)

QUEUE_COLUMNS = (
    Column("host", "Virtual host of the queue"),
    Column("queue", "Name of the queue"),
    Column("ready", "Messages that wait for a reader", "messages"),
    Column("unconfirmed", "Messages given to readers and not confirmed", "messages"),
    Column("bytes", "Size of all messages in the queue", "bytes"),
    Column("readers", "Readers of the queue", "readers"),
    Column("durable", "True if messages are kept over a restart"),
    Column("left", "Messages on the disk of this broker, from before it had another store: brokerctl queues move"),
)


def views(
    control: ControlFlow,
    data: DataFlow,
    describe: Callable[[], Sequence[QueueInfo]],
    leases: ILeases,
    services: Mapping[str, ServiceOf],
    left: LeftQueues | None = None,
) -> Sequence[AnyView]:
    """Return the views of the wire. ``services`` has the profiles whose resources name services, ``left`` are messages
    of a former store."""

    def queues() -> Sequence[QueueInfo]:
        found = list(describe())
        known = {(each.space, each.name) for each in found}
        others = [key for key in (left.counts if left is not None else ()) if key not in known]
        return found + [QueueInfo(space, name, 0, 0, 0, 0, True) for space, name in others]

    return [
        View(
            "mtl sessions",
            "Shows the control sessions. A pattern selects users or addresses.",
            SESSION_COLUMNS,
            lambda: list(control.sessions()),
            _session,
            lambda session: (_user(session), session.address),
            title="MTL sessions",
        ),
        View(
            "mtl flows",
            "Shows the data flows. A pattern selects users, addresses or profiles.",
            FLOW_COLUMNS,
            lambda: (flow for client in list(data.clients()) for flow in list(client.flows())),
            partial(_flow, leases),
            lambda flow: (flow.grant.principal.user, flow.client.address, flow.grant.profile.name),
            shown=partial(_is_shown, services),
            title="MTL flows",
        ),
        View(
            "mtl queues",
            "Shows the work queues. A pattern selects names.",
            QUEUE_COLUMNS,
            queues,
            partial(_queue, left),
            lambda queue: (queue.name,),
            sums=("ready", "unconfirmed", "bytes", "readers"),
            title="MTL queues",
        ),
    ]


def _queue(left: LeftQueues | None, queue: QueueInfo) -> Row:
    count = 0 if left is None else left.counts.get((queue.space, queue.name), 0)
    return {
        "host": queue.space,
        "queue": queue.name,
        "ready": queue.ready,
        "unconfirmed": queue.out,
        "bytes": queue.bytes,
        "readers": queue.consumers,
        "durable": queue.durable,
        **({"left": count} if count else {}),
    }


def _user(session: ControlSession) -> str:
    return "" if session.principal is None else session.principal.user


def _session(session: ControlSession) -> Row:
    principal = session.principal
    return {
        "user": _user(session),
        "address": session.address,
        "connection": session.connection,
        "host": "" if principal is None else principal.host,
        "profile": "" if session.profile is None else session.profile.name,
        "authorized": principal is not None,
    }


def _is_shown(services: Mapping[str, ServiceOf], reading: RegistryReading, flow: ReaderFlow | WriterFlow) -> bool:
    """Return True unless a resource of the flow names a service that is not shown."""
    service_of = services.get(flow.grant.profile.name)
    if service_of is None:
        return True
    resources = chain(flow.grant.resources, flow.summoned if isinstance(flow, ReaderFlow) else ())
    return all(reading.shows(name) for name in map(service_of, resources) if name is not None)


def _flow(leases: ILeases, flow: ReaderFlow | WriterFlow) -> Row:
    grant, client = flow.grant, flow.client
    about: dict[str, object] = {
        "user": grant.principal.user,
        "address": client.address,
        "host": grant.principal.host,
        "profile": grant.profile.name,
        "side": grant.side.value,
        "confirm": grant.confirm.value,
        "resources": list(islice(grant.resources, MAX_RESOURCES)),
        "heard": round(leases.now - client.heard, 1),
    }
    if isinstance(flow, ReaderFlow):
        about["sent"] = flow.sequence
        about["dropped"] = flow.dropped
        about["summoned"] = list(islice(flow.summoned, MAX_RESOURCES))
    return about
