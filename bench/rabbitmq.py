"""RabbitMQ of the system's packages as a server that is measured, with a state and a name of its own.

Debian: ``apt install rabbitmq-server``, as root. Its service need not run.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.servers import HOST, START_WITHIN, Server, await_log, die_with_parent, free_port, spawn

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")

_READY = "Server startup complete"


class RabbitServer(Server):
    """A RabbitMQ, whose ``pid`` is that of its virtual machine."""

    @property
    def pid(self) -> int:
        """The process that does the work: the last of a line of children."""
        pid = self.process.pid
        while "beam" not in Path(f"/proc/{pid}/comm").read_text():
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            pid = int(children[0])
        return pid


@contextmanager
def rabbitmq() -> Iterator[RabbitServer]:
    """Run RabbitMQ for as long as the context lasts. Raises `FileNotFoundError` without the package."""
    if not PROGRAM.exists():
        raise FileNotFoundError(f"{PROGRAM} is missing: install the package rabbitmq-server")
    with TemporaryDirectory(prefix="elkobroker-bench-") as name:
        directory = Path(name)
        port, names, distribution, log = free_port(), free_port(), free_port(), directory / "log"
        (directory / "plugins").write_text("[].")
        variables = {
            "HOME": name,
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
        }
        epmd = shutil.which("epmd")
        assert epmd is not None
        mapper = subprocess.Popen(
            [epmd, "-port", str(names)], env={**os.environ, **variables}, preexec_fn=die_with_parent
        )
        process = spawn([str(PROGRAM)], log, variables=variables)
        server = RabbitServer(process, port, False, log)
        try:
            await_log(server, lambda text: _READY in text or None, START_WITHIN)
            socket.create_connection((HOST, port), 1).close()
            yield server
        finally:
            beam = None if process.poll() is not None else server.pid
            server.stop()
            if beam is not None and Path(f"/proc/{beam}").exists():
                os.kill(beam, 9)
            mapper.kill()
            mapper.wait()
