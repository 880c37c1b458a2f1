"""The real etcd for tests: one member, or several on loopback, in directories of their own.

with Etcd(tmp_path) as etcd:            # one member; etcd.url, etcd.urls
with Etcd(tmp_path, members=3) as etcd: # three; etcd.members[0].kill()
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tests.config.certificates import unverified
from tests.packages import program
from tests.patience import until
from tests.ports import free_port


class Member:
    """One process of etcd. ``runner`` is the beginning of its command line, such as ``ip netns exec NAME``."""

    def __init__(self, name: str, directory: Path, url: str, peer: str, runner: Sequence[str] = ()) -> None:
        self.name = name
        self.url = url
        self.peer = peer
        self.directory = directory
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.options: list[str] = []
        self._runner = list(runner)
        self._context: ssl.SSLContext | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def trust(self, context: ssl.SSLContext) -> None:
        """Use settings of TLS for the requests of this class."""
        self._context = context

    def start(self) -> None:
        """Start it; `healthy` says when it serves. The same data are used again."""
        # The kernel ends it with this process, however that ends.
        dies_too = [shutil.which("setpriv") or "setpriv", "--pdeathsig", "KILL"]
        command = [*self._runner, *dies_too, program("etcd"), "--name", self.name, *self.options]
        command += ["--data-dir", str(self.directory / "data"), "--logger", "zap", "--log-outputs", "stderr"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def healthy(self) -> bool:
        """Return True if it serves, with a quorum."""
        assert self.process is not None
        assert self.process.poll() is None, f"etcd ended:\n{self.log.read_text()[-2000:]}"
        try:
            with self._open(f"{self.url}/health") as answer:
                return bool(json.load(answer)["health"] == "true")
        except (OSError, ValueError):
            return False

    def listening(self) -> bool:
        """Return True if its port for clients is open, healthy or not."""
        parts = urlsplit(self.url)
        try:
            socket.create_connection((parts.hostname or "", parts.port or 0), 10).close()
        except OSError:
            return False
        return True

    def ask(self, path: str, body: dict[str, Any] | None = None, token: str = "") -> Any:
        """Return the JSON of an answer; urllib.error.HTTPError for another status than 200."""
        headers = {"Authorization": token} if token else {}
        data = json.dumps(body or {}).encode()
        with self._open(urllib.request.Request(f"{self.url}/v3/{path}", data, headers)) as answer:
            return json.load(answer)

    def stop(self) -> None:
        """End it in order (SIGTERM), and wait for its end."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stop it (SIGSTOP): its connections stay, silent."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        # On a busy machine its threads stop a little later, and may answer a request meanwhile.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Have it go on (SIGCONT)."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Delete its data. It must have ended."""
        assert self.process is None or self.process.poll() is not None
        shutil.rmtree(self.directory / "data")

    @property
    def running(self) -> bool:
        """True if the process has not ended."""
        return self.process is not None and self.process.poll() is None

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _open(self, request: Any) -> Any:
        return urllib.request.urlopen(request, timeout=10, context=self._context)


