"""Values that the configuration is translated to: settings of the flows, rules of queues."""

from __future__ import annotations

import math

from broker.core.queues.queue_messages import MAX_BYTES, Death, QueueRule, QueueSettings
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.sessions.settings import MtlSettings


def mtl_settings(config: Mtl) -> MtlSettings:
    return MtlSettings(
        heartbeat=config.heartbeat,
        lease_ttl=config.lease,
        window=config.window,
        window_bytes=config.window_bytes,
        sessions=config.sessions,
        flows=config.flows,
        bridge=config.hosts[0],
        max_message=config.max_message,
        endpoint=config.data_endpoint,
        plain=config.plain,
    )


def queue_rules(config: Mtl) -> list[QueueRule]:
    return [
        QueueRule(
            each.queues,
            QueueSettings(
                durable=each.durable,
                max_messages=each.messages,
                max_bytes=MAX_BYTES if each.size is None else each.size,
                by_address=each.size is None,
                max_deliveries=each.deliveries,
                dead_letters=frozenset(map(Death, each.dead_letters)),
                ttl=each.ttl or None,
                expires=each.expires or math.inf,
                single=each.single,
                duplicates=each.duplicates,
            ),
        )
        for each in config.queues
    ]
