"""The documentation of all counters of the daemon: those of the wires, and those of its own parts."""

from __future__ import annotations

from broker.app.wires import WIRES
from broker.wires.common.connection_counters import connection_counters
from broker.wires.counter import Counter, Documentation

DAEMON = (
    *connection_counters("console"),
    Counter("log_dropped", "Lines of the log dropped because its destination did not take them", "lines"),
    Counter("notifications", "Notifications of operators, by what became of them", "notifications"),
    Counter("notifications_waiting", "Notifications of operators that wait", "notifications", gauge=True),
    Counter("console_dropped", "Answers dropped because the operator does not read", "messages"),
    Counter("console_debug", "Lines for the log that were not logged, since there were too many", "lines"),
    Counter("checks", "Targets of health checks now, by state", "targets", gauge=True),
    Counter("checks.running", "Health checks that await their answer", "checks", gauge=True),
    Counter("checks.waiting", "Health checks that are due and wait for a free connection", "checks", gauge=True),
    Counter("check_results", "Health checks, by outcome", "checks"),
    Counter("silent_peers", "Peers that missed signs of life, by what followed", "peers"),
    Counter("silence.doubtful", "Peers that are doubtful, since they have missed signs of life", "peers", gauge=True),
    Counter("checks_refused", "Connections to services that were refused, by the kind of their address", "connections"),
    Counter("access_logins", "Users who were authenticated, by method", "logins"),
    Counter("access_refused", "Passwords and tokens that were refused, by reason", "attempts"),
    Counter("audit", "Lines of the audit log, by what became of them", "lines"),
    Counter("audit.errors", "Writes of the audit log that failed", "errors"),
    Counter("audit.waiting", "Lines of the audit log that wait for the disk", "lines", gauge=True),
    Counter("watch.watchers", "Watchers of events over HTTP", "watchers", gauge=True),
    Counter("watch.sent", "Messages sent to watchers of events", "messages"),
    Counter("watch.resyncs", "Watchers that had to read the lists again, since events were lost", "times"),
    Counter("plan_services", "Services of the capacity plan now, by verdict", "services", gauge=True),
    Counter("plan_readings", "Readings of the capacity plan's file, by outcome", "readings"),
    Counter("state_damaged", "Rows and files of the state that were found damaged", "findings"),
    Counter("registry", "Entries of the registry now, by kind", gauge=True),
    Counter("memory", "Memory that peers hold, by its share of the budget", "bytes", gauge=True),
    Counter("memory_entries", "Entries of the fixed shares of memory, and their bounds", gauge=True),
    Counter("memory_evicted", "Peers disconnected because the memory budget was full, by share", "peers"),
    Counter(
        "memory_full",
        "Messages refused because the memory budget was full: for slow peers, or to be stored",
        "messages",
    ),
    Counter("journal_records", "Records of the metrics journal, by what became of them", "records"),
    Counter("journal_segments", "Segments of the metrics journal, by event", "segments"),
    Counter("journal_errors", "Failures of the journal's disk, by operation", "errors"),
    Counter("journal_clock", "Times that the system clock was set back", "times"),
)
"""The counters of the console, users, the plan, the registry and the journal."""

COUNTERS = Documentation([*DAEMON, *(counter for wire in WIRES for counter in wire.counters)])
"""The documentation of every counter that the daemon has."""
