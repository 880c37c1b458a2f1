"""A real PostgreSQL server for tests: created, started, stopped, killed and frozen on 127.0.0.1.

Its programs are those of Debian's package postgresql. As root, they run as the user postgres, since they refuse root.
"""

from __future__ import annotations

import functools
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.packages import MISSING
from tests.ports import free_port

PASSWORD = "of the broker"
USER = "broker"

_numbers = itertools.count(1)


def programs() -> Path | None:
    """Return the folder of the server's programs, None if they are not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    path = shutil.which("initdb")
    return None if path is None else Path(path).resolve().parent


class Postgres:
    """A server with its own data directory."""

    def __init__(self, settings: Sequence[str] = ()) -> None:
        found = programs()
        assert found is not None
        self._programs = found
        self._user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
        self.directory = Path(tempfile.mkdtemp(prefix="elkobroker-postgres-"))
        self.directory.chmod(0o755)
        data = self.directory / "data"
        data.mkdir(mode=0o700)
        if self._user is not None:
            os.chown(self.directory, self._user.pw_uid, self._user.pw_gid)
            os.chown(data, self._user.pw_uid, self._user.pw_gid)
        secret = self.directory / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run(
            "initdb", "-D", str(data), "-U", USER, "--pwfile", str(secret), "-A", "scram-sha-256", "-E", "UTF8",
            "--locale=C", "--no-sync",
        )  # fmt: skip
        self.port = free_port()
        self._data = data
        with (data / "postgresql.conf").open("a") as config:
            config.write("\n".join(("", *settings, "max_connections = 30", "shared_buffers = 16MB", "")))
        self.start()

    def url(self, database: str = "postgres", user: str = USER, more: str = "") -> str:
        """Return the URL of a database, without the password."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}{more}"

    def database(self, options: str = "") -> str:
        """Create an empty database. Returns its name."""
        name = f"queues{next(_numbers)}"
        self.sql(f"CREATE DATABASE {name} {options}")
        return name

    def sql(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Execute a statement as the superuser. Returns its rows, if it has any."""
        import psycopg

        with psycopg.connect(self.url(database), password=PASSWORD, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.directory}"
        log = str(self.directory / "log")
        self._run("pg_ctl", "-D", str(self._data), "-w", "-t", "60", "-l", log, "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: ``fast`` closes all connections, ``immediate`` is as a crash."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-t", "60", "-m", mode, "stop")

    def restart(self) -> None:
        """Crash and start again."""
        self.stop("immediate")
        self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all processes of the server for a while, without closing anything."""
        group = self._processes()
        for process in group:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in group:
                os.kill(process, signal.SIGCONT)

    def close(self) -> None:
        """Stop the server, and delete its data."""
        if (self._data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def _processes(self) -> list[int]:
        main = int((self._data / "postmaster.pid").read_text().split()[0])
        children = subprocess.run(["pgrep", "-P", str(main)], capture_output=True, text=True).stdout.split()
        return [main, *map(int, children)]

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if program == "pg_ctl" else None,
            stdin=subprocess.DEVNULL,
            cwd=self.directory,
            user=None if self._user is None else self._user.pw_uid,
            group=None if self._user is None else self._user.pw_gid,
            extra_groups=None if self._user is None else [],
        )


@functools.cache
def _available() -> bool:
    return programs() is not None


@contextmanager
def server(settings: Sequence[str] = ()) -> Iterator[Postgres]:
    """A running server. Skips the test where PostgreSQL is not installed."""
    if not _available():
        pytest.skip(f"{MISSING}: postgresql (the programs of its server)")
    postgres = Postgres(settings)
    try:
        yield postgres
    finally:
        postgres.close()
