"""What runs behind every wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.python.threadpool import ThreadPool

from broker.core.launchers import Launchers
from broker.core.liveness import Leases
from broker.core.recorder import Recorder
from broker.core.registry import Registry
from broker.core.restored_services import Restored
from broker.core.topics import Topics
from broker.net.child_processes import Programs
from broker.net.rate_limits import Complaints
from broker.net.scheduler import Turns
from broker.wires.elko.sessions.broker import Wiring


@attrs.frozen
class Parts:
    """All that runs."""

    registry: Registry
    restored: Restored
    recorder: Recorder
    launchers: Launchers
    programs: Programs
    threads: ThreadPool
    wiring: Wiring
    topics: Topics
    leases: Leases
    turns: Turns
    complaints: Complaints
    in_thread: Callable[..., Deferred[Any]]
