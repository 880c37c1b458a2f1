"""The client of plain HTTP: against real daemons, with fail-over, and against addresses where no broker is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from broker.client import http_services
from broker.client.errors import Refused, Unreachable
from broker.client.http_services import MAX_SERVERS, AsyncHttpClient, Change, HttpClient
from tests.client.test_wrong_address import server
from tests.integration.daemon import Daemon, environment
from tests.integration.http_api import ask
from tests.page.farm import configuration
from tests.patience import PATIENCE, until
from tests.ports import free_port


def url_of(daemon: Daemon) -> str:
    return f"http://127.0.0.1:{daemon.http_port()}"


def started(folder: Path, port: int = 0) -> Daemon:
    folder.mkdir(exist_ok=True)
    file = folder / "x.toml"
    text = configuration()
    file.write_text(text if not port else text.replace("[http]\n", "[http]\n", 1).replace(":0:", f":{port}:"))
    return Daemon(folder, "--config", str(file))


def test_an_offer_is_found_watched_renewed_and_withdrawn(tmp_path: Path) -> None:
    seen: list[Change] = []

    def events() -> list[str]:
        return [each.event for each in seen if each.event != "update"]

    with started(tmp_path) as daemon, HttpClient(url_of(daemon), timeout=PATIENCE) as client:
        assert client.find("bank") == []
        watching = threading.Thread(target=lambda: seen.extend(client.watch("bank")))
        watching.start()
        with client.offer("bank", "127.0.0.1:7000", ttl=3, load=0.5, zone="east", tags=["v2"]) as offer:
            until(lambda: events() == ["up"])
            assert "loopback" in offer.warnings[0]
            # A program that forgets to withdraw can end.
            assert [each.daemon for each in threading.enumerate() if each.name.startswith("offer ")] == [True]
            [found] = client.find("bank", filter='zone=east and "v2" in tags', near="load")
            assert (found["hostport"], found["load"], found["provider"]) == ("127.0.0.1:7000", 0.5, offer.provider)
            offer.load(0.75, requests=10)
            assert client.find("bank")[0]["load"] == 0.75
            # The broker forgets it, and the next renewal registers it again.
            first = offer.provider
            ask(daemon, "DELETE", "/v1/services/bank/127.0.0.1:7000", **{"Owner-Token": offer.token})
            until(lambda: offer.provider != first)
            until(lambda: events() == ["up", "down", "up"])
        until(lambda: events() == ["up", "down", "up", "down"])
        with pytest.raises(Refused, match="position 6"):
            client.find("bank", filter="zone=")
        client.close()
        watching.join(PATIENCE)
        assert not watching.is_alive()


def test_asyncio(tmp_path: Path) -> None:
    async def work(url: str) -> list[str]:
        async with AsyncHttpClient(url, timeout=PATIENCE) as client:
            offer = await client.offer("bank", "192.0.2.1:7000", ttl=PATIENCE)
            events: list[str] = []
            async for change in client.watch("bank"):
                events.append(change.event)
                if change.event == "down":
                    return events
                assert len(await client.find("bank")) == 1
                await asyncio.to_thread(offer.withdraw)
        return []

    with started(tmp_path) as daemon:
        assert asyncio.run(work(url_of(daemon))) == ["up", "down"]


def test_a_watch_for_asyncio_ends_its_thread(tmp_path: Path) -> None:
    # Its task is cancelled, or its loop is left; the client is not closed, and the program ends nevertheless.
    script = """
import asyncio, sys
from broker.client.http_services import AsyncHttpClient

async def main():
    client = AsyncHttpClient(sys.argv[1], timeout=60)
    await client.offer("bank", "192.0.2.1:7000")

    async def watch(seen):
        async for change in client.watch("bank"):
            seen.set()

    seen = asyncio.Event()
    watching = asyncio.create_task(watch(seen))
    await seen.wait()
    async for change in client.watch("bank"):
        break
    print(change.event)

