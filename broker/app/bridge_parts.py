"""The bridges of this broker to other sites: made from the configuration, opened and closed.

Imported only where the configuration has bridges.
"""

from __future__ import annotations

from typing import Any

from broker.access.principal import Access
from broker.app.core_parts import Core
from broker.bridge.bridges import COUNTERS as OF_BRIDGES
from broker.bridge.bridges import LISTENER, Bridges
from broker.cluster.links.link_messages import LinkSettings, link_counters
from broker.cluster.links.links import LinkContext, Links
from broker.config.bridge_settings import Bridges as Config
from broker.core.place_table import Pool
from broker.net.listeners import ListenerRetries
from broker.net.refusal_log import Counters

WIRE = "bridge_links"
"""Name of the links in counters and logs."""

ROOM = 256
"""Limit of connections: one for each bridge, and those that are being replaced."""

COUNTERS = (*OF_BRIDGES, *link_counters(WIRE))
"""Documentation of the counters that only a broker with bridges has."""


def make_bridges(
    config: Config, core: Core, access: Access, counters: Counters, retries: ListenerRetries, reactor: Any
) -> Bridges:
    """Make the bridges, and have ``retries`` open their listener. Raises OSError if CURVE is not available."""
    context = LinkContext(Pool(ROOM), core.scheduler, core.refusal_log, reactor, core.leases)
    links = Links(LinkSettings(config.place, config.secret_key, wire=WIRE, by_name=False), context)
    clustered = core.cluster.members.clustered
    bridges = Bridges(config, links, core.registry, core.topics, access, reactor, core.turns, clustered)
    if config.place is not None:
        retries.add(LISTENER, config.place.where, links.bind)
    counters.include(links.counts)
    counters.include(bridges.counts)
    return bridges
