"""The notifications, as a service manager's socket gets them."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from zope.interface import implementer

from broker.net.sdnotify import SystemdNotifier


class ServiceManager:
    """A bound datagram socket, and what has come in."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        # A local datagram is there as soon as it has been sent.
        self._socket.setblocking(False)

    def heard(self) -> list[str]:
        messages = []
        while True:
            try:
                messages.append(self._socket.recv(65_536).decode())
            except BlockingIOError:
                return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "notify")


@pytest.fixture
def manager(path: str) -> Iterator[ServiceManager]:
    manager = ServiceManager(path)
    yield manager
    manager.close()


@pytest.fixture
def logged() -> Iterator[list[LogEvent]]:
    events: list[LogEvent] = []

    @implementer(ILogObserver)
    def keep(event: LogEvent) -> None:
        events.append(event)

    globalLogPublisher.addObserver(keep)
    yield events
    globalLogPublisher.removeObserver(keep)


@pytest.mark.parametrize(
    ("tell", "message"),
    [
        (SystemdNotifier.ready, "READY=1"),
        (SystemdNotifier.stopping, "STOPPING=1"),
        (SystemdNotifier.watchdog, "WATCHDOG=1"),
        (lambda notifier: notifier.status("7 providers"), "STATUS=7 providers"),
        (lambda notifier: notifier.status("söben"), "STATUS=söben"),
    ],
)
def test_each_notification_is_one_datagram(
    manager: ServiceManager, path: str, tell: Callable[[SystemdNotifier], None], message: str
) -> None:
    tell(SystemdNotifier({"NOTIFY_SOCKET": path}))
    assert manager.heard() == [message]


def test_a_status_cannot_carry_another_notification(manager: ServiceManager, path: str) -> None:
    SystemdNotifier({"NOTIFY_SOCKET": path}).status("one\nSTOPPING=1\r\ntwo")
    assert manager.heard() == ["STATUS=one STOPPING=1 two"]


def test_a_reload_says_when_it_began(manager: ServiceManager, path: str) -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
    SystemdNotifier({"NOTIFY_SOCKET": path}).reloading()
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
    [message] = manager.heard()
    flag, when = message.split("\n")
    assert flag == "RELOADING=1"
    name, microseconds = when.split("=")
    assert name == "MONOTONIC_USEC"
    assert before <= int(microseconds) <= after


def test_an_abstract_socket_is_reached() -> None:
    name = f"elkobroker-test-{secrets.token_hex(8)}"
    manager = ServiceManager(f"\0{name}")
    SystemdNotifier({"NOTIFY_SOCKET": f"@{name}"}).ready()
    assert manager.heard() == ["READY=1"]
    manager.close()


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}])
def test_without_a_service_manager_nothing_happens(environ: dict[str, str], logged: list[LogEvent]) -> None:
    notifier = SystemdNotifier(environ)
    clock = Clock()
    notifier.start(clock)
    notifier.reloading()
    notifier.status("well")
    notifier.stopping()
    assert clock.getDelayedCalls() == []
    assert logged == []


def test_a_socket_that_is_gone_is_logged_once(path: str, logged: list[LogEvent]) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": path})
    notifier.ready()
    notifier.stopping()
    [event] = logged
    assert event["log_level"].name == "warn"
    assert event["path"] == path
    assert "No such file" in event["why"]


def test_a_service_manager_that_does_not_read_is_not_waited_for(
    manager: ServiceManager, path: str, logged: list[LogEvent]
) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": path})
    sent = 20_000  # more than any kernel's queue of datagrams takes
    for _ in range(sent):
        notifier.watchdog()
    assert 0 < len(manager.heard()) < sent
    assert len(logged) == 1
    notifier.ready()
    assert manager.heard() == ["READY=1"]


def test_the_watchdog_is_fed_at_half_its_interval_while_the_clock_turns(manager: ServiceManager, path: str) -> None:
    clock = Clock()
    notifier = SystemdNotifier(
        {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())},
    )
    assert notifier.watchdog_interval() == 15.0
    notifier.start(clock)
    assert manager.heard() == ["READY=1", "WATCHDOG=1"]
    clock.advance(14.9)
    assert manager.heard() == []
    clock.advance(0.2)
    assert manager.heard() == ["WATCHDOG=1"]
    notifier.stopping()
    clock.advance(15)
    assert manager.heard() == ["STOPPING=1", "WATCHDOG=1"]
    notifier.stop()
    clock.advance(60)
    assert manager.heard() == []
    assert clock.getDelayedCalls() == []


def test_the_watchdog_is_fed_again_after_a_socket_that_was_gone(path: str) -> None:
    clock = Clock()
    notifier = SystemdNotifier({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "2000000"})
    notifier.start(clock)
    manager = ServiceManager(path)
    clock.advance(1)
    assert manager.heard() == ["WATCHDOG=1"]
    manager.close()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": ""},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getppid())},
    ],
)
def test_who_is_not_watched_feeds_no_watchdog(manager: ServiceManager, path: str, environ: dict[str, str]) -> None:
    clock = Clock()
    SystemdNotifier({"NOTIFY_SOCKET": path, **environ}).start(clock)
    clock.advance(60)
    assert manager.heard() == ["READY=1"]
