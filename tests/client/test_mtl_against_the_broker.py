"""The client and the real broker: CURVE keys, sockets, restarts, and the examples. test_behaviour.py has the rest."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import attrs
import pytest

from broker.client.blocking import Client, Content, Request
from broker.client.credentials import External, Password
from broker.client.errors import AuthenticationFailed, NotTaken
from broker.client.mtl import Delivery, Keys
from broker.client.profiles import queue, registry, service
from broker.client.settings import Event
from tests.access.users import ACCESS, ELSEWHERE, put, right, user
from tests.client.farm import QUICK, Farm
from tests.integration.daemon import ROOT, environment
from tests.patience import PATIENCE, until


@pytest.fixture
def farm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Farm]:
    """A broker, open to all unless the test says otherwise by a marker's parameter."""
    farm = Farm(tmp_path, getattr(request, "param", ""))
    prepare(farm)
    farm.start()
    yield farm
    if farm.daemon.process.poll() is None:
        farm.stop()
    log = "".join(farm.daemon.log)
    assert "Traceback" not in log
    assert " critical " not in log


def prepare(farm: Farm) -> None:
    """Make the files that the configuration speaks of."""
    if farm.mtl == USERS:
        for name in ("anna", "ben"):
            farm.password(name, "pencil")
    if farm.mtl == KEYS:
        for name in ("broker", "anna", "eve"):
            farm.run("brokerkeys", "new", name, "--dir", "keys")
        key = (farm.directory / "keys" / "anna.public").read_text().strip()
        put(farm.directory / "users.toml", ELSEWHERE + right("anna", "*", "mtl") + user("anna", f"keys = ['{key}']"))


def keys_of(farm: Farm, name: str) -> Keys:
    """The keys of a client, from the files."""

    def key(file: str) -> str:
        return (farm.directory / "keys" / file).read_text().split()[0]

    return Keys(key("broker.public"), key(f"{name}.public"), key(f"{name}.private"))


USERS = ACCESS

KEYS = f'secret_key_file = "keys/broker.private"\n{ACCESS}'


# who is let in


@pytest.mark.long
@pytest.mark.parametrize("farm", [USERS], indirect=True)
def test_a_user_who_is_taken_away_loses_the_flows_and_comes_back_with_another_password(farm: Farm) -> None:
    with farm.client(Password("ben", "pencil")) as client:
        reader = client.read("queue", ["jobs"], confirm="full", timeout=PATIENCE)
        farm.password("ben", "crayon")
        with pytest.raises(AuthenticationFailed):
            reader.take(PATIENCE)
        with pytest.raises(AuthenticationFailed):
            client.open(PATIENCE)
        client.wait(setattr, client.client, "credentials", Password("ben", "crayon"))
        client.open(PATIENCE)


@pytest.mark.parametrize("farm", [KEYS], indirect=True)
def test_keys_alone_say_who_it_is(farm: Farm) -> None:
    with farm.client(External("anna"), keys=keys_of(farm, "anna")) as client:
        writer = client.write("queue", ["jobs"], timeout=PATIENCE)
        writer.send(b"x", timeout=PATIENCE)
        work = client.read("queue", ["jobs"], confirm="full", timeout=PATIENCE).take(PATIENCE)
        assert work.properties["user-id"] == "anna"
    with farm.client(keys=keys_of(farm, "eve")) as client, pytest.raises(TimeoutError):
        client.open(1.0)


@pytest.mark.parametrize("farm", ['endpoint = "ipc://mtl.socket"'], indirect=True)
def test_one_socket_for_both_flows_over_ipc(farm: Farm) -> None:
    farm.places = (f"ipc://{farm.directory / 'mtl.socket'}", "")
    with farm.client() as client:
        client.write("queue", ["jobs"], timeout=PATIENCE).send(b"x", timeout=PATIENCE)
        assert client.read("queue", ["jobs"], confirm="full", timeout=PATIENCE).take(PATIENCE).body == b"x"


# the profiles


def test_a_blocking_handler_outlasts_the_brokers_limit_of_silence(farm: Farm) -> None:
    limit = 3 * 0.5  # `CONFIGURATION` sets the heartbeat, and three of them are the limit
    events: list[Event] = []

    def serve(request: Request) -> bytes:
        end = time.monotonic() + 1.5 * limit
        until(lambda: time.monotonic() > end)
        worker.drain()
        return b"slow"

    with farm.client() as client, farm.client() as other:
        worker = client.serve("slow", on_event=lambda event, why: events.append(event), timeout=PATIENCE)
        caller = other.caller(timeout=PATIENCE)
        replies: list[bytes] = []
        calling = threading.Thread(target=lambda: replies.append(caller.call("slow", b"", timeout=PATIENCE).body))
        calling.start()
        worker.work(serve)
        calling.join(PATIENCE)
    assert (replies, events) == ([b"slow"], [])


def test_many_pieces_of_work(farm: Farm) -> None:
    done: set[bytes] = set()
    with farm.client() as client:
        worker = client.wait(
            partial(queue.worker, window=200), client.client, ["jobs"], lambda piece: done.add(piece.body),
            timeout=PATIENCE,
        )  # fmt: skip
        writer = client.write("queue", ["jobs"], timeout=PATIENCE)

        async def put() -> None:
            for number in range(5_000):
                await writer.writer.room()
                writer.writer.send(b"%d" % number)
            await writer.writer.settled()

        client.wait(put, timeout=PATIENCE)
        until(lambda: len(done) == 5_000)
        assert (worker.missed, worker.counts, writer.writer.counts) == (0, {}, {})


