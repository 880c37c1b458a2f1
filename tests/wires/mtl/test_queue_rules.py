"""Queue rules from MTL's configuration."""

import math

from broker.wires.mtl.durable_queues import queue_rules
from broker.wires.mtl.mtl_settings import Mtl, MtlQueue


def test_a_queue_that_never_expires_is_not_one_that_expires_at_once() -> None:
    rules = queue_rules(Mtl(queues=(MtlQueue(expires=0.0), MtlQueue(expires=5.0))))
    assert [rule.settings.expires for rule in rules] == [math.inf, 5.0]


def test_a_message_without_a_limit_of_its_own_may_wait_for_ever() -> None:
    rules = queue_rules(Mtl(queues=(MtlQueue(ttl=0.0), MtlQueue(ttl=5.0))))
    assert [rule.settings.ttl for rule in rules] == [None, 5.0]
