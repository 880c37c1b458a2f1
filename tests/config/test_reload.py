"""Which keys changed, and which of them need a restart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from broker.app.configuration import Config, changes, merged, refused
from broker.config.bridge_settings import Bridges, BridgeTo
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
from broker.config.journal_settings import FullLoad, Journal
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.elko.elko_settings import BrokerLimits, BrokerListener, Elko, ElkoListener
from broker.wires.mc0.mc0_settings import Mc0

OLD = Config(
    bridges=Bridges(to=(BridgeTo("east", "k" * 40),)),
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
        elif field.name in ("listeners", "table", "levels", "to") or (
            field.name == "rules" and isinstance(old, Notify)
        ):
            (item,) = value
            inner = [(f"{field.name}[{item.name}].{key}", (changed,)) for key, changed in each_changed(item)]
        elif field.name == "name" and isinstance(old, BridgeTo | ElkoListener | LauncherEntry | LogLevel | NotifyRule):
            continue
        else:
            inner = [(field.name, other(value))]
        yield from ((key, attrs.evolve(old, **{field.name: changed})) for key, changed in inner)


def test_a_change_of_each_key_is_named_and_refused_at_most_by_itself() -> None:
    """Which keys a reload applies is declared with each; docs/configuration.md lists it."""
    all_keys = dict(each_changed(OLD))
    assert {"broker.grace", "mtl.plain", "notify.rules[pager].url", "director.listeners[main].limits.watches"} <= set(
        all_keys
    )
    restart = [key for key in all_keys if key.startswith("cluster.")]
    for key, new in all_keys.items():
        assert changes(OLD, new) == [key]
        assert refused(OLD, new) in ([], [key])
        assert key not in restart or refused(OLD, new)


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
