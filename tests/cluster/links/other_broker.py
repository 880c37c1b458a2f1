"""A broker with links in a process of its own: echoes what it gets on the channel ``tight``.

    python -m tests.cluster.links.other_broker NAME SECRET OTHER-NAME OTHER-LINK OTHER-KEY

It prints its endpoint, and ends with its standard input.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.protocol import Protocol
from twisted.internet.stdio import StandardIO

from broker.cluster.links.link_messages import LinkSettings
from broker.cluster.links.links import LinkContext, Links
from broker.config import endpoint as zmq_endpoint
from broker.core.cluster.cluster_interfaces import Member
from broker.core.liveness import Leases
from broker.core.place_table import Pool
from broker.net.refusal_log import Counters, RefusalLog
from broker.net.scheduler import Scheduler
from tests.cluster.links.rig import QUICK, Members, Table

reactor: Any = _reactor


class Echo:
    def up(self, broker: str) -> None:
        pass

    def down(self, broker: str) -> None:
        pass

    def receive(self, broker: str, frames: Sequence[bytes]) -> None:
        links.send(broker, "tight", frames)


class UntilClosed(Protocol):
    def connectionLost(self, reason: object = None) -> None:
        reactor.stop()


name, secret, other, link, key = sys.argv[1:]
leases = Leases(reactor)
context = LinkContext(Pool(100), Scheduler(reactor, leases.look), RefusalLog(Counters(), reactor), reactor, leases)
links = Links(LinkSettings(zmq_endpoint.parse_zmq("tcp://127.0.0.1:0"), secret, again=QUICK), context)
links.serve("tight", Echo())
where = links.bind()
table = Table()
table.set(name, Member(name, "1", where, links.public_key))
table.set(other, Member(other, "1", link, key))
links.start(Members(name, table))
print(where, flush=True)
StandardIO(UntilClosed())
reactor.run()