class Etcd:
    """etcd of one or several members on loopback, healthy at once.

    ``options`` are more options of each member. ``tls`` are a certificate and a key for clients; ``client_ca`` requires
    certificates of clients, and ``own`` is the one that this class uses then.
    """

    def __init__(
        self,
        directory: Path,
        members: int = 1,
        options: Sequence[str] = (),
        tls: tuple[Path, Path] | None = None,
        client_ca: Path | None = None,
        own: tuple[Path, Path] | None = None,
        healthy: bool = True,
    ) -> None:
        scheme = "http" if tls is None else "https"
        ports = iter([free_port() for _ in range(2 * members)])
        self.members = [
            Member(
                f"etcd{number}",
                directory / f"etcd{number}",
                f"{scheme}://127.0.0.1:{next(ports)}",
                f"http://127.0.0.1:{next(ports)}",
            )
            for number in range(1, members + 1)
        ]
        together = ",".join(f"{each.name}={each.peer}" for each in self.members)
        for each in self.members:
            each.options = ["--listen-client-urls", each.url, "--advertise-client-urls", each.url]
            each.options += ["--listen-peer-urls", each.peer, "--initial-advertise-peer-urls", each.peer]
            each.options += ["--initial-cluster", together, "--initial-cluster-state", "new", *options]
            if tls is not None:
                each.options += ["--cert-file", str(tls[0]), "--key-file", str(tls[1])]
                context = unverified()
                if own is not None:
                    context.load_cert_chain(*own)
                each.trust(context)
            if client_ca is not None:
                each.options += ["--client-cert-auth", "--trusted-ca-file", str(client_ca)]
        self._healthy = healthy

    def __enter__(self) -> Etcd:
        for each in self.members:
            each.start()
        if self._healthy:
            self.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for each in self.members:
            each.kill()
            # 123 MB at least, which pytest would keep.
            if (each.directory / "data").exists():
                each.wipe()

    def wait(self) -> None:
        """Wait until all running members are healthy."""
        for each in self.members:
            if each.running:
                until(each.healthy, f"the health of {each.name}")

    @property
    def url(self) -> str:
        """URL of the first member."""
        return self.members[0].url

    @property
    def urls(self) -> list[str]:
        """URLs of all members."""
        return [each.url for each in self.members]

    def ask(self, path: str, body: dict[str, Any] | None = None, token: str = "") -> Any:
        """Ask the first member; see `Member.ask`."""
        return self.members[0].ask(path, body, token)

    def put(self, key: str, value: str = "") -> int:
        """Put a key without a lease. Returns the revision."""
        answer = self.ask("kv/put", {"key": base64_text(key), "value": base64_text(value)})
        return int(answer["header"]["revision"])

    def get(self, key: str) -> dict[str, str]:
        """Return a key as the API has it, its value in base64; empty if there is none."""
        found: list[dict[str, str]] = self.ask("kv/range", {"key": base64_text(key)}).get("kvs", [])
        return found[0] if found else {}

    def revision(self) -> int:
        """Return the present revision."""
        return int(self.ask("kv/range", {"key": base64_text("-")})["header"]["revision"])

    def leader(self) -> Member:
        """Return the member that leads; waits for one."""

        def found() -> Member | None:
            for each in self.members:
                try:
                    status = each.ask("maintenance/status") if each.running else {}
                except OSError:
                    continue
                if status.get("leader") and status["leader"] == status["header"]["member_id"]:
                    return each
            return None

        leader = until(found, "a leader")
        assert leader is not None
        return leader

    def followers(self) -> list[Member]:
        """Return the members that do not lead."""
        leader = self.leader()
        return [each for each in self.members if each is not leader]

    def enable_auth(self, user: str, password: str, prefix: str = "/", root: str = "root") -> None:
        """Enable authentication, with a user that may read and write the keys under a prefix, and root."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        self.ask("auth/user/add", {"name": "root", "password": root})
        self.ask("auth/role/add", {"name": "root"})
        self.ask("auth/user/grant", {"user": "root", "role": "root"})
        self.ask("auth/user/add", {"name": user, "password": password})
        self.ask("auth/role/add", {"name": "brokers"})
        permission = {"permType": "READWRITE", "key": base64_text(prefix), "range_end": base64_text(end)}
        self.ask("auth/role/grant", {"name": "brokers", "perm": permission})
        self.ask("auth/user/grant", {"user": user, "role": "brokers"})
        self.ask("auth/enable")

    def token(self, user: str = "root", password: str = "root") -> str:
        """Return a token of a user."""
        return str(self.ask("auth/authenticate", {"name": user, "password": password})["token"])

    def fill(self) -> None:
        """Write until the quota of the database is used up."""
        for number in itertools.count():
            try:
                self.put(f"/fill/{number}", "x" * 100_000)
            except urllib.error.HTTPError as error:
                error.close()
                assert error.code == 429
                return


def base64_text(text: str) -> str:
    """Return a text in the encoding of the gateway."""
    return base64.b64encode(text.encode()).decode()
