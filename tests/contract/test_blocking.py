"""A reactor that nothing blocks: while the log, a file or a disk does not answer, every wire does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.blocking_guard import UNANSWERED
from tests.contract.newcomers import DOORS
from tests.integration.configurations import every_listener
from tests.integration.daemon import Daemon
from tests.integration.http_api import ask
from tests.patience import until

LINES = 300
"""Lines of the log that fill a pipe of a page, and the buffer of its reader, several times."""


@contextmanager
def unread(daemon: Daemon, config: Path) -> Iterator[None]:
    """The standard output is not read, and more lines were logged than its pipe takes."""
    daemon.pause_output()
    for _ in range(LINES):
        assert ask(daemon, "PUT", "/v1/log", {"level": "debug"})[0] == 200
    yield
    daemon.resume_output()


@contextmanager
def unanswered(daemon: Daemon, config: Path) -> Iterator[None]:
    """A reload reads a file that does not come, as from a network file system that does not answer."""
    pipe = reading(daemon, config)
    yield
    os.close(pipe)
    daemon.wait_for("the configuration was reloaded")


def reading(daemon: Daemon, config: Path) -> int:
    """Let the daemon read its configuration. Returns a descriptor; the reading ends when it is closed."""
    path = Path(f"{config}{UNANSWERED}")
    os.mkfifo(path)
    daemon.signal(signal.SIGHUP)
    pipe = until(lambda: opened(path))
    assert pipe is not None
    path.unlink()
    return pipe


def opened(pipe: Path) -> int | None:
    """The writing end of a pipe, once another process reads it."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


TROUBLES = {"unread-log": unread, "unanswered-reload": unanswered}


@pytest.fixture(scope="module", params=TROUBLES)
def troubled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with all doors, while something that it needs does not answer."""
    directory = tmp_path_factory.mktemp("blocking")
    option, config = every_listener(directory)
    with Daemon(directory, option, config) as running:
        for door in DOORS.values():
            door.port(running)
        with TROUBLES[request.param](running, Path(config)):
            yield running


@pytest.mark.parametrize("door", DOORS)
def test_a_door_answers_meanwhile(troubled: Daemon, door: str) -> None:
    DOORS[door].honest(troubled, DOORS[door].port(troubled))


def test_the_log_goes_on_where_it_was_paused(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        daemon.http_port()
        daemon.pause_output()
        for _ in range(LINES):
            ask(daemon, "PUT", "/v1/log", {"level": "info"})
        ask(daemon, "PUT", "/v1/log", {"level": "debug"})
        daemon.resume_output()
        daemon.wait_for("log level debug")
        assert sum("log level info" in line for line in daemon.log) == LINES


def test_a_stop_does_not_wait_for_a_file_that_does_not_come(tmp_path: Path) -> None:
    options = every_listener(tmp_path)
    config = Path(options[1])
    with Daemon(tmp_path, *options) as daemon:
        daemon.http_port()
        pipe = reading(daemon, config)
        daemon.signal(signal.SIGTERM)
        assert daemon.ended() == -signal.SIGTERM
        os.close(pipe)
