"""A factory over TLS, with a scheduler and refusal_log of its own."""

from __future__ import annotations

from typing import Any

from twisted.internet.protocol import Factory

from broker.net.refusal_log import Counters, RefusalLog
from broker.net.scheduler import Scheduler
from broker.net.tls import Certificates, TlsFactory


def over_tls(reactor: Any, factory: Factory, certificates: Certificates) -> Any:
    """The same factory, spoken to over TLS."""
    return TlsFactory(factory, certificates, Scheduler(reactor), RefusalLog(Counters(), reactor))
