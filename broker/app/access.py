"""Users and rights of the daemon: the access that all listeners share, and the threads of its password checks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from broker.access.everyone import Everyone
from broker.access.known_logins import FILE as KNOWN
from broker.access.known_logins import KnownLogins
from broker.access.logins import Logins
from broker.access.password_checks import CHECKS
from broker.access.request_limits import RequestLimits
from broker.access.users_access import UsersAccess
from broker.config.daemon_settings import Access as Config
from broker.config.daemon_settings import opens
from broker.core.counters import Counters
from broker.core.limits import Rates
from broker.core.worker import Worker
from broker.operate.audit import FILE, AuditLog

AUDIT_FILES = 10
"""Rotated audit logs that are kept: 160 MiB with the default size."""

log = Logger()


@attrs.frozen(eq=False)
class OpenAccess:
    """The access while the daemon runs."""

    access: Everyone | UsersAccess
    logins: Logins
    audit: AuditLog
    threads: Worker
    known: KnownLogins
    state: str
    """The state directory, which has the audit log by default."""

    def reload(self, config: Config) -> None:
        """Read the users file now, the same or another one. A bad one changes nothing, and is reported as a problem."""
        self.audit.use(_audit_path(config, self.state), config.audit_bytes, AUDIT_FILES)
        self.logins.requests.use(config.requests_per_address, config.requests_per_user, config.requests_burst)
        if isinstance(self.access, UsersAccess) and config.file is not None:
            self.access.use(config.file)

    def stop(self) -> None:
        """Stop watching the file and the threads. Blocks while a password check runs, some 30 ms."""
        if isinstance(self.access, UsersAccess):
            self.access.stop()
        self.known.stop()
        self.threads.stop()


def open_access(
    config: Config,
    state: str,
    read: Callable[..., Deferred[Any]],
    write: Callable[..., Deferred[Any]],
    counters: Counters,
    reactor: Any,
) -> OpenAccess:
    """Read the users file, if there is one. Raises `broker.access.guarded_reading.BadUsers` with nothing left open.

    ``read`` and ``write`` call functions in the threads that read the users file and write the state directory.
    """
    threads = Worker(reactor, "passwords", CHECKS)
    requests = RequestLimits(Rates(reactor.seconds), Rates(reactor.seconds))
    requests.use(config.requests_per_address, config.requests_per_user, config.requests_burst)
    logins = Logins.open(reactor.seconds, threads.run, requests)
    access: Everyone | UsersAccess = Everyone()
    if config.file is not None:
        access = UsersAccess(config.file, reactor, read, logins, counters.count)
        if opens(access.directory):
            log.warn("{path} lets every peer that reaches a listener do everything there", path=config.file)
    known = KnownLogins(os.path.join(state, KNOWN), logins.gate, reactor, write)
    audit = AuditLog(_audit_path(config, state), config.audit_bytes, AUDIT_FILES, reactor, write)
    counters.include(audit.counts)
    # Started last: a thread pool that is left running keeps the process alive.
    threads.start()
    return OpenAccess(access, logins, audit, threads, known, state)


def _audit_path(config: Config, state: str) -> str:
    return os.path.join(state, FILE) if config.audit is None else config.audit
