"""The profile "registry": services and loads of the registry that all wires share.

Rules:
- Resources are ``services`` (all), ``service/NAME``, ``load`` (of all providers) and ``load/NAME`` (of the providers of
  that service).
- A reader that summons one is sent the *snapshot*: a Content for each entry, with ``event`` "snapshot"; then one with
  "synced" and an empty body; then the changes: "up", "update" and "down" of services, "load" and "down" of loads. Each
  has ``revision``, that of the registry at the change or the Summon, and ``provider``; those of services have
  ``service``. Bodies are descriptors of services and of loads, without passwords; the "down" of a load has none.
- A Summon may give the ``epoch`` and the ``revision`` up to which its reader has the resource, as a table in its
  body. Then "synced" comes first, with ``resumed``, and behind it the changes since then; but a snapshot where they are
  not known any more (`broker.wires.mtl.profiles.entries`). A reader may resume after Contents with an ``epoch``.
- The table may have a ``filter`` of services (`broker.core.service_filter`) instead: the reader is sent those to which
  it applies, "up" and "down" as it begins and ceases to apply. One that cannot be parsed is answered by a Content with
  the ``event`` "error", the ``code`` 400 and the ``reason``.
- A service whose health check fails is updated, with ``check`` and ``reason`` in its descriptor, and updated again when
  it passes. One that the policy of the check hides is down until it is shown again.
- An entry is a service of a provider, by name and protocol, or the load of a provider.
- A slow reader is sent the newest state of each entry only (`broker.wires.mtl.profiles.entries`), and is not
  ended. A gap in the sequences is no loss here.
- A reader of ``services`` or ``load`` is sent the entries that its user may find (`broker.access.rights`).
  The load of a provider begins and ends with the services of that provider that the user may find. A reader who may not
  find all of them resumes ``load`` by a snapshot: former services of a provider are not known any more.
- Long snapshots are sent in parts, round-robin between readers.
- A writer of ``service/NAME`` offers by a Content of the ``type`` "offer", whose body is a descriptor of that name, and
  withdraws by "withdraw"; a further offer replaces the former one, unless it is refused. A writer of ``load`` reports
  its load by ``{"load": NUMBER}``. All offers of a flow belong to one provider, and end with the flow.
- Descriptors with passwords are refused: the registry would have to hide these from readers, but not from peers of
  Elko.
- Only the virtual host that is shared with other wires has this profile.

The file is longer than others: snapshots and changes of an entry are ordered over the same tables of readers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import attrs

from broker.access.rights import EVERY_ENTRY, RegistryReading
from broker.core.errors import Reason, Refusal, no_right
from broker.core.interfaces import ILease, ILeases, IRegistry, IWait
from broker.core.model import BAD_STATES, BROKER, Change, Check, Kind, Load, Service
from broker.core.service_filter import ServiceFilter
from broker.net.peer_interfaces import RefusalLog, Sent
from broker.wires.common.descriptors import encode_descriptor, load_descriptor, service_descriptor
from broker.wires.mtl.codec import data_messages, field_table
from broker.wires.mtl.profiles import entries
from broker.wires.mtl.profiles.entries import Catalogue, EntryChange, EntryEvent, EntryKey, PendingChanges, key_of
from broker.wires.mtl.profiles.flow_provider import FlowProvider, read_load, read_service
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Principal, Side, no_lease
from broker.wires.mtl.sessions.profile_interface import (
    DataFlows,
    LeasedCall,
    Profile,
    ProfileReader,
    ProfileWriter,
)

NAME = "registry"

SERVICES, SERVICE, LOADS, LOAD = "services", "service/", "load", "load/"
"""The resources: two names and two prefixes."""

_JSON = "application/json"

_View = PendingChanges[Any]
_Event = EntryEvent[Any]


@attrs.frozen
class RegistryBounds:
    """Bounds of all readers of the profile together, where no other scope is given."""

    views: int = 100_000
    """Resources that all readers together have summoned: ten for each of 10,000. Some 110 MB."""

    at_once: int = 500
    """Contents that one Summon, or new room, sends at once: 6 to 8 ms of work. The rest follows in the next ticks."""

    per_tick: int = 500
    """Contents that all readers together are sent in a tick of the leases, a fortieth of a second: a third of its time.
    So readers that reconnect after a restart are sent 20,000 entries a second, and other connections are served too."""

    per_turn: int = 50
    """Contents that one reader is sent in its turn."""


_BOUNDS = RegistryBounds()


class RegistryProfile(Profile):
    """The profile. See `broker.wires.mtl.sessions.profile_interface.Profile`.

    The ``place`` of a reader has its pending changes by resource, that of a writer its provider after its first
    Content.
    """

    name = NAME
    confirms: Mapping[Side, tuple[ConfirmMode, ...]] = {
        Side.READER: (ConfirmMode.NONE,),
        Side.WRITER: (ConfirmMode.NONE, ConfirmMode.FULL),
    }

    def __init__(
        self,
        flows: DataFlows,
        registry: IRegistry,
        leases: ILeases,
        refusal_log: RefusalLog,
        bounds: RegistryBounds = _BOUNDS,
    ) -> None:
        self._bounds = bounds
        self._flows = flows
        self._registry = registry
        self._leases = leases
        self._refusal_log = refusal_log
        self._views: dict[str, dict[_View, RegistryReading]] = {}
        """By resource, each with the entries of the resource that its reader is shown."""
        self._filters: dict[_View, ServiceFilter] = {}
        """Filters of the views that have one."""
        self._count = 0
        """Number of views, of all resources."""
        self._board = Catalogue(registry.by_check(registry.services()))
        self._watch = registry.watch(self._service_changed, entries.OF_SERVICES)
        self._shown: dict[EntryKey, str] = {}
        """Entries whose check fails or leaves a doubt, with its state."""
        self._load_watch: IWait | None = None
        """Set while there are readers of loads only: loads change all the time."""
        self._loads_of: set[str] = set()
        """Services with readers of the loads of their providers."""
        # Taken from the front: a plain dict skips all that was taken before, each time.
        self._unserved: OrderedDict[_View, None] = OrderedDict()
        """Views with events left after their turn, in the order of the next turns."""
        self._going_on: ILease | None = None
        self._sent = 0

    # leases

    def check(self, principal: Principal, side: Side, resource: str) -> None:
        name = service_of(resource)
        if name is None and resource not in (SERVICES, LOADS):
            raise Refusal(Reason.PARAMETER, "there is no such resource: services, service/NAME, load, load/NAME")
        if side is Side.WRITER and (resource == SERVICES or resource.startswith(LOAD)):
            raise Refusal(Reason.PARAMETER, "services are offered at service/NAME, and loads are reported at load")
        if not principal.allowed.may(side, NAME, resource):
            raise no_lease(principal, side, NAME, name or resource)
        if side is Side.WRITER and name is not None and not principal.allowed.offers.permits(name):
            raise no_right("offer", name, principal.user)

    def joined(self, flow: ProfileReader | ProfileWriter) -> None:
        flow.place = {} if flow.grant.side is Side.READER else None

    def left(self, flow: ProfileReader | ProfileWriter) -> None:
        place: dict[str, _View] | FlowProvider | None = flow.place
        if isinstance(place, FlowProvider):
            place.leave()
        elif place is not None:
            for resource, view in place.items():
                self._forget(resource, view)

    def heartbeat(self, flow: ProfileReader | ProfileWriter) -> None:
        if isinstance(flow.place, FlowProvider):
            flow.place.heartbeat()

    def provider(self, flow: ProfileReader | ProfileWriter) -> int | None:
        return flow.place.id if isinstance(flow.place, FlowProvider) else None

    # readers

    def summon(self, reader: ProfileReader, resource: str, body: bytes = b"") -> None:
        if self._count >= self._bounds.views:
            # The Summon has been answered with 200 already: ending the flow is the only way to report it.
            self._refusal_log.count("mtl_registry", "full")
            self._flows.end(reader, "full")
            return
        try:
            position, chosen = entries.asked(body)
            if chosen is not None and service_of(resource, SERVICE) is None and resource != SERVICES:
                raise Refusal(Reason.PARAMETER, "a filter is for services")
        except Refusal as refusal:
            self._refusal_log.count("mtl_registry", refusal.reason.code)
            reader.send(*_problem(resource, refusal))
            return
        self._count += 1
        revision, epoch = self._registry.revision, self._registry.epoch
        # The right to a resource with a name is that to find the name.
        reading = reader.grant.principal.allowed.reading if service_of(resource) is None else EVERY_ENTRY
        since, missed = self._missed(resource, position, reading)

        def shown(entry: Service | Load | int) -> _Event:
            if isinstance(entry, Service):
                return EntryEvent(key_of(entry), "snapshot", revision, entry)
            load = entry if isinstance(entry, Load) else self._load(entry)
            return EntryEvent(load.provider, "snapshot", revision, load)

        def send(event: _Event | None, complete: bool) -> bool:
            if event is not None:
                tail, body = _encoded(resource, event, epoch if complete else 0, self._registry)
            else:
                tail, body = _synced(resource, revision if missed is None else since, epoch, missed is not None)
            sent = reader.send(tail, body) is Sent.SENT
            self._sent += sent
            return sent

        present = self._entries(resource, reading) if missed is None else ()
        if chosen is not None:
            present = [each for each in present if isinstance(each, Service) and chosen(each)]
        view: _View = PendingChanges(present, shown, send, missed or ())
        if chosen is not None:
            self._filters[view] = chosen
        self._views.setdefault(resource, {})[view] = reading
        reader.place[resource] = view
        if resource == LOADS or resource.startswith(LOAD):
            self._watch_loads(resource)
        self._serve(view, self._bounds.at_once)

    def _missed(
        self, resource: str, position: tuple[int, int] | None, reading: RegistryReading
    ) -> tuple[int, list[_Event] | None]:
        """Return the revision at which a reader resumes, and the missed changes; None if it needs a snapshot."""
        name = service_of(resource)
        of_loads = resource == LOADS or resource.startswith(LOAD)
        if position is None or (of_loads and not reading.every):
            return 0, None
        kinds: tuple[Kind, ...] = entries.OF_SERVICES
        if of_loads:
            kinds = entries.OF_LOADS if name is None else entries.OF_LOADS_OF_SERVICE
        changes = self._registry.changes_since(*position, kinds)
        if changes is None:
            return 0, None
        if of_loads:
            return position[1], entries.loads_since(changes, name, self._board, self._known_load)
        return position[1], entries.services_since(changes, name, self._board, reading)

    def dismiss(self, reader: ProfileReader, resource: str) -> None:
        view = reader.place.pop(resource, None)
        if view is not None:  # a filter that could not be parsed has none
            self._forget(resource, view)

    def _forget(self, resource: str, view: _View) -> None:
        self._count -= 1
        self._filters.pop(view, None)
        self._unserved.pop(view, None)
        views = self._views[resource]
        del views[view]
        if not views:
            del self._views[resource]
            if resource.startswith(LOAD):
                self._loads_of.discard(resource.removeprefix(LOAD))
            if self._load_watch is not None and not self._loads_of and LOADS not in self._views:
                self._load_watch.cancel()
                self._load_watch = None

    def _watch_loads(self, resource: str) -> None:
        if resource != LOADS:
            self._loads_of.add(resource.removeprefix(LOAD))
        if self._load_watch is None:
            self._load_watch = self._registry.watch(self._load_changed, entries.OF_LOADS)

    def _entries(self, resource: str, reading: RegistryReading) -> Iterable[Service | Load | int]:
        """Return the entries of a resource. Of ``load/NAME`` they are the ids of providers."""
        if resource == SERVICES:
            entries = self._board.entries()
            return self._registry.by_check(tuple(each for each in entries if reading.shows(each.name)))
        if resource == LOADS:
            loads = self._registry.loads()
            return (each for each in loads if reading.shows_any(self._board.names(each.provider)))
        if resource.startswith(SERVICE):
            return self._registry.by_check(tuple(self._board.entries(resource.removeprefix(SERVICE))))
        return (each for each in self._board.providers(resource.removeprefix(LOAD)) if each != BROKER)

    def _load(self, provider: int) -> Load:
        """Return the load of a provider, an empty one if it has left and the event is still pending."""
        return self._known_load(provider) or Load(provider, "", 0.0)

    def _known_load(self, provider: int) -> Load | None:
        known = self._registry.provider(provider)
        return None if known is None else Load(known.id, known.label, known.load, known.details)

    # sending

    def room(self, reader: ProfileReader) -> None:
        most = self._bounds.at_once
        views: dict[str, _View] = reader.place
        for resource, view in list(views.items()):
            if not view:
                continue
            sent = self._serve(view, most)
            most -= sent
            if sent:
                # To the end: the next room is for the others first.
                views[resource] = views.pop(resource)
            if view.blocked:
                return

    def _serve(self, view: _View, most: int) -> int:
        """Send up to ``most`` waiting events, and schedule the rest. Returns the number sent."""
        sent = view.serve(most)
        if view and not view.blocked:
            self._unserved[view] = None
            if self._going_on is None:
                self._going_on = self._leases.hold(LeasedCall(self._go_on), self._leases.now)
        return sent

    def _go_on(self, now: float) -> float | None:
        """Serve the views with events left, round-robin, up to the bound of a tick."""
        most = self._bounds.per_tick
        while self._unserved and most > 0:
            view, _ = self._unserved.popitem(last=False)
            most -= max(1, self._serve(view, min(self._bounds.per_turn, most)))
        if self._unserved:
            return now
        self._going_on = None
        return None

    # changes

    def _service_changed(self, change: Change) -> None:
        service = change.subject
        assert isinstance(service, Service)
        board = self._board
        name = service.name
        views = self._views
        offered = bool(views) and board.offers(service.provider, name)
        kind = change.kind
        if kind is Kind.OFFERED or kind is Kind.SHOWN:
            shift = board.offered(service)
        elif kind is Kind.WITHDRAWN or kind is Kind.HIDDEN:
            shift = board.withdrawn(service)
            if kind is Kind.WITHDRAWN and self._shown:
                self._shown.pop(key_of(service), None)
        elif kind is Kind.CHECKED:
            self._checked(change, service)
            return
        else:
            shift = board.amended(service)
        if not views:
            return
        for resource in (SERVICES, SERVICE + name):
            if resource in self._views:
                self._send_shift(resource, change.revision, shift)
        offers = board.offers(service.provider, name)
        if offers == offered or service.provider == BROKER:
            return
        if LOAD + name in self._views:
            self._send_load(LOAD + name, change, new=offers, gone=not offers)
        if LOADS in self._views:
            self._send_loads_of(change, name, offers)

    def _send_loads_of(self, change: Change, name: str, offers: bool) -> None:
        """Notify readers of all loads for which that of a provider begins or ends with its services of that name."""
        self._leases.look()  # as in `_send_event`
        load = self._load(change.provider)
        kind = "load" if offers else "down"
        event: _Event = EntryEvent(load.provider, kind, change.revision, load, new=offers, gone=not offers)
        names = self._board.names(change.provider)
        for view, reading in self._views[LOADS].items():
            if reading.shows(name) and not reading.shows_any(each for each in names if each != name):
                view.tell(event)

    def _checked(self, change: Change, service: Service) -> None:
        """Notify readers of a check whose shown state begins, changes or ends, unless the service is hidden."""
        key = key_of(service)
        state = change.why if change.why in BAD_STATES else None
        if state == self._shown.get(key):
            return
        if state is None:
            del self._shown[key]
        else:
            self._shown[key] = state
        if self._board.entry(key) is not service:
            return
        for resource in (SERVICES, SERVICE + service.name):
            if resource in self._views:
                event: _Event = EntryEvent(key, "update", change.revision, service)
                self._send_event(resource, event, (service.name,), service)

    def _send_shift(self, resource: str, revision: int, shift: EntryChange) -> None:
        before, now = shift.before, shift.now
        if before is now:
            return
        event: _Event
        if now is None:
            assert before is not None
            event = EntryEvent(key_of(before), "down", revision, before, gone=True)
        else:
            event = EntryEvent(key_of(now), "up" if before is None else "update", revision, now, new=before is None)
        self._send_event(resource, event, (event.subject.name,), before)

    def _load_changed(self, change: Change) -> None:
        kind, provider = change.kind, change.provider
        if LOADS in self._views:
            self._send_load(LOADS, change, new=kind is Kind.JOINED, gone=kind is Kind.LEFT)
        if kind in (Kind.JOINED, Kind.LEFT) or not self._loads_of:
            return
        known = self._registry.provider(provider)
        for name in {service.name for service in known.services} if known is not None else ():
            if name in self._loads_of and self._board.offers(provider, name):
                self._send_load(LOAD + name, change)

    def _send_load(self, resource: str, change: Change, new: bool = False, gone: bool = False) -> None:
        load = change.subject if isinstance(change.subject, Load) else self._load(change.provider)
        event = EntryEvent(load.provider, "down" if gone else "load", change.revision, load, new, gone)
        self._send_event(resource, event, self._board.names(load.provider))

    def _send_event(self, resource: str, event: _Event, names: Collection[str], before: Service | None = None) -> None:
        """Notify readers of an event that concerns services of these names. ``before`` is the service until then."""
        self._leases.look()  # a provider that leaves with its connection changes outside of a quantum: set the time
        for view, reading in self._views[resource].items():
            if reading.shows_any(names):
                chosen = self._filters.get(view) if self._filters else None
                seen = event if chosen is None else _filtered(event, chosen, before)
                if seen is not None:
                    view.tell(seen)

    # writers

    def content(self, writer: ProfileWriter, resource: str, content: data_messages.Content) -> None:
        provider: FlowProvider | None = writer.place
        if provider is None:
            provider = FlowProvider(self._registry, writer.grant.principal.allowed.offers, writer)
            writer.place = provider
        try:
            if resource == LOADS:
                provider.load(*read_load(content.body))
            else:
                _offer(provider, resource.removeprefix(SERVICE), content)
        except Refusal as refusal:
            self._refusal_log.count("mtl_registry", refusal.reason.code)
            writer.reject(content.sequence, recycle=refusal.reason is Reason.LIMIT)
        else:
            writer.confirm(content.sequence)

    # for the broker

    def counts(self) -> Mapping[str, int]:
        return {"mtl_registry.told": self._sent, "mtl_registry.summoned": self._count}

    def close(self) -> None:
        for held in (self._watch, self._load_watch, self._going_on):
            if held is not None:
                held.cancel()


def _filtered(event: _Event, chosen: ServiceFilter, before: Service | None) -> _Event | None:
    """Return the event as a reader with a filter sees it; None if it sees nothing."""
    was = before is not None and chosen(before)
    if not event.gone and chosen(event.subject):
        return event if was else EntryEvent(event.key, "up", event.revision, event.subject, new=True)
    return EntryEvent(event.key, "down", event.revision, before, gone=True) if was else None


def service_of(resource: str, *kinds: str) -> str | None:
    """Return the name of the service in a resource, by default of any kind; None if it has none."""
    for kind in kinds or (SERVICE, LOAD):
        if resource.startswith(kind) and len(resource) > len(kind):
            return resource.removeprefix(kind)
    return None


def _offer(provider: FlowProvider, name: str, content: data_messages.Content) -> None:
    what = field_table.members(content.table, "type").get("type")
    if what == "offer":
        provider.offer(read_service(content.body, name))
    elif what == "withdraw":
        provider.withdraw(name)
    else:
        raise Refusal(Reason.PARAMETER, 'a Content to a service has the type "offer" or "withdraw"')


def _problem(resource: str, refusal: Refusal) -> tuple[bytes, bytes]:
    """Return the encoded answer to a Summon with a filter that cannot be parsed."""
    properties: dict[str, field_table.Value] = {"event": "error", "code": 400, "reason": refusal.text}
    return data_messages.make_tail(resource, field_table.encode(properties)), b""


def _synced(resource: str, revision: int, epoch: int, resumed: bool) -> tuple[bytes, bytes]:
    """Return the encoded end of a snapshot, or beginning of the changes that a reader missed."""
    properties: dict[str, field_table.Value] = {"event": "synced", "revision": revision, "epoch": epoch}
    if resumed:
        properties["resumed"] = True
    return data_messages.make_tail(resource, field_table.encode(properties)), b""


def _encoded(resource: str, event: _Event, epoch: int, registry: IRegistry) -> tuple[bytes, bytes]:
    """Return tail and body of an event, encoded once for all readers. ``epoch`` is 0 if none can resume after it."""
    if event.encoded is None or event.epoch != epoch:
        event.epoch = epoch
        check = registry.check_of(event.subject) if isinstance(event.subject, Service) and not event.gone else None
        try:
            event.encoded = _encode(resource, event, event.subject, check)
        except UnicodeEncodeError:
            # Other wires accept surrogates in texts, which UTF-8 cannot encode.
            event.encoded = _encode(resource, event, _harmless(event.subject), check)
    return event.encoded


def _encode(resource: str, event: _Event, subject: Service | Load, check: Check | None) -> tuple[bytes, bytes]:
    properties: dict[str, field_table.Value] = {
        "event": event.name,
        "revision": event.revision,
        "provider": subject.provider,
    }
    if event.epoch:
        properties["epoch"] = event.epoch
    body = b""
    if isinstance(subject, Service):
        properties["service"] = subject.name
        body = encode_descriptor(service_descriptor(subject, check))
    elif not event.gone:
        body = encode_descriptor(load_descriptor(subject))
    if body:
        properties["content-type"] = _JSON
    return data_messages.make_tail(resource, field_table.encode(properties)), body


def _harmless(subject: Service | Load) -> Service | Load:
    """Return the same with question marks in place of lone surrogates."""
    texts = {name: value for name, value in attrs.asdict(subject, recurse=False).items() if isinstance(value, str)}
    changes: dict[str, Any] = {name: text.encode("utf-8", "replace").decode() for name, text in texts.items()}
    return attrs.evolve(subject, **changes)
