"""The mesh: one connection to each other member, from its key and endpoint to an open link.

Rules:
- Of each pair of members, the one with the lower name connects. So both sides agree on the state of the link.
- With CURVE, the connecting side knows the listener's key from the member, and the listener accepts the keys of present
  members only. Without keys, links are possible on the loopback interface only.
- Both sides introduce themselves by name and instance, and name the instance that they expect. A stale instance, as of
  a broker whose name another process has now, is refused; a member with another instance is another neighbour.
- A link outlives the membership of its neighbour: a broker that cannot reach etcd is no member for the others after the
  TTL, and topics go on as long as the connection lives.
- A neighbour that is silent for `SILENCE` on the clock that excludes stalls of this broker has lost the link: its
  connection is reset, and the connecting side tries again, with back-off and jitter.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger

from broker import curve_keys
from broker.cluster.links import link_messages
from broker.cluster.links.link_messages import (
    ALIVE,
    CONNECT_WITHIN,
    CONTROL,
    HELLO,
    REFUSED,
    SILENCE,
    STEADY,
    WELCOME,
    Introduction,
    LinkSettings,
    LinkState,
    Neighbour,
    address,
    obstacle,
)
from broker.cluster.links.link_wire import Attempt, Attempts, LinkKey, LinkPeer, LinkRouter, MemberKeys
from broker.core.cluster.cluster_interfaces import INeighbours, Member
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ILeases, IWait
from broker.core.place_table import Pool
from broker.net.listeners import CannotListen
from broker.net.refusal_log import RefusalLog
from broker.net.router.backlog import BacklogLimits
from broker.net.router.router import KeyGate
from broker.net.scheduler import Scheduler
from broker.net.zmtp.curve import CurveClient
from broker.net.zmtp.frames import FrameLimits
from broker.net.zmtp.machine import Mechanism, Null
from broker.wires.common.router_listener import RouterListener, make_kind, make_security


@attrs.frozen(eq=False)
class LinkContext:
    """Environment of the links; see `broker.wires.interface.WireContext`. ``pool`` has the descriptors."""

    pool: Pool
    scheduler: Scheduler
    refusal_log: RefusalLog
    clock: Any
    leases: ILeases
    random: Random = attrs.field(factory=Random)


class MeshUser(Protocol):
    """User of the open links. No method is called within one of the user's own calls, except by `Mesh.end`."""

    def up(self, neighbour: Neighbour) -> None:
        """Handle a link that is open."""

    def down(self, neighbour: Neighbour) -> None:
        """Handle the end of an open link."""

    def received(self, neighbour: Neighbour, peer: LinkPeer, frames: list[bytes]) -> None:
        """Handle a message of an open link. A `Refusal` ends the link."""


