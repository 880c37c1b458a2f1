"""The file of twistd's --logfile: its size and number are keys, and another program may rotate it."""

from __future__ import annotations

import re
import signal
import socket
from contextlib import suppress
from pathlib import Path

from tests.integration.configurations import OFF, listener
from tests.integration.daemon import Daemon, Peer
from tests.integration.http_api import ask
from tests.patience import PATIENCE, until

LEAST = 100_000
"""The smallest size of a file in bytes."""

TALK = '[[launchers.table]]\nname = "talk"\nscript = "sh -c \'for n in $(seq 20); do printf %01000d $n; echo; done\'"\n'
"""A program that writes long lines, which are logged."""


def test_sigusr1_opens_a_log_file_that_was_renamed(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    with Daemon(tmp_path, twistd_options=["--logfile", str(log)]) as daemon:
        until(lambda: log.exists() and "console on" in log.read_text())
        log.rename(tmp_path / "broker.log.old")
        daemon.signal(signal.SIGUSR1)
        until(lambda: log.exists() and "the log was opened again" in log.read_text())
        port = int(re.findall(r"elko listener 'main' on \S+:(\d+) ", (tmp_path / "broker.log.old").read_text())[0])
        with Peer(socket.create_connection(("127.0.0.1", port), PATIENCE)) as peer:
            assert peer.ask(to="error", op="ping")  # the reactor runs
        daemon.signal(signal.SIGTERM)
        daemon.ended()
    assert log.read_text().endswith("Server Shut Down.\n")


def test_size_and_number_of_files_are_keys_which_a_reload_changes(tmp_path: Path) -> None:
    config, log = tmp_path / "x.toml", tmp_path / "broker.log"

    def configure(files: int) -> None:
        config.write_text(f"[log]\nfile_bytes = {LEAST}\nfiles = {files}\n{TALK}{OFF}{listener('main')}")

    configure(1)
    with Daemon(tmp_path, "--config", str(config), twistd_options=["--logfile", str(log)]) as daemon:
        until(lambda: log.exists() and "console on" in log.read_text())
        daemon.log.extend(log.read_text().splitlines())
        first = rotated(daemon, tmp_path, 1)
        until(lambda: rotated(daemon, tmp_path, 1) != first)
        assert not (tmp_path / "broker.log.2").exists()
        assert (tmp_path / "broker.log.1").stat().st_size < 2 * LEAST
        configure(2)
        daemon.signal(signal.SIGHUP)
        until(lambda: rotated(daemon, tmp_path, 2))


def rotated(daemon: Daemon, directory: Path, number: int) -> int:
    """Have lines logged. Returns the inode of a rotated file, 0 without one."""
    ask(daemon, "POST", "/v1/actions/launch", {"name": "talk"})
    with suppress(FileNotFoundError):
        return (directory / f"broker.log.{number}").stat().st_ino
    return 0
