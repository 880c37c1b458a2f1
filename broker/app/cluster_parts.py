"""The membership of this broker in a cluster: it makes the parts of `broker.cluster`, starts and stops them.

Imported only where the configuration has a cluster: a single broker needs none of this, nor what it imports.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import CancelledError, inlineCallbacks
from twisted.internet.defer import TimeoutError as Timeout
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from broker.access.identity import is_local, joined
from broker.app.cluster_health import COUNTERS as OF_HEALTH
from broker.app.cluster_health import ClusterHealth
from broker.app.core_parts import Core
from broker.app.embedded_etcd import EmbeddedEtcd
from broker.app.process import version
from broker.cluster.cluster import Cluster
from broker.cluster.etcd.etcd_client import EtcdClient, connect
from broker.cluster.etcd.etcd_credentials import TlsFiles
from broker.cluster.links.link_messages import LinkSettings
from broker.cluster.links.link_wire import KEY_FILE, kept_key
from broker.cluster.links.links import LinkContext, Links, links_view
from broker.cluster.membership import StoredMemory
from broker.cluster.settings import COUNTERS as OF_CLUSTER
from broker.cluster.settings import ClusterFailed, ClusterSettings, Environment
from broker.config import endpoint
from broker.config.cluster_settings import Cluster as Config
from broker.config.key_checks import hostport
from broker.core.cluster.cluster_interfaces import ILinks, IMembers, IQueueOwners
from broker.core.cluster.remote_topics import SHARED, RemoteTopics
from broker.core.interfaces import ITopics
from broker.core.model import Listening, NotReady, Snapshot
from broker.core.place_table import Pool
from broker.core.store import Store
from broker.net.refusal_log import Counters
from broker.net.sdnotify import SystemdNotifier
from broker.wires.interface import ClusterParts
from broker.wires.tables import AnyView

# Endpoints of listeners as other machines reach them: a member of a cluster publishes them.


def endpoints(states: Iterable[Listening], advertise: str | None, host: str) -> Mapping[str, str]:
    """Return the endpoints of the open listeners by their titles: ``tcp://HOST:PORT``.

    ``advertise`` is the host under which this machine is reached, None if the configuration has none; ``host`` is the
    machine's name. Listeners on all addresses of the machine get one of these two. Listeners without a TCP address
    are omitted, as are those on loopback if ``advertise`` is another host.
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


COUNTERS = (*OF_CLUSTER, *OF_HEALTH)
"""Documentation of the counters that only a member has."""

LINK_ROOM = 256
"""Limit of connections of links: one for each other broker, and those that are being replaced."""

REPORT = 5.0
"""Seconds between two reports to the service manager while this broker waits for its cluster."""

MORE_TIME = 4 * REPORT
"""Seconds that the service manager is asked for with each report: it ends a start that takes too long."""

STOP = 5.0
"""Limit in seconds for leaving the cluster at the stop: etcd may be away then."""


