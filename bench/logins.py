"""Guesses of passwords from one address over all wires, and a farm behind that address that comes back meanwhile.

Run it as ``python -m bench.logins``. Guesses go to Elko, HTTP, the console and MTL at the same time, from one address.
A guess was *compared* if the answer says that the password is wrong. The farm has a user and a password for each
server, and each server tries again until it is in.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from argparse import ArgumentParser
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import zmq

from bench.common.machine import describe
from bench.common.processes import NICENESS, InProcess
from bench.common.report import table
from bench.common.servers import HOST, START_WITHIN, Server, await_log, free_port, spawn, twistd
from broker.access.known_logins import WRITE_AFTER
from broker.access.password_verifiers import of

SOURCE = "127.0.0.9"
"""The address of the farm and of the stranger, as behind one NAT."""

PATIENCE = 30.0
"""Seconds within which an answer comes."""

AT_ONCE = 50
"""Servers of the farm that log in at the same time."""

PAUSE = 0.2
"""Seconds until a server that was refused tries again."""

PASSWORD = "correct horse"

CONFIG = """\
[[elko.listeners]]
endpoint = "tcp:{elko}:interface=127.0.0.1"
auth = "users"
[console]
endpoint = "tcp:{console}:interface=127.0.0.1"
[http]
endpoint = "tcp:{http}:interface=127.0.0.1"
auth = "users"
[mtl]
endpoint = "tcp://127.0.0.1:{mtl}"
auth = "users"
plain = true
[access]
file = "users.toml"
[mc0]
enabled = false
[dbp]
enabled = false
"""


@attrs.frozen
class Ports:
    """The ports of the daemon."""

    elko: int = attrs.field(factory=free_port)
    console: int = attrs.field(factory=free_port)
    http: int = attrs.field(factory=free_port)
    mtl: int = attrs.field(factory=free_port)


@contextmanager
def broker(servers: int) -> Iterator[tuple[Ports, Callable[[], None]]]:
    """A daemon with the users of a farm, and a function that restarts it."""
    verifier = of(PASSWORD).text()  # one for all: only the number of names matters
    users = "".join(f'[[users]]\nname = "server-{n}"\npasswords = ["{verifier}"]\n' for n in range(servers))
    ports = Ports()
    with TemporaryDirectory(prefix="elkobroker-bench-") as directory, ExitStack() as ends:
        folder = Path(directory)
        file = folder / "users.toml"
        file.touch(0o600)
        file.write_text(users + '[[rights]]\nusers = ["*"]\noperations = ["find", "offer", "view"]\n')
        (folder / "config.toml").write_text(CONFIG.format(**attrs.asdict(ports)))

        def restart() -> None:
            ends.pop_all().close()
            ends.enter_context(_running(folder))

        ends.enter_context(_running(folder))
        yield ports, restart


@contextmanager
def _running(folder: Path) -> Iterator[None]:
    log = folder / "log"
    log.unlink(missing_ok=True)
    command = twistd(f"--config={folder / 'config.toml'}", f"--state={folder}")
    server = Server(spawn(command, log), 0, True, log)
    try:
        await_log(server, re.compile(r"mtl on \S+").search, 3 * START_WITHIN)
        yield
    finally:
        server.stop()


# one attempt at each door: "in", "wrong" or "refused"


def _outcome(text: str) -> str:
    return "refused" if "too many" in text else "wrong" if "wrong" in text else "in"


def elko(ports: Ports, user: str, password: str, held: list[socket.socket] | None = None) -> str:
    """Log in at Elko. With ``held``, the connection is kept there."""
    sock = socket.create_connection((HOST, ports.elko), PATIENCE, (SOURCE, 0))
    auth = {"to": "client", "op": "auth", "auth": {"mode": "password", "id": user, "code": password}}
    sock.sendall(json.dumps(auth).encode() + b'\n\n{"to":"client","op":"ping"}\n\n')
    outcome = _outcome(sock.recv(4_096).decode())
    if held is not None and outcome == "in":
        held.append(sock)
    else:
        sock.close()
    return outcome


def console(ports: Ports, user: str, password: str) -> str:
    """Log in at the console."""
    with socket.create_connection((HOST, ports.console), PATIENCE, (SOURCE, 0)) as sock:
        sock.sendall(f"login {user}\r\n{password}\r\n".encode())
        text = ""
        while "error:" not in text and "elkobroker console" not in text and (data := sock.recv(4_096)):
            text += data.decode()
        return _outcome(text)


def basic(ports: Ports, user: str, password: str) -> str:
    """Log in over HTTP."""
    connection = http.client.HTTPConnection(HOST, ports.http, PATIENCE, (SOURCE, 0))
    try:
        pair = b64encode(f"{user}:{password}".encode()).decode()
        connection.request("GET", "/v1/services/x", headers={"Authorization": f"Basic {pair}"})
        return {401: "wrong", 429: "refused"}.get(connection.getresponse().status, "in")
    finally:
        connection.close()


def mtl(ports: Ports, user: str, password: str) -> str:
    """Log in over MTL, by PLAIN."""
    dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    with dealer:
        dealer.linger, dealer.rcvtimeo = 0, int(PATIENCE * 1_000)
        dealer.connect(f"tcp://{SOURCE}:0;{HOST}:{ports.mtl}")
        response = b64encode(f"\0{user}\0{password}".encode()).decode()
        code = b""
        for command, body in (
            (b"Connection.Open", {"protocol": {"name": "MTL", "version": 1}}),
            (b"Connection.Authorize", {"mechanism": "PLAIN", "response": response}),
        ):
            dealer.send_multipart([b"", command, json.dumps(body).encode()])
            code = dealer.recv_multipart()[1]
        return {b"401": "wrong", b"429": "refused", b"201": "in"}[code]


DOORS: tuple[Callable[[Ports, str, str], str], ...] = (elko, console, basic, mtl)


# the stranger, and the farm


def guess(ports: Ports, seconds: float, new_names: bool) -> Counter[str]:
    """Guess at all doors for so long. Returns the outcomes."""
    names = count()
    end = time.monotonic() + seconds

    def run(door: Callable[[Ports, str, str], str]) -> Counter[str]:
        outcomes: Counter[str] = Counter()
        while time.monotonic() < end:
            try:
                outcomes[door(ports, f"name-{next(names)}" if new_names else "admin", "guess")] += 1
            except (OSError, zmq.ZMQError):
                outcomes["lost"] += 1
        return outcomes

    with ThreadPoolExecutor(len(DOORS)) as pool:
        return sum(pool.map(run, DOORS), Counter())


def come_back(ports: Ports, servers: int) -> tuple[float, int]:
    """Log in all servers of the farm. Returns the seconds, and how often a right password was refused."""
    held: list[socket.socket] = []
    refused = count()

    def log_in(number: int) -> None:
        while True:
            try:
                outcome = elko(ports, f"server-{number}", PASSWORD, held)
            except OSError:
                outcome = "lost"
            if outcome == "in":
                return
            next(refused)
            time.sleep(PAUSE)

    begin = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(log_in, range(servers)))
    took = time.monotonic() - begin
    for sock in held:
        sock.close()
    return took, next(refused)


def main() -> None:
    """Measure, and print two tables."""
    options = ArgumentParser(description=__doc__)
    options.add_argument("--servers", type=int, default=1_000)
    options.add_argument("--seconds", type=float, default=20.0, help="time of each attack by itself")
    given = options.parse_args()
    print(", ".join(f"{name}: {value}" for name, value in describe().items()))
    with broker(given.servers) as (ports, restart):
        rows = []
        for title, new_names in (("one name", False), ("always another name", True)):
            outcomes = InProcess(guess, ports, given.seconds, new_names, niceness=NICENESS).result(10 * PATIENCE)
            tried, compared = sum(outcomes.values()), outcomes["wrong"]
            rows.append([title, str(tried), str(compared), f"{compared / given.seconds:.2f}"])
        print(table(("guesses, four wires", "tried", "compared", "compared a second"), rows))
        time.sleep(ADDRESS_QUIET)
        rows = []
        for title in ROWS:
            stranger = None
            if title.startswith("after a restart"):
                time.sleep(2 * WRITE_AFTER)  # the known names are on the disk
                restart()
            if title.endswith("guesses"):
                stranger = InProcess(guess, ports, GUESSED, True, niceness=NICENESS)
                time.sleep(5.0)  # the address has no guesses left
            took, refused = come_back(ports, given.servers)
            rows.append([title, f"{took:.1f}", f"{given.servers / took:.0f}", str(refused)])
            if stranger is not None:
                print(f"{title}: the guesses of {GUESSED:g} s were {dict(stranger.result(10 * PATIENCE))}")
    print(table((f"{given.servers} servers", "seconds", "logins a second", "right passwords refused"), rows))


ROWS = (
    "first logins, all checked",
    "come back",
    "come back beside guesses",
    "after a restart, all checked",
    "after a restart, beside guesses",
)

GUESSED = 60.0
"""Seconds of the guesses beside the farm: longer than it takes to come back."""

ADDRESS_QUIET = 35.0
"""Seconds without guesses after which the address has all of its own again."""

if __name__ == "__main__":
    main()