# restarts


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("farm", ['[[mtl.queues]]\nqueues = ["jobs"]\ndurable = true'], indirect=True)
def test_a_restart_in_the_middle_is_survived_by_everything(farm: Farm, how: signal.Signals) -> None:
    events: list[Event] = []
    done: list[bytes] = []
    changes: list[tuple[str, str]] = []

    def told(event: Event, why: str) -> None:
        events.append(event)

    with farm.client() as client, farm.client() as other:
        client.wait(
            partial(queue.worker, on_event=told), client.client, ["jobs"], lambda piece: done.append(piece.body),
            timeout=PATIENCE,
        )  # fmt: skip
        writer = other.write("queue", ["jobs"], timeout=PATIENCE)
        offer = other.wait(registry.offer, other.client, "bank", "h:1", timeout=PATIENCE)
        view = client.wait(
            registry.services, client.client, "bank", lambda event, entry: changes.append((event, entry.name)),
            timeout=PATIENCE,
        )  # fmt: skip
        for number in range(50):
            writer.post(b"%d" % number, timeout=PATIENCE)
        farm.stop(how)
        for number in range(50, 100):
            writer.post(b"%d" % number, timeout=PATIENCE)
        farm.start()
        writer.flush(PATIENCE)
        until(lambda: set(done) == {b"%d" % number for number in range(100)})
        until(lambda: events == [Event.LOST, Event.BACK])
        until(lambda: view.synced and [entry.name for entry in view.entries.values()] == ["bank"])
        assert offer.writer.up
        # both began with Open again
        assert (client.client.sessions, other.client.sessions) == (2, 2)
        assert changes[0] == ("up", "bank")
        assert changes[-1] in (("up", "bank"), ("update", "bank"))


def test_a_call_that_may_be_done_twice_survives_a_restart(farm: Farm) -> None:
    begun = threading.Event()
    go_on = threading.Event()

    def serve(request: Delivery) -> bytes:
        begun.set()
        if request.number("delivery-count") and not go_on.is_set():
            raise NotTaken(recycle=True)
        return b"done"

    with farm.client() as client, farm.client() as other:
        client.wait(service.worker, client.client, "slow", serve, timeout=PATIENCE)
        caller = other.wait(service.caller, other.client, timeout=PATIENCE)
        results: list[bytes] = []

        def call() -> None:
            results.append(other.wait(partial(caller.call, retry=True), "slow", b"x").body)

        thread = threading.Thread(target=call)
        thread.start()
        assert begun.wait(PATIENCE)
        farm.stop()
        go_on.set()
        farm.start()
        thread.join(PATIENCE)
        assert results == [b"done"]


def test_a_client_that_comes_before_the_broker(farm: Farm) -> None:
    farm.stop()
    contents: list[Content] = []
    # However long the broker takes to start.
    with Client(farm.places[0], settings=attrs.evolve(QUICK, first_contact=None)) as client:

        def read() -> None:
            contents.append(client.read("queue", ["jobs"], confirm="full", timeout=PATIENCE).take())

        thread = threading.Thread(target=read)
        thread.start()
        with pytest.raises(TimeoutError):
            client.open(0.5)
        farm.start()
        client.write("queue", ["jobs"], timeout=PATIENCE).send(b"x", timeout=PATIENCE)
        thread.join(PATIENCE)
        assert [content.body for content in contents] == [b"x"]


# the examples


def example(farm: Farm, name: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / name), "--broker", farm.places[0], *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said(program: subprocess.Popen[str], pattern: str) -> None:
    """Wait for a line of a program."""
    assert program.stdout is not None
    lines = []
    for line in program.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return
    raise AssertionError(f"no line matches {pattern!r} in {lines}")


def end(program: subprocess.Popen[str]) -> None:
    """Interrupt it, as at the keyboard; it must end in good order.

    Python drops an interrupt that arrives in a finalizer, and a user would press the keys again.
    """
    until(lambda: _interrupted(program))
    out, _ = program.communicate()
    assert "Traceback" not in out


def _interrupted(program: subprocess.Popen[str]) -> bool:
    program.send_signal(signal.SIGINT)
    try:
        program.wait(AGAIN)
    except subprocess.TimeoutExpired:
        return False
    return True


AGAIN = 10.0
"""Seconds from one interrupt to the next: longer than an end in good order takes."""


@pytest.mark.long
def test_the_example_of_a_queue(farm: Farm) -> None:
    worker = example(farm, "mtl_jobs.py", "work")
    said(worker, "waiting for work")
    giver = example(farm, "mtl_jobs.py", "put", "dig a hole", "fill it")
    said(giver, "2 pieces are in the queue")
    assert giver.wait(PATIENCE) == 0
    said(worker, "^working on: dig a hole$")
    said(worker, "^working on: fill it$")
    end(worker)


@pytest.mark.long
def test_the_example_of_the_farm(farm: Farm) -> None:
    watcher = example(farm, "mtl_farm.py", "--service", "bank")
    said(watcher, "watching the farm: 0 services")
    with farm.client() as client:
        offer = client.wait(registry.offer, client.client, "bank", "h:1", timeout=PATIENCE)
        said(watcher, r"^\+ bank at h:1 \(provider \d+\)$")
        client.wait(offer.withdraw, timeout=PATIENCE)
        said(watcher, r"^- bank at h:1")
        farm.restart()
        said(watcher, "the broker is away: ")
        said(watcher, "the broker is back")
    end(watcher)
