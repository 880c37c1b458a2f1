"""A small DBP service: registers, sends heartbeats by UDP, and registers again when the broker no longer has it.

python examples/service.py --name Rohan --port 5246
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import socket
import time

import zmq

LIVENESS = 3
"""Intervals of silence after which either side considers the other one gone."""

LONGEST_DATAGRAM = 1_024


def main() -> None:
    """Stay registered until interrupted."""
    arguments = argparse.ArgumentParser(description="Be a service that others find.")
    arguments.add_argument("--name", required=True, help="name of the service")
    arguments.add_argument("--host", default="127.0.0.1", help="IPv4 address of the broker, or A,B,... [%(default)s]")
    arguments.add_argument("--port", type=int, default=5246, help="the broker's port, TCP and UDP [%(default)s]")
    arguments.add_argument("--hostport", default="127.0.0.1:7000", help="host:port of the service [%(default)s]")
    arguments.add_argument("--interval", type=float, default=1.0, help="seconds between heartbeats [%(default)s]")
    options = arguments.parse_args()

    ip, _, port = options.hostport.rpartition(":")
    info = {"name": options.name, "ip": ip, "port": int(port), "function": "example"}
    info["heartbeat_ms"] = round(options.interval * 1000)
    context = zmq.Context()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.setblocking(False)
        for host in itertools.cycle(options.host.split(",")):
            # Each registration uses a new connection, since the broker ignores one that it has sent a disconnect.
            with context.socket(zmq.DEALER) as broker:
                broker.linger = 0
                broker.connect(f"tcp://{host}:{options.port}")
                if register(broker, info, options.interval):
                    said_before(udp)
                    beat(broker, udp, (host, options.port), options.name, options.interval)


def register(broker: zmq.Socket[bytes], info: dict[str, object], interval: float) -> bool:
    """Register. Returns True if an answer arrived in time."""
    broker.send_multipart([b"", b"UwU", now(), json.dumps(info).encode()])
    if not broker.poll(int(LIVENESS * interval * 1000)):
        print("no answer", flush=True)
        return False
    _, command, _, text, *_ = [*broker.recv_multipart(), b""]
    if command != b"OwO":
        raise SystemExit(f"the broker refused: {text.decode()}")
    print(f"registered: {text.decode()}", flush=True)
    return True


def beat(broker: zmq.Socket[bytes], udp: socket.socket, to: tuple[str, int], name: str, interval: float) -> None:
    """Send heartbeats until the broker disconnects the service or is silent for `LIVENESS` intervals."""
    poller = zmq.Poller()
    poller.register(broker, zmq.POLLIN)
    poller.register(udp, zmq.POLLIN)
    heard = due = time.monotonic()
    while True:
        if time.monotonic() >= due:
            udp.sendto(b" <3 %b %b" % (now(), name.encode()), to)
            due = time.monotonic() + interval
        for ready, _ in poller.poll(1 + int(max(0.0, due - time.monotonic()) * 1000)):
            command = broker.recv_multipart()[1] if ready is broker else datagram(udp, to)
            if command == b"</3":
                print("the broker sent us away", flush=True)
                return
            if command == b"<3":
                heard = time.monotonic()
        if time.monotonic() - heard > LIVENESS * interval:
            print("the broker is silent", flush=True)
            return


def datagram(udp: socket.socket, broker: tuple[str, int]) -> bytes:
    """Read a datagram. Returns its command, or nothing if it is not from the broker."""
    data, source = udp.recvfrom(LONGEST_DATAGRAM)
    return data.split()[0] if source == broker and data.strip() else b""


def said_before(udp: socket.socket) -> None:
    """Discard datagrams from before the registration: they may contain another disconnect."""
    with contextlib.suppress(BlockingIOError):
        while True:
            udp.recv(LONGEST_DATAGRAM)


def now() -> bytes:
    """Return the time in the form that DBP uses over ZeroMQ and UDP."""
    return b"%.6f" % time.time()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
