"""The client in an asyncio event loop, over real sockets and over the fake: no thread, no global reactor."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zmq

from broker.client.asyncio_client import Client
from broker.client.credentials import Password
from broker.client.errors import AuthenticationFailed, Closed, NotTaken
from broker.client.mtl import Delivery, Settings
from broker.client.profiles import queue, registry, service
from broker.client.profiles.service import RequestFailed
from broker.client.testing import FakeBroker
from tests.access.users import ACCESS
from tests.client.farm import QUICK, Farm
from tests.patience import PATIENCE

USERS = "plain = true" + ACCESS

Make = Callable[..., Client]


@pytest.fixture(scope="module", params=["fake", "daemon"])
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """A function that makes a client, of a broker that knows the user anna."""
    if request.param == "fake":
        fake = FakeBroker({"anna": "pencil"})
        yield fake.asyncio_client
        return
    farm = Farm(tmp_path_factory.mktemp("farm"), USERS)
    farm.password("anna", "pencil")
    farm.start()
    yield lambda *arguments, **more: Client(farm.places[0], *arguments, settings=QUICK, **more)
    farm.stop()


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(coroutine, PATIENCE)

    asyncio.run(limited())


ANNA = Password("anna", "pencil")


@pytest.mark.parametrize("wrapped", [True, False], ids=["wrapped", "task"])
def test_work_is_done_by_coroutines_and_by_tasks_of_asyncio(make: Make, wrapped: bool) -> None:
    async def main() -> None:
        done: list[bytes] = []
        finished = asyncio.Event()
        failed = False

        async def work(piece: Delivery) -> None:
            nonlocal failed
            await asyncio.sleep(0)
            if piece.body == b"shy" and not failed:
                failed = True
                raise NotTaken(recycle=True)
            done.append(piece.body)
            if len(done) == 3:
                finished.set()

        async with make(ANNA) as client:
            writer = await client.wait(queue.writer, client.client, ["jobs"])
            for body in (b"1", b"shy", b"2"):
                await client.wait(queue.put, writer, "jobs", body)
            handler = client.handler(work) if wrapped else lambda piece: asyncio.ensure_future(work(piece))
            worker = await client.wait(queue.worker, client.client, ["jobs"], handler)
            await finished.wait()
            await client.wait(worker.drain)
        assert sorted(done) == [b"1", b"2", b"shy"]

    run(main())


def test_services_and_the_registry(make: Make) -> None:
    async def main() -> None:
        async def serve(request: Delivery) -> bytes:
            await asyncio.sleep(0)
            if request.body == b"bad":
                raise NotTaken
            return request.body.upper()

        changes: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        async with make(ANNA) as client, make(ANNA) as other:
            await client.wait(
                registry.services,
                client.client,
                "echo",
                lambda event, entry: changes.put_nowait((event, entry.protocol)),
            )
            worker = await other.wait(service.worker, other.client, "echo", other.handler(serve))
            assert await changes.get() == ("up", "mtl")
            caller = await client.wait(service.caller, client.client, ["echo"])
            replies = await asyncio.gather(*(client.wait(caller.call, "echo", b"%d" % n + b"a") for n in range(3)))
            assert [reply.body for reply in replies] == [b"0A", b"1A", b"2A"]
            with pytest.raises(RequestFailed):
                await client.wait(caller.call, "echo", b"bad")
            worker.close()
            assert await changes.get() == ("down", "mtl")

    run(main())


def test_a_wrong_password(make: Make) -> None:
    async def main() -> None:
        async with make(Password("anna", "crayon")) as client:
            with pytest.raises(AuthenticationFailed):
                await client.wait(client.client.open)

    run(main())


def test_waiting_can_be_cancelled_and_ends_with_the_client() -> None:
    context: zmq.Context[Any] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    port = router.bind_to_random_port("tcp://127.0.0.1")

    async def main() -> None:
        async with Client(f"tcp://127.0.0.1:{port}", settings=Settings(timeout=PATIENCE)) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.wait(client.client.open), 0.05)
            opening: Awaitable[Any] = asyncio.ensure_future(client.wait(client.client.open))
            await asyncio.sleep(0)
            client.close()
            with pytest.raises(Closed):
                await opening

    try:
        run(main())
    finally:
        context.destroy(0)


def test_a_client_needs_no_thread_of_the_loops_own() -> None:
    # The program may hold all of them; and `asyncio.run` waits for them, for as long as a look-up of a name takes.
    fake = FakeBroker({"anna": "pencil"})
    end = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        held = loop.run_in_executor(None, end.wait)
        try:
            async with fake.asyncio_client(ANNA) as client:
                await asyncio.wait_for(client.wait(client.client.open), PATIENCE)
        finally:
            end.set()
        await held

    asyncio.run(main())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="there is no /proc/self/fd")
def test_a_client_uses_no_thread_and_leaves_no_descriptors_behind() -> None:
    fake = FakeBroker()

    async def use() -> None:
        async with fake.asyncio_client() as client:
            before = threading.active_count()
            writer = await client.wait(queue.writer, client.client, ["jobs"])
            await client.wait(queue.put, writer, "jobs", b"x")
            assert threading.active_count() == before

    run(use())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run(use())
    assert len(os.listdir("/proc/self/fd")) == before
    assert fake.queued("jobs") == [b"x"] * 4
