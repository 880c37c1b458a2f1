"""A client with a wrong address: an error that names the endpoint and the cause, and nothing on standard error."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import zmq

from broker.address_faults import address_fault
from broker.client.blocking import Client
from broker.client.errors import Unreachable
from broker.client.settings import Settings
from tests.patience import PATIENCE
from tests.ports import free_port

SECONDS = PATIENCE
"""For one examination: the causes are found at once, but on a busy machine."""


@contextlib.contextmanager
def server(answer: bytes | None) -> Iterator[str]:
    """A server that answers the first bytes of each connection, and closes it; None: it says nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.recv(65_536)
                        if answer:
                            connection.sendall(answer)
                            # Read to the end: a close with unread input would reset the connection, and lose it.
                            connection.settimeout(PATIENCE)
                            connection.shutdown(socket.SHUT_WR)
                            while connection.recv(65_536):
                                pass

        threading.Thread(target=serve, daemon=True).start()
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"


def greeting(mechanism: bytes) -> bytes:
    return b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)


@pytest.mark.parametrize(
    ("answer", "encrypted", "fault"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False, "an HTTP server answers there"),
        (b"\x15\x03\x01\x00\x02\x02\x46", False, "the server requires TLS"),
        (b"220 mail.example ESMTP\r\n", False, "the server does not speak ZeroMQ"),
        (b"", False, "the server closes the connection: it does not speak ZeroMQ, or requires TLS"),
        (greeting(b"CURVE"), False, "the broker requires CURVE keys"),
        (greeting(b"NULL"), True, "the broker has no CURVE key at this endpoint"),
        (greeting(b"NULL"), False, ""),
        (greeting(b"CURVE"), True, ""),
    ],
)
def test_another_server_is_no_broker(answer: bytes, encrypted: bool, fault: str) -> None:
    with server(answer) as endpoint:
        assert address_fault(endpoint, encrypted, SECONDS) == fault


def test_the_client_names_endpoints_and_causes() -> None:
    refused, unknown = f"tcp://127.0.0.1:{free_port()}", "tcp://no-such-host.invalid:5975"
    with server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as other, Client([refused, other]) as client:
        with pytest.raises(Unreachable) as caught:
            client.services("bank", timeout=PATIENCE)
        assert str(caught.value).split("; ") == [
            f"{refused}: Connection refused",
            f"{other}: an HTTP server answers there",
        ]
    with Client(unknown) as client, pytest.raises(Unreachable, match="cannot look up no-such-host"):
        client.offer("bank", "192.0.2.1:80", timeout=PATIENCE)


def test_a_peer_of_zeromq_that_says_nothing_is_left_after_the_timeout() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        settings = Settings(first_contact=0.2, timeout=0.5)
        with Client(f"tcp://127.0.0.1:{port}", settings=settings) as client, pytest.raises(Unreachable) as caught:
            client.open(timeout=PATIENCE)
        assert f"tcp://127.0.0.1:{port}: " in str(caught.value)
        router.close(0)


PROGRAM = """
from twisted.internet import reactor, task
from broker.client import mtl, blocking
from broker.client.errors import MtlError
from broker.client.profiles import queue

with blocking.Client({endpoint!r}) as client:
    for call in (client.services, client.watch, lambda: client.offer("a", "h:1"), lambda: client.serve("a"),
                 lambda: client.read("queue", ["q"]), lambda: client.write("queue", ["q"]), client.caller):
        try:
            call()
        except MtlError as error:
            print(error)

async def main(reactor):
    client = mtl.Client(reactor, {endpoint!r})
    try:
        await queue.worker(client, ["q"], print)
    except MtlError as error:
        print(error)
    client.close()

task.react(main)
"""


@pytest.mark.long
def test_nothing_is_reported_as_unhandled_at_exit() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    program = PROGRAM.replace("{endpoint!r}", repr(endpoint))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"{endpoint}: Connection refused"] * 8
