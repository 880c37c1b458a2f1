"""Which keys changed, and which of them need a restart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from broker.app.configuration import Config, changes, merged, refused
from broker.config.checks_settings import FullLoad, Journal
from broker.config.cluster_settings import Cluster
from broker.config.daemon_settings import (
    Access,
    Broker,
    Console,
    LauncherEntry,
    Launchers,
    Log,
    LogLevel,
    Notify,
    NotifyRule,
)
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.elko.elko_settings import BrokerLimits, BrokerListener, Elko, ElkoListener
from broker.wires.mc0.mc0_settings import Mc0

NOW = {
    "broker.version",
    "broker.diagnostics",
    "broker.grace",
    "broker.memory",
    "broker.services",
    "broker.memory_per_address",
    "broker.trusted_proxies",
    "log.level",
    "broker.service",
    "log.format",
    "director.service",
    "log.file_bytes",
    "log.files",
    "journal.segment_bytes",
    "journal.segment_seconds",
    "mtl.plain",
    "mtl.heartbeat",
    "elko.listeners[main].origins",
    "elko.listeners[main].publish",
    "elko.listeners[main].label",
    "director.listeners[main].origins",
    "director.listeners[main].publish",
    "director.listeners[main].label",
    "mc0.handshake",
    "mc0.high_water",
    "mc0.max_message",
    "dbp.handshake",
    "dbp.high_water",
    "dbp.max_message",
    "mtl.handshake",
    "mtl.high_water",
    "mtl.max_message",
    "log.levels[mtl].level",
    "notify.settle",
    "notify.rules[pager].events",
    "notify.rules[pager].pattern",
    "notify.rules[pager].url",
    "notify.rules[pager].secret",
    "notify.rules[pager].secret_file",
    "notify.rules[pager].command",
    "notify.rules[pager].timeout",
    "notify.rules[pager].attempts",
    "notify.rules[pager].per_minute",
    "elko.listeners[main].allow",
    "elko.listeners[main].allow_before_auth",
    "elko.listeners[main].limits.connections",
    "elko.listeners[main].limits.connections_per_address",
    "elko.listeners[main].limits.rate",
    "elko.listeners[main].limits.burst",
    "elko.listeners[main].limits.authenticate_within",
    "elko.listeners[main].limits.write_buffer",
    "elko.listeners[main].limits.stalled_after",
    "elko.listeners[main].limits.http_timeout",
    "elko.listeners[main].limits.http_select_wait",
    "elko.listeners[main].limits.rtcp_timeout",
    "elko.listeners[main].limits.rtcp_disconnected",
    "elko.listeners[main].limits.rtcp_backlog",
    "elko.listeners[main].limits.waits",
    "elko.listeners[main].limits.services",
    "director.providers",
    "director.load_bump",
    "director.reservation",
    "director.user_reservations",
    "director.listeners[main].allow",
    "director.listeners[main].allow_before_auth",
    "director.listeners[main].limits.connections",
    "director.listeners[main].limits.connections_per_address",
    "director.listeners[main].limits.rate",
    "director.listeners[main].limits.burst",
    "director.listeners[main].limits.authenticate_within",
    "director.listeners[main].limits.write_buffer",
    "director.listeners[main].limits.stalled_after",
    "director.listeners[main].limits.http_timeout",
    "director.listeners[main].limits.http_select_wait",
    "director.listeners[main].limits.rtcp_timeout",
    "director.listeners[main].limits.rtcp_disconnected",
    "director.listeners[main].limits.rtcp_backlog",
    "director.listeners[main].limits.watches",
    "director.listeners[main].limits.reservations",
    "mc0.stalled_after",
    "mc0.connections",
    "mc0.connections_per_address",
    "mc0.sessions",
    "mc0.subscriptions",
    "dbp.check_address",
    "dbp.interval",
    "dbp.least_interval",
    "dbp.most_interval",
    "dbp.liveness",
    "dbp.fall_back",
    "dbp.probe",
    "dbp.stalled_after",
    "dbp.connections",
    "dbp.connections_per_address",
    "dbp.services",
    "dns.domain",
    "dns.ttl",
    "dns.response_rate",
    "dns.response_burst",
    "dns.limit_loopback",
    "dns.connections",
    "dns.connections_per_address",
    "dns.idle",
    "http.hosts",
    "http.services",
    "http.services_per_user",
    "http.connections",
    "http.connections_per_address",
    "http.rate",
    "http.waiting",
    "http.waiting_per_address",
    "http.max_body",
    "mtl.stalled_after",
    "mtl.connections",
    "mtl.connections_per_address",
    "mtl.sessions",
    "mtl.flows",
    "mtl.lease",
    "mtl.window",
    "mtl.window_bytes",
    "mtl.hosts",
    "mtl.queues",
    "access.audit",
    "access.audit_bytes",
    "access.requests_per_address",
    "access.requests_per_user",
    "access.requests_burst",
    "checks.enabled",
    "checks.rules",
    "checks.concurrency",
    "checks.panic",
    "checks.silent_share",
    "checks.networks",
    "plan.file",
    "journal.keep_seconds",
    "journal.keep_bytes",
    "journal.full_load",
    "launchers.start",
    "launchers.table[chat].script",
    "launchers.table[chat].initial",
    "launchers.table[chat].on",
}
AT_RESTART = {
    "access.file",
    "broker.state",
    "broker.strict_listeners",
    "elko.listeners[main].endpoint",
    "elko.listeners[main].transport",
    "elko.listeners[main].path",
    "director.enabled",
    "director.listeners[main].endpoint",
    "director.listeners[main].transport",
    "director.listeners[main].path",
    "mc0.enabled",
    "mc0.endpoint",
    "mc0.secret_key",
    "mc0.secret_key_file",
    "dbp.enabled",
    "dbp.endpoint",
    "dbp.udp_port",
    "dbp.beacon",
    "dbp.beacon_port",
    "dns.enabled",
    "dns.endpoint",
    "http.enabled",
    "http.endpoint",
    "mtl.enabled",
    "mtl.endpoint",
    "mtl.data_port",
    "mtl.queue_store",
    "mtl.queue_store_password",
    "mtl.queue_store_password_file",
    "mtl.data_endpoint",
    "mtl.secret_key",
    "mtl.secret_key_file",
    "journal.enabled",
    "journal.directory",
    "journal.name",
    "console.enabled",
    "console.endpoint",
    *(f"cluster.{field.name}" for field in attrs.fields(Cluster)),
}

OLD = Config(
    log=Log(levels=(LogLevel("mtl", "info"),)),
    notify=Notify(rules=(NotifyRule("pager", url="http://h/"),)),
    launchers=Launchers(table=(LauncherEntry("chat", "chat"),)),
)


def other(value: Any) -> Any:
    """A value that is not this one."""
    return not value if isinstance(value, bool) else (value, "other")


def each_changed(old: Any) -> Iterator[tuple[str, Any]]:
    """Copies of ``old`` with one key changed, for every key but the names that listeners and launchers go by."""
    for field in attrs.fields(type(old)):
        value = getattr(old, field.name)
        if attrs.has(type(value)):
            inner = [(f"{field.name}.{key}", changed) for key, changed in each_changed(value)]
        elif field.name in ("listeners", "table", "levels") or (field.name == "rules" and isinstance(old, Notify)):
            (item,) = value
            inner = [(f"{field.name}[{item.name}].{key}", (changed,)) for key, changed in each_changed(item)]
        elif field.name == "name" and isinstance(old, ElkoListener | LauncherEntry | LogLevel | NotifyRule):
            continue
        else:
            inner = [(field.name, other(value))]
        yield from ((key, attrs.evolve(old, **{field.name: changed})) for key, changed in inner)


def test_each_key_is_known_to_be_reloadable_or_not() -> None:
    all_keys = dict(each_changed(OLD))
    assert all_keys.keys() == NOW | AT_RESTART
    for key, new in all_keys.items():
        assert changes(OLD, new) == [key]
        assert refused(OLD, new) == ([key] if key in AT_RESTART else [])


@pytest.mark.parametrize(("before", "after", "restart"), [("/a", "/b", False), (None, "/b", True), ("/a", None, True)])
def test_a_users_file_is_replaced_by_another_one_only(before: str | None, after: str | None, restart: bool) -> None:
    old, new = Config(access=Access(file=before)), Config(access=Access(file=after, audit="/audit"))
    assert changes(old, new) == ["access.file", "access.audit"]
    assert refused(old, new) == (["access.file"] if restart else [])
    assert merged(old, new).access == Access(file=before if restart else after, audit="/audit")


def test_nothing_changed() -> None:
    assert changes(OLD, OLD) == refused(OLD, attrs.evolve(OLD)) == []


A, B, C = BrokerListener("a"), BrokerListener("b", "unix:/b"), BrokerListener("c", "unix:/c")


@pytest.mark.parametrize(
    ("old", "new", "keys"),
    [
        ((A, B), (B, A), []),
        ((A,), (A, B), ["elko.listeners[b]"]),
        ((A, B), (B,), ["elko.listeners[a]"]),
        ((A, B), (C, A), ["elko.listeners[b]", "elko.listeners[c]"]),
        ((A,), (), ["elko.listeners[a]"]),
    ],
)
def test_listeners_are_compared_by_name(
    old: tuple[BrokerListener, ...], new: tuple[BrokerListener, ...], keys: list[str]
) -> None:
    assert changes(Config(elko=Elko(old)), Config(elko=Elko(new))) == keys
    assert refused(Config(elko=Elko(old)), Config(elko=Elko(new))) == keys


def test_launchers_are_compared_by_name_and_may_come_and_go() -> None:
    one, two, three = (LauncherEntry(name, name) for name in ("one", "odd]\n.name", "three"))
    old = Config(launchers=Launchers(table=(one, two)))
    new = Config(launchers=Launchers(table=(attrs.evolve(two, on=True), three)))
    assert changes(old, new) == [
        "launchers.table[one]",
        "launchers.table[odd]\n.name].on",
        "launchers.table[three]",
    ]
    assert refused(old, new) == []


def test_full_loads_are_compared_as_a_whole_since_their_order_counts() -> None:
    one, two = FullLoad(("a",), 1.0), FullLoad(("b",), 2.0)
    old, new = Config(journal=Journal(full_load=(one, two))), Config(journal=Journal(full_load=(two, one)))
    assert changes(old, new) == ["journal.full_load"]
    assert refused(old, new) == []


def test_several_changes_are_listed_in_order_and_only_some_refused() -> None:
    new = Config(
        broker=Broker(grace=1.0, service="x"),
        log=Log(level="debug"),
        elko=Elko((BrokerListener(endpoint="tcp:1:interface=127.0.0.1", limits=BrokerLimits(waits=1)),)),
        mc0=Mc0(enabled=False, sessions=5),
        dbp=Dbp(beacon=(), probe=5.0),
        journal=Journal(name="east", keep_bytes=10**9),
        console=Console(enabled=False),
    )
    assert changes(Config(), new) == [
        "broker.service",
        "broker.grace",
        "log.level",
        "elko.listeners[main].endpoint",
        "elko.listeners[main].limits.waits",
        "mc0.enabled",
        "mc0.sessions",
        "dbp.beacon",
        "dbp.probe",
        "journal.name",
        "journal.keep_bytes",
        "console.enabled",
    ]
    assert refused(Config(), new) == [
        "elko.listeners[main].endpoint",
        "mc0.enabled",
        "dbp.beacon",
        "journal.name",
        "console.enabled",
    ]
