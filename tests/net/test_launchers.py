"""Launchers: status texts, and switches across starts."""

from __future__ import annotations

import errno
import os
from typing import Literal

import pytest
from zope.interface.verify import verifyObject

from broker.core.interfaces import ILaunchers
from broker.core.model import Launcher
from broker.net.child_processes import Launchers

TABLE = (
    Launcher("context", "java -cp 'a b.jar' Boot conf.listen.host=x:9000"),
    Launcher("gatekeeper", "/opt/gate", on=True),
    Launcher("presence", "presence --verbose", initial=True),
    Launcher("missing", "no-such-program now"),
    Launcher("quoted", "sh -c 'oops"),
    Launcher("empty", "  "),
)


class Machine:
    """Fake process spawner and store of switches. Some programs do not exist."""

    def __init__(self) -> None:
        self.started: list[tuple[str, list[str]]] = []
        self.stored: dict[str, bool] = {}
        self.writes = 0

    def spawn(self, name: str, argv: list[str]) -> None:
        if argv[0].startswith("no-such"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self.started.append((name, argv))

    def remember(self, name: str, on: bool) -> None:
        self.stored[name] = on
        self.writes += 1

    def launchers(self) -> Launchers:
        """Launchers of a broker that starts in this environment."""
        return Launchers(TABLE, self.stored, self.spawn, self.remember)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def on(launchers: Launchers) -> set[str]:
    return {launcher.name for launcher in launchers.describe() if launcher.on}


def test_it_is_what_the_sessions_expect(machine: Machine) -> None:
    assert verifyObject(ILaunchers, machine.launchers())


def test_a_launch_splits_the_script_as_a_shell_does(machine: Machine) -> None:
    assert machine.launchers().launch("context") == "start context"
    assert machine.started == [("context", ["java", "-cp", "a b.jar", "Boot", "conf.listen.host=x:9000"])]


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("unknown", "fail unknown not found"),
        ("missing", "fail missing cannot run no-such-program: No such file or directory"),
        # A script may have secrets.
        ("quoted", "fail quoted cannot split its script: No closing quotation"),
        ("empty", "fail empty its script is empty"),
    ],
)
def test_a_launch_that_fails_says_why(machine: Machine, name: str, status: str) -> None:
    assert machine.launchers().launch(name) == status
    assert machine.started == []


def test_a_launch_switches_on_even_if_it_fails(machine: Machine) -> None:
    launchers = machine.launchers()
    for name in ("context", "missing", "quoted", "empty", "unknown"):
        launchers.launch(name)
    assert on(launchers) == {"context", "missing", "quoted", "empty", "gatekeeper"}
    assert machine.stored == dict.fromkeys(("context", "missing", "quoted", "empty"), True)


def test_a_running_program_can_be_launched_again(machine: Machine) -> None:
    launchers = machine.launchers()
    launchers.launch("gatekeeper")
    assert launchers.launch("gatekeeper") == "start gatekeeper"
    assert len(machine.started) == 2


def test_only_a_switch_that_changes_is_stored(machine: Machine) -> None:
    launchers = machine.launchers()
    launchers.launch("gatekeeper")
    launchers.switch_off("context")
    launchers.switch_off("unknown")
    assert machine.writes == 0
    launchers.switch_off("gatekeeper")
    assert machine.stored == {"gatekeeper": False}
    assert on(launchers) == set()


def test_describe_keeps_the_order_of_the_configuration(machine: Machine) -> None:
    launchers = machine.launchers()
    assert list(launchers.describe()) == list(TABLE)
    launchers.launch("presence")
    assert [x.name for x in launchers.describe()] == [x.name for x in TABLE]
    assert launchers.describe()[2] == Launcher("presence", "presence --verbose", initial=True, on=True)


def test_a_stored_switch_outlives_the_broker_and_beats_the_configuration(machine: Machine) -> None:
    first = machine.launchers()
    first.launch("context")
    first.switch_off("gatekeeper")
    assert on(machine.launchers()) == {"context"}


@pytest.mark.parametrize(
    ("mode", "started"),
    [
        ("initial", ["context", "gatekeeper", "presence"]),
        ("recover", ["context", "gatekeeper"]),
        ("restart", ["context", "gatekeeper"]),
    ],
)
def test_what_starts_with_the_broker(
    machine: Machine, mode: Literal["initial", "recover", "restart"], started: list[str]
) -> None:
    machine.stored["context"] = True
    launchers = machine.launchers()
    launchers.start_all(mode)
    assert [name for name, _ in machine.started] == started
    assert on(launchers) == set(started)


def test_a_program_that_cannot_be_run_does_not_keep_the_others_from_starting(machine: Machine) -> None:
    machine.stored.update(missing=True, quoted=True, presence=True, gatekeeper=False)
    machine.launchers().start_all("restart")
    assert [name for name, _ in machine.started] == ["presence"]


def test_a_reload_keeps_switches(machine: Machine) -> None:
    launchers = machine.launchers()
    launchers.launch("context")
    launchers.switch_off("gatekeeper")
    launchers.replace([Launcher("gatekeeper", "/opt/new-gate", on=True), Launcher("new", "new")])
    assert launchers.launch("context") == "fail context not found"
    assert list(launchers.describe()) == [Launcher("gatekeeper", "/opt/new-gate", on=False), Launcher("new", "new")]
    launchers.replace(TABLE)
    assert on(launchers) == {"context"}