asyncio.run(main())
"""
    with started(tmp_path) as daemon:
        command = [sys.executable, "-c", script, url_of(daemon)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "up\n"


def test_a_watch_holds_no_thread_of_asyncio(tmp_path: Path) -> None:
    async def work(url: str) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        client = AsyncHttpClient(url, timeout=PATIENCE)

        async def watch() -> list[Change]:
            return [change async for change in client.watch("bank")]

        watching = asyncio.ensure_future(watch())
        await asyncio.sleep(0)  # it begins
        try:
            assert await asyncio.wait_for(client.find("bank"), PATIENCE) == []
            await asyncio.wait_for(client.close(), PATIENCE)
        finally:
            client.client.close()
        assert await watching == []

    with started(tmp_path) as daemon:
        asyncio.run(work(url_of(daemon)))


class Meanwhile(HttpClient):
    """A client for which another thread does ``act`` just before the first request of a ``method``."""

    method = ""

    def act(self) -> None:
        """Do it."""

    def request(self, method: str, *arguments: Any, **more: Any) -> Any:
        if method == self.method:
            self.method = ""
            self.act()
        return super().request(method, *arguments, **more)


def test_an_offer_ends_with_its_client_or_withdrawal_during_a_request(tmp_path: Path) -> None:
    def ended(name: str) -> None:
        until(lambda: not any(each.name.startswith("offer ") for each in threading.enumerate()))
        assert HttpClient(url_of(daemon), timeout=PATIENCE).find(name) == []

    with started(tmp_path) as daemon:
        client = Meanwhile(url_of(daemon), timeout=PATIENCE)
        client.act, client.method = client.close, "PUT"  # type: ignore[method-assign]
        client.offer("bank", "192.0.2.1:7000", ttl=PATIENCE)
        ended("bank")
        client = Meanwhile(url_of(daemon), timeout=PATIENCE)
        offer = client.offer("shop", "192.0.2.1:7000", ttl=1)
        client.act, client.method = offer.withdraw, "POST"  # type: ignore[method-assign]
        until(lambda: not client.method)
        ended("shop")


def test_another_broker_is_used_when_one_is_away(tmp_path: Path) -> None:
    seen: list[Change] = []
    with started(tmp_path / "a") as first, started(tmp_path / "b") as second:
        with HttpClient([url_of(first), url_of(second)], timeout=PATIENCE) as client:
            watching = threading.Thread(target=lambda: seen.extend(client.watch("bank")))
            offer = client.offer("bank", "192.0.2.1:7000", ttl=1.5)
            watching.start()
            until(lambda: len(seen) == 1)
            first.process.kill()
            first.process.wait()
            until(lambda: ask(second, "GET", "/v1/services/bank")[1]["services"])
            assert client.find("bank")[0]["provider"] == offer.provider
            until(lambda: seen[-1].service["provider"] == offer.provider)
            assert client.urls[0] == url_of(second)
            assert offer.error is None
        watching.join(PATIENCE)


@contextlib.contextmanager
def answering(
    answer: Callable[[str, str, int], tuple[int, Any]],
    link: Callable[[int], str] = lambda count: "",
    received: Callable[[str, Message], object] = lambda method, headers: None,
) -> Iterator[str]:
    """A server whose answer, status and JSON, depends on the method, the last part of the path, and the number of such
    requests before. ``link`` makes its header Link from the number with this one. ``received`` gets the headers."""
    counts: Counter[tuple[str, str]] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            what = self.command, self.path.partition("?")[0].rpartition("/")[2]
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            received(self.command, self.headers)
            status, body = answer(*what, counts[what])
            counts[what] += 1
            self.send_response(status)
            self.send_header("Link", link(counts[what]))
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        do_PUT = do_POST = do_DELETE = do_GET

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()


REGISTERED = {"owner_token": "t", "provider": 7}


@pytest.mark.parametrize("status", [429, 500])
def test_an_offer_and_a_watch_outlast_a_refusal_that_passes(status: int) -> None:
    found = {"provider": 7, "protocol": "tcp", "hostport": "192.0.2.1:7000"}
    renewed = threading.Event()

    def answer(method: str, last: str, before: int) -> tuple[int, Any]:
        if method == "POST":
            if before == 1:
                renewed.set()
            return (status if before == 0 else 200), {}
        if method == "PUT":
            return 201, REGISTERED
        # Of a watch, first the stream is refused, and then the find.
        return (status if before == 0 else 200), {"services": [found]}

    with answering(answer) as url, HttpClient(url, timeout=PATIENCE) as client:
        assert next(client.watch("bank")) == ("up", found)
        offer = client.offer("bank", "192.0.2.1:7000", ttl=0.1)
        assert renewed.wait(PATIENCE)
        assert offer.error is None


def test_a_watch_leaves_a_broker_that_does_not_answer_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_services, "SILENCE", 10 * PATIENCE)
    found = {"provider": 7, "protocol": "tcp", "hostport": "192.0.2.1:7000"}
    end = threading.Event()

    def silent(method: str, last: str, before: int) -> tuple[int, Any]:
        end.wait(PATIENCE)
        return 200, {"services": []}

    with answering(silent) as first, answering(lambda *_: (200, {"services": [found]})) as second:
        with HttpClient([first, second], timeout=0.5) as client:
            seen: list[Change] = []
            watching = threading.Thread(target=lambda: seen.extend(client.watch("bank")), daemon=True)
            watching.start()
            until(lambda: [change.event for change in seen] == ["up"])
        end.set()
        watching.join(PATIENCE)


def test_an_offer_that_is_cancelled_during_its_registration_is_not_renewed() -> None:
    arrived, go_on = threading.Event(), threading.Event()
    methods: list[str] = []

    def answer(method: str, last: str, before: int) -> tuple[int, Any]:
        methods.append(method)
        if not arrived.is_set():
            arrived.set()
            go_on.wait(PATIENCE)
        return 200, REGISTERED

    async def work(url: str) -> None:
        async with AsyncHttpClient(url, timeout=PATIENCE) as client:
            offering = asyncio.ensure_future(client.offer("bank", "192.0.2.1:7000", ttl=PATIENCE))
            await asyncio.to_thread(arrived.wait, PATIENCE)
            offering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await offering
            again = await client.offer("bank", "192.0.2.1:7000", ttl=PATIENCE)
            go_on.set()
            await asyncio.to_thread(client._threads.shutdown)  # all calls have ended
            until(lambda: threads() == 1)
            assert methods == ["PUT", "PUT"]
            await asyncio.to_thread(again.withdraw)
            until(lambda: threads() == 0)
            assert methods == ["PUT", "PUT", "DELETE"]

    def threads() -> int:
        return sum(each.name.startswith("offer ") for each in threading.enumerate())

    with answering(answer) as url:
        asyncio.run(work(url))


def test_the_owner_token_is_sent_with_each_request_after_the_registration() -> None:
    """It lets the offer be renewed and withdrawn from another address of this machine."""
    tokens: dict[str, str | None] = {}

    def answer(method: str, last: str, before: int) -> tuple[int, Any]:
        return (201, REGISTERED) if method == "PUT" else (200, {})

    def received(method: str, headers: Message) -> None:
        tokens[method] = headers["Owner-Token"]

    with answering(answer, received=received) as url, HttpClient(url, timeout=PATIENCE) as client:
        with client.offer("bank", "192.0.2.1:7000", ttl=10 * PATIENCE) as offer:
            offer.load(0.5)
        assert tokens == {"PUT": None, "POST": "t", "DELETE": "t"}


def test_an_offer_that_cannot_be_renewed_has_its_error() -> None:
    def answer(method: str, last: str, before: int) -> tuple[int, Any]:
        return (201, REGISTERED) if method == "PUT" else (403, {})

    with answering(answer) as url, HttpClient(url, timeout=PATIENCE) as client:
        offer = client.offer("bank", "192.0.2.1:7000", ttl=0.1)
        until(lambda: isinstance(offer.error, Refused))
        until(lambda: not client._offers)  # else a program that offers again and again would keep them all


@pytest.mark.parametrize("other", [{}, [], None, {"services": 3, "owner_token": 3, "provider": 3}])
def test_an_answer_that_no_broker_gives_counts_as_none(other: object) -> None:
    """As of another server at the address, for example while the broker is replaced."""
    found = {"provider": 7, "protocol": "tcp", "hostport": "192.0.2.1:7000"}
    again = threading.Event()

    def answer(method: str, last: str, before: int) -> tuple[int, Any]:
        if method == "POST":
            return 404, {}
        if method == "PUT":
            if before == 2:
                again.set()
            return 201, other if before == 1 else REGISTERED
        return 200, other if before < 2 else {"services": [found]}

    with answering(answer) as url, HttpClient(url, timeout=PATIENCE) as client:
        with pytest.raises(Unreachable, match=f"{url}: the server is no broker: its answer 200 has no services"):
            client.find("bank")
        assert next(client.watch("bank")) == ("up", found)
        offer = client.offer("bank", "192.0.2.1:7000", ttl=0.1)
        assert again.wait(PATIENCE)
        assert offer.error is None


def test_a_load_registers_an_offer_again_that_the_broker_does_not_know(tmp_path: Path) -> None:
    with started(tmp_path) as daemon, HttpClient(url_of(daemon), timeout=PATIENCE) as client:
        offer = client.offer("bank", "192.0.2.1:7000", ttl=10 * PATIENCE)
        ask(daemon, "DELETE", "/v1/services/bank/192.0.2.1:7000", **{"Owner-Token": offer.token})
        offer.load(0.75, requests=10)
        assert client.find("bank")[0]["load"] == 0.75
        offer.withdraw()
        with pytest.raises(Refused, match="404"):
            offer.load(0.5)
        assert client.find("bank") == []


def test_a_withdrawal_reaches_the_broker_where_the_offer_is(tmp_path: Path) -> None:
    with started(tmp_path / "a") as first, started(tmp_path / "b") as second:
        client = HttpClient([url_of(first), url_of(second)], timeout=PATIENCE)
        offer = client.offer("bank", "192.0.2.1:7000", ttl=10 * PATIENCE)
        client.urls.reverse()  # as after a request that the first one did not answer in time
        offer.withdraw()
        assert ask(first, "GET", "/v1/services/bank")[1]["services"] == []


def test_brokers_that_no_answer_names_any_more_are_forgotten() -> None:
    def named(count: int) -> str:
        return ", ".join(f'<http://192.0.2.1:{7_000 + count}/{number}/>; rel="alternate"' for number in range(60))

    with answering(lambda *_: (200, {"services": []}), named) as url, HttpClient(url, timeout=PATIENCE) as client:
        for _ in range(4):
            assert client.find("bank") == []
        assert client.urls[0] == url
        assert len(client.urls) <= 1 + MAX_SERVERS
        assert f"http://192.0.2.1:{7_000 + 4}/59" in client.urls


def test_the_only_broker_is_not_missing_while_another_thread_uses_the_next_one() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    client = HttpClient(url)
    ended = threading.Event()

    def turn() -> None:
        while not ended.is_set():
            client._next(url)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    turning = [threading.Thread(target=turn) for _ in range(3)]
    try:
        for each in turning:
            each.start()
        missing = sum(list(client.urls) != [url] for _ in range(200_000))
    finally:
        ended.set()
        sys.setswitchinterval(interval)
        for each in turning:
            each.join()
    assert missing == 0


def test_a_wrong_address_is_named_with_its_cause() -> None:
    refused = f"http://127.0.0.1:{free_port()}"
    with server(b"220 mail.example ESMTP\r\n") as mail, server(b"HTTP/1.1 200 OK\r\n\r\n<html>") as page:
        others = [each.replace("tcp:", "http:") for each in (mail, page)]
        tls = mail.replace("tcp:", "https:")
        client = HttpClient([refused, "http://no-such-host.invalid", *others, tls])
        with pytest.raises(Unreachable) as caught:
            client.offer("bank", "192.0.2.1:80")
    text = str(caught.value)
    assert f"{refused}: Connection refused" in text
    assert "no-such-host.invalid: the name of the host cannot be looked up" in text
    assert f"{others[0]}: the server does not speak HTTP" in text
    assert f"{others[1]}: the server is no broker: its answer 200 is no JSON" in text
    assert f"{tls}: TLS: wrong version number" in text
    wrong: list[str | list[str]] = ["tcp://127.0.0.1:5975", "127.0.0.1", []]
    for url in wrong:
        with pytest.raises(ValueError, match="URL of a broker"):
            HttpClient(url)


def test_it_needs_neither_zeromq_nor_twisted() -> None:
    script = "import sys, broker.client.http_services; print(*sorted(sys.modules), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert not {"zmq", "twisted", "txzmq", "msgspec"} & set(done.stdout.split())