class Mesh:
    """The links to all other members; see the head of this module.

    Raises OSError if the implementation of CURVE's encryption that the environment selects is not available.
    """

    log = Logger()

    def __init__(self, settings: LinkSettings, context: LinkContext, user: MeshUser) -> None:
        self._user = user
        self._settings = settings
        self._context = context
        self._clock = context.clock
        self._leases = context.leases
        self._keys = MemberKeys()
        secret = settings.secret_key
        self.public_key = "" if secret is None else LinkKey.of(secret).public
        """The key to publish, in Z85; empty without CURVE."""
        self.router = make_kind(
            LinkRouter, settings.wire, settings.limits, secret, None if secret is None else self._keys, context
        )
        self._security = None if secret is None else make_security(secret)
        self.frames = FrameLimits.of_frame(settings.limits.max_message)
        # As a client, so that no key is checked: the mechanism proves the one that the member has published.
        self.attempts = Attempts(
            settings.wire,
            self._no_mechanism,
            KeyGate(settings.wire, None, context.refusal_log, context.clock),
            settings.limits.connection_limits(),
            self.frames,
            context.scheduler,
            context.refusal_log,
            context.clock,
            BacklogLimits(messages=settings.limits.high_water),
            None if self._security is None else self._security.sealing,
        )
        self.attempts.frame_limits = self.frames
        self.router.use_ends(self)
        self.attempts.use_ends(self)
        self.listener = RouterListener(self.router, context.clock)
        self._members: INeighbours | None = None
        self._me: Member | None = None
        self._watch: IWait | None = None
        self._stopping = False
        self.neighbours: dict[str, Neighbour] = {}
        """All other members, by name."""
        self.open: dict[str, Neighbour] = {}
        """Those with an open link."""

    def bind(self) -> str:
        """Listen at the endpoint. Returns the address, ``host:port``. Raises `CannotListen`.

        Connections are refused for now, until `start`.
        """
        where = self._settings.endpoint
        assert where is not None
        if self._settings.secret_key is None and not where.loopback:
            raise CannotListen(
                f"links between brokers at {where.where} need a key: without one, any host could take part"
            )
        bound = self.listener.bind(where).partition("://")[2]
        how = "CURVE" if self._settings.secret_key else "without keys"
        self.log.info("links between brokers on {where} ({how})", where=bound, how=how)
        return bound

    def start(self, members: INeighbours) -> None:
        """Open links to all members, present and later ones, until `stop`."""
        self._members = members
        self._watch = members.watch_members(self._changed)
        for member in members.members():
            self._changed(member.name, member)

    def stop(self) -> Deferred[Any]:
        """Stop listening, and close all links in order. Fires when all connections are closed."""
        self._stopping = True
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        for each in self.neighbours.values():
            each.cancel()
        self.listener.unbind()
        return DeferredList([self.router.close(), self.attempts.close()]).addCallback(self._stopped)

    def _stopped(self, _: object) -> None:
        for router in (self.router, self.attempts):
            for deadlines in (router.logins, router.stalls, router.closes, router.lingering):
                deadlines.stop()

    def alive(self) -> Collection[str]:
        """Return the names of the members that have an open link, or have shown a sign of life within `ALIVE`."""
        since = self._leases.moment() - ALIVE
        return [name for name, each in self.neighbours.items() if name in self.open or each.heard > since]

    # members

    def _changed(self, name: str, member: Member | None) -> None:
        """Follow a change of the members."""
        if self._stopping:
            return
        assert self._members is not None
        if name == self._members.name:
            before, self._me = self._me, member
            if member is not None and (before is None or before.instance != member.instance):
                # The neighbours know this broker by its instance.
                for each in list(self.neighbours.values()):
                    self._begin_again(each, "this broker has another lease")
            return
        self._keys.set(name, member)
        neighbour = self.neighbours.get(name)
        if member is None:
            if neighbour is not None and name not in self.open:
                del self.neighbours[name]
                self.end(neighbour, Refusal(Reason.DISCONNECTED, "it is no member any more"))
                neighbour.cancel()
            return
        if neighbour is None:
            neighbour = Neighbour(member, self._clock.seconds(), self._silent, self._leases.slack)
            self.neighbours[name] = neighbour
            self._prepare(neighbour)
            return
        before, neighbour.member = neighbour.member, member
        if (before.instance, before.link, before.key) != (member.instance, member.link, member.key):
            self._begin_again(neighbour, "it has another lease, endpoint or key")

    def _begin_again(self, neighbour: Neighbour, why: str) -> None:
        """End the link or the attempt, and prepare another one."""
        self.end(neighbour, Refusal(Reason.REPLACED, why))
        neighbour.cancel()
        neighbour.failures = 0
        self._prepare(neighbour)

    def _prepare(self, neighbour: Neighbour) -> None:
        """Plan the next attempt, or expect that of the neighbour."""
        if self._stopping or self.neighbours.get(neighbour.name) is not neighbour or neighbour.peer is not None:
            return
        connects = self._connects(neighbour)
        hindrance = obstacle(neighbour.member, self._security is not None, connects)
        if neighbour.timer is not None:
            neighbour.timer.cancel()
            neighbour.timer = None
        if hindrance:
            if neighbour.reason != hindrance:
                # In bounded lines: a stranger who writes to etcd may publish members that come and go all the time.
                refusal = Refusal(Reason.UNAVAILABLE, f"no link is possible: {hindrance}")
                self._context.refusal_log.add(self._settings.wire, neighbour.name, refusal)
            neighbour.reason = hindrance
            self._enter(neighbour, LinkState.IMPOSSIBLE)
        elif connects:
            pause = self._settings.again.after(max(1, neighbour.failures), self._context.random.random())
            neighbour.timer = self._clock.callLater(pause, self._connect, neighbour)
            self._enter(neighbour, LinkState.WAITING)
        else:
            self._enter(neighbour, LinkState.EXPECTED)

    def _connects(self, neighbour: Neighbour) -> bool:
        assert self._members is not None
        return self._members.name < neighbour.name if self._settings.by_name else bool(neighbour.member.link)

    # connecting

    def _connect(self, neighbour: Neighbour) -> None:
        neighbour.timer = None
        where = address(neighbour.member.link)
        if self._me is None or where is None:
            neighbour.failures += 1
            self._prepare(neighbour)
            return
        mechanism: Mechanism = Null(False)
        if self._security is not None:
            mechanism = CurveClient(self._security, curve_keys.decode(neighbour.member.key))
        neighbour.attempt = Attempt(self.attempts, neighbour, mechanism)
        self._enter(neighbour, LinkState.CONNECTING)
        self.attempts.connect(neighbour.attempt, *where, CONNECT_WITHIN)

    def _no_mechanism(self) -> Mechanism:
        raise AssertionError("each attempt has its own")

    def failed(self, attempt: Attempt, reason: str) -> None:
        """See `broker.cluster.links.link_wire.Ends`."""
        neighbour: Neighbour = attempt.neighbour
        if neighbour.attempt is attempt:
            neighbour.attempt = None
            neighbour.failures += 1
            neighbour.reason = reason
            self._prepare(neighbour)

    # connections

    def opened(self, peer: LinkPeer) -> None:
        """See `broker.cluster.links.link_wire.Ends`. The connecting side introduces itself."""
        neighbour: Neighbour | None = peer.neighbour
        if neighbour is not None:
            if self._me is None or neighbour.attempt is not peer.attempt or neighbour.peer is not None:
                peer.close()
                return
            neighbour.peer = peer
            neighbour.attempt = None
            neighbour.heard = self._leases.moment()
            peer.factory.send(peer.identity, link_messages.introduction(HELLO, self._introduction(neighbour.member)))

    def received(self, peer: LinkPeer, frames: list[bytes]) -> None:
        """See `broker.cluster.links.link_wire.Ends`."""
        neighbour: Neighbour | None = peer.neighbour
        try:
            if neighbour is None:
                self._take_hello(peer, frames)
            elif neighbour.peer is not peer or neighbour.ending:
                return
            elif neighbour.state is not LinkState.UP:
                self._take_welcome(peer, neighbour, frames)
            else:
                neighbour.heard = self._leases.now
                self._user.received(neighbour, peer, frames)
        except Refusal as refusal:
            if neighbour is not None:
                neighbour.reason = refusal.text
            peer.refuse(refusal)

    def _take_hello(self, peer: LinkPeer, frames: list[bytes]) -> None:
        """Handle the first message of an accepted connection."""
        if len(frames) < 2 or frames[0] != CONTROL or frames[1] != HELLO:
            raise Refusal(Reason.UNEXPECTED, "the first message of a link is HELLO")
        introduced = link_messages.read_introduction(frames)
        neighbour = self.neighbours.get(introduced.name)
        if neighbour is not None and peer.key == neighbour.member.key:
            neighbour.heard = self._leases.moment()
        objection = self._objection(peer, neighbour, introduced)
        if objection or neighbour is None:
            peer.factory.send(peer.identity, link_messages.refused(objection))
            raise Refusal(Reason.NOT_AUTHENTICATED, f"HELLO of {introduced.name[:64]!r}: {objection}")
        # The older connection is dead: its other end opened this one.
        self.end(neighbour, Refusal(Reason.REPLACED, "it has connected again"))
        neighbour.peer, peer.neighbour = peer, neighbour
        peer.factory.send(peer.identity, link_messages.introduction(WELCOME, self._introduction(neighbour.member)))
        self._open(peer, neighbour)

    def _objection(self, peer: LinkPeer, neighbour: Neighbour | None, said: Introduction) -> str:
        """Return the reason to refuse a connection; empty if there is none."""
        if self._me is None or self._stopping:
            return "this broker is no member"
        assert self._members is not None
        if neighbour is None or self._members.member(neighbour.name) is None:
            # A link that outlives the membership of its neighbour is there until its connection ends.
            return "no member has that name"
        member = neighbour.member
        if peer.key != member.key:
            return "the key is that of another member"
        if said.instance != member.instance:
            return "the instance is not the one that the cluster knows"
        if (said.peer, said.peer_instance) != (self._me.name, self._me.instance):
            return "this is another broker, or another instance of it"
        if self._connects(neighbour):
            return "the member with the lower name connects" if self._settings.by_name else "both sides connect"
        return ""

    def _take_welcome(self, peer: LinkPeer, neighbour: Neighbour, frames: list[bytes]) -> None:
        """Handle the answer to HELLO."""
        word = frames[1] if len(frames) > 1 and frames[0] == CONTROL else b""
        if word == REFUSED:
            raise Refusal(Reason.NOT_AUTHENTICATED, f"{neighbour.name} refused: {link_messages.read_refused(frames)!r}")
        if word != WELCOME:
            raise Refusal(Reason.UNEXPECTED, "the answer to HELLO is WELCOME or REFUSED")
        said = link_messages.read_introduction(frames)
        if (said.name, said.instance) != (neighbour.name, neighbour.member.instance):
            raise Refusal(Reason.NOT_AUTHENTICATED, f"the endpoint of {neighbour.name} belongs to another broker")
        self._open(peer, neighbour)

    def _introduction(self, member: Member) -> Introduction:
        assert self._me is not None
        return Introduction(self._me.name, self._me.instance, member.name, member.instance)

    # links

    def _open(self, peer: LinkPeer, neighbour: Neighbour) -> None:
        """Begin the link: both sides have introduced themselves."""
        peer.introduced()
        neighbour.heard = self._leases.moment()
        neighbour.lease = self._leases.hold(neighbour, neighbour.heard + SILENCE + neighbour.slack)
        neighbour.ending = False
        neighbour.reason = ""
        neighbour.rtt = None
        neighbour.asked = b""
        self._enter(neighbour, LinkState.UP)
        self.open[neighbour.name] = neighbour
        self.log.info("the link to {name} at {where} is open", name=neighbour.name, where=peer.address)
        self._user.up(neighbour)

    def gone(self, peer: LinkPeer) -> None:
        """See `broker.cluster.links.link_wire.Ends`."""
        neighbour: Neighbour | None = peer.neighbour
        if neighbour is None or neighbour.peer is not peer:
            if neighbour is not None and peer.attempt is not None and neighbour.attempt is peer.attempt:
                self._lost_attempt(neighbour)
            return
        neighbour.peer = None
        neighbour.ending = False
        if neighbour.lease is not None:
            neighbour.lease.cancel()
            neighbour.lease = None
        if neighbour.state is not LinkState.UP:
            neighbour.failures += 1
            self._prepare(neighbour)
            return
        now = self._clock.seconds()
        neighbour.failures = 1 if now - neighbour.since >= STEADY else neighbour.failures + 1
        del self.open[neighbour.name]
        why = neighbour.reason = neighbour.reason or "the neighbour closed the connection, or it was lost"
        if not self._stopping:
            self.log.info("the link to {name} has ended: {why}", name=neighbour.name, why=why)
        # The state that `_prepare` does not set for a member that is gone.
        self._enter(neighbour, LinkState.EXPECTED)
        assert self._members is not None
        if self._members.member(neighbour.name) is None and self.neighbours.get(neighbour.name) is neighbour:
            del self.neighbours[neighbour.name]
            neighbour.cancel()
        self._prepare(neighbour)
        self._user.down(neighbour)

    def _lost_attempt(self, neighbour: Neighbour) -> None:
        """Handle the end of a connection in its handshake."""
        neighbour.attempt = None
        neighbour.failures += 1
        neighbour.reason = "the handshake failed: no broker is there, or a key does not fit (its log may say why)"
        self._prepare(neighbour)

    def end(self, neighbour: Neighbour, refusal: Refusal) -> None:
        """Reset the connection of a link, if there is one. `gone` is called before this returns."""
        peer = neighbour.peer
        if peer is not None:
            neighbour.reason = refusal.text
            peer.refuse(refusal)
            peer.abort()

    def _silent(self, neighbour: Neighbour) -> None:
        self.end(neighbour, Refusal(Reason.SILENT, f"{neighbour.name} is silent for {SILENCE:g} s"))

    def _enter(self, neighbour: Neighbour, state: LinkState) -> None:
        neighbour.enter(state, self._clock.seconds())