class Membership:
    """The membership. ``failed`` is called with a sentence if this broker cannot join, or may not stay: it must stop.

    ``config`` is the section of the configuration, ``state`` the state directory. ``core`` is complete but for the
    cluster; ``store`` keeps the state of which ``known`` is the snapshot. Raises CannotListen or OSError if links
    cannot be opened, ValueError for unusable TLS files.
    """

    log = Logger()

    def __init__(
        self,
        config: Config,
        state: str,
        core: Core,
        store: Store,
        known: Snapshot,
        counters: Counters,
        reactor: Any,
        notifier: SystemdNotifier,
        failed: Callable[[str], object],
    ) -> None:
        self._config = config
        self._reactor = reactor
        self._notifier = notifier
        self._failed = failed
        self._host = socket.gethostname()
        self.name = config.effective_name(self._host)
        self._memory = StoredMemory(store, known.cluster, config.farm, self.name, reactor, core.in_thread)
        tls = TlsFiles(config.ca, config.certificate, config.key, config.passphrase_file)
        self._etcd = connect(
            reactor,
            core.files.run,
            config.urls,
            tls,
            config.user or "",
            config.password or "",
            turns=core.turns,
        )
        self._links = Links(
            LinkSettings(endpoint.parse_zmq(config.link), kept_key(os.path.join(state, KEY_FILE)).secret),
            LinkContext(Pool(LINK_ROOM), core.scheduler, core.refusal_log, reactor, core.leases),
        )
        self._embedded = (
            EmbeddedEtcd(config, state, reactor, core.programs, core.in_thread) if config.embedded else None
        )

        def ask(url: str) -> EtcdClient:
            """Return a client of one member of etcd."""
            secure = tls if url.startswith("https:") else None
            return connect(reactor, core.files.run, (url,), secure, config.user or "", config.password or "")

        self.listens = self._links.bind()
        """The address of the listener of links."""
        settings = ClusterSettings(
            name=self.name,
            farm=config.farm,
            ttl=config.ttl,
            link=self._endpoint(self.listens),
            key=self._links.public_key,
            version=version(),
            adopts=config.adopts or "",
        )
        environment = Environment(
            self._etcd, core.registry, reactor, self._memory, settings, random.SystemRandom(), core.turns
        )
        self._cluster = Cluster(environment, self._fenced)
        self._cluster.follow_links(self._links.brokers, self._links.alive)
        expected = [each.name for each in config.etcd_members]
        self._health = ClusterHealth(reactor, self._cluster, config.urls, expected, ask, self._links.neighbours)
        counters.include(self._health.counts)
        counters.include(self._cluster.counts)
        counters.include(self._links.counts)
        self._topics = RemoteTopics(self._links, reactor, core.turns)
        self._topics.join(SHARED, core.topics)
        counters.include(self._topics.counts)
        self._reporting = LoopingCall(self._report)
        self._reporting.clock = reactor
        self._reported = ""

    @property
    def members(self) -> IMembers:
        """The members of the cluster."""
        return self._cluster

    @property
    def owners(self) -> IQueueOwners:
        """The owners of durable queues."""
        return self._cluster

    @property
    def links(self) -> ILinks:
        """The links to the other brokers."""
        return self._links

    def views(self) -> Sequence[AnyView]:
        """Return the tables that only a member has."""
        return [links_view(self._links), self._health.view()]

    def join_topics(self, space: str, topics: ITopics) -> None:
        """Connect the topics of a virtual host with those of the other brokers."""
        self._topics.join(space.encode(), topics)

    def of_wires(self) -> ClusterParts:
        """Return the parts of the cluster that wires use."""
        return ClusterParts(self.members, self.owners, self.links, self._reached, self.join_topics)

    def _reached(self, address: str) -> str | None:
        """Return the address under which other machines reach a listener; a name was configured for that."""
        place = hostport(address)
        if place is None or (not isIPAddress(place[0]) and not isIPv6Address(place[0])):
            return address
        return self._endpoint(address) or None

    def next_id(self) -> int:
        """Return the id of the next provider; see `Cluster.next_id`."""
        return self._cluster.next_id()

    @inlineCallbacks
    def join(self) -> Any:
        """Join the cluster. Fires with True once that is done, with False if it failed (see ``failed``), or if `stop`
        came first.

        Until then the log and the status of the service manager have the reason for the wait.
        """
        self.log.info(
            "cluster: {name} joins the farm {farm} at {etcd}",
            name=self.name,
            farm=self._config.farm,
            etcd=", ".join(self._config.urls),
        )
        self._reporting.start(REPORT, now=False)
        try:
            if self._embedded is not None:
                yield self._embedded.start()
            yield self._cluster.start()
        except CancelledError:
            return False
        except ClusterFailed as error:
            self._fenced(error)
            return False
        finally:
            self._reporting.stop()
        self.log.info(
            "cluster: joined; members: {names}", names=", ".join(each.name for each in self.members.members())
        )
        return True

    def open_links(self) -> None:
        """Open the links to the other brokers, once all channels have their receivers."""
        self._links.start(self._cluster)
        self._health.start()

    def describe(self, states: Iterable[Listening], draining: bool) -> None:
        """Publish the endpoints of the open listeners, and that this broker drains."""
        self._cluster.describe(endpoints(states, self._config.reached_at, self._host), draining)

    def obstacles(self) -> Iterable[NotReady]:
        """Return the reasons for which this broker is not ready."""
        return self._cluster.obstacles()

    def degradations(self) -> Iterable[NotReady]:
        """Yield the reasons for which this broker is degraded."""
        yield from self._cluster.degradations()
        if self._embedded is not None:
            yield from self._embedded.degradations()
        yield from self._health.degradations()
        if self._memory.trouble:
            yield NotReady("cluster memory", self._memory.trouble)

    @inlineCallbacks
    def stop(self) -> Any:
        """Leave the cluster, within `STOP` seconds. Fires when that is done.

        The entries of providers stay until the TTL, so that finds do not miss them before they come back here or to
        another broker. A broker without any leaves at once.
        """
        try:
            yield self._cluster.stop(self._cluster.has_entries()).addTimeout(STOP, self._reactor)
        except Timeout:
            self.log.warn("cluster: etcd did not answer in time; the entries of this broker go after the TTL")
        except Exception:
            self.log.failure("cluster: the end of the membership failed")
        self._topics.stop()
        yield self._links.stop()
        yield self._memory.stop()
        yield self._health.stop()
        yield self._etcd.close()
        if self._embedded is not None:
            yield self._embedded.stop()

    def abandon(self) -> None:
        """Release the listener of links without the reactor: the start failed."""
        self._links.unbind()

    def _endpoint(self, where: str) -> str:
        """Return the endpoint of links for other brokers, empty if they cannot reach it."""
        place = hostport(where)
        host = None if place is None else reachable(place[0], self._config.reached_at, self._host)
        return "" if place is None or host is None else joined(host, place[1])

    def _fenced(self, error: ClusterFailed) -> None:
        self._failed(f"elkobroker ends: {error}")

    def _report(self) -> None:
        why = "; ".join(each.reason for each in self._cluster.degradations()) or "etcd has not answered yet"
        text = f"joining the cluster: {why}"
        self._notifier.waiting(text, MORE_TIME)
        if text != self._reported:
            self._reported = text
            self.log.warn("cluster: the listeners open once this broker has joined: {why}", why=why)
