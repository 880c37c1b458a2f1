"""The blocking client: calls from any thread, handlers in threads of the program, and the end of all calls at close.

The file is longer than others: it has all tests of `broker.client.blocking`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from broker.client.blocking import Change, Client, Content, Reader, Request, Watch
from broker.client.credentials import Password
from broker.client.errors import Closed, NotTaken, Refused, Rejected
from broker.client.profiles import registry, service
from broker.client.reactor_thread import ReactorThread
from broker.client.settings import Event
from broker.client.testing import FakeBroker
from broker.wires.mtl.codec import data_messages
from broker.wires.mtl.codec.field_table import decode
from tests.client.scripted import FORBIDDEN, QUICK, ScriptedBroker, unauthorized
from tests.client.test_control_flow import Scram
from tests.patience import PATIENCE, until

FAST = attrs.evolve(QUICK, heartbeat=0.05)


class Stand:
    """A scripted broker in a thread of its own, and clients of it."""

    def __init__(self) -> None:
        self.loop = ReactorThread()
        self.loop.start()
        self.broker: ScriptedBroker = self.loop.call(ScriptedBroker, self.loop.reactor)

    def client(self, *arguments: Any, settings: Any = FAST) -> Client:
        return Client(self.broker.endpoint, *arguments, settings=settings)

    def give(self, *bodies: bytes) -> None:
        for body in bodies:
            self.loop.call(self.broker.give, "jobs", body)

    def answers(self, count: int) -> list[Any]:
        """Outcomes that clients gave to Contents."""

        def answers() -> list[Any]:
            return [
                command
                for command in self.broker.commands
                if isinstance(command, data_messages.Confirm | data_messages.Reject)
            ]

        until(lambda: len(answers()) >= count)
        return answers()

    def close(self) -> None:
        self.loop.call(self.broker.close)
        self.loop.stop()
        assert self.broker.wrong == []


@pytest.fixture
def stand() -> Iterator[Stand]:
    stand = Stand()
    yield stand
    stand.close()


@contextmanager
def jobs(stand: Stand, **more: Any) -> Iterator[tuple[Client, Reader]]:
    with stand.client() as client:
        yield client, client.read("queue", ["jobs"], timeout=PATIENCE, **{"confirm": "full", **more})


# being let in


def test_being_let_in_with_a_password(stand: Stand) -> None:
    stand.broker.answers["Open"] = lambda members: unauthorized("SCRAM-SHA-256")
    stand.broker.answers["Authorize"] = Scram()
    with stand.client(Password("anna", "pencil")) as client:
        assert "queue" in client.open(PATIENCE).profiles


def test_what_is_refused_is_raised(stand: Stand) -> None:
    stand.broker.answers["Writer"] = lambda members: FORBIDDEN
    with stand.client() as client, pytest.raises(Refused, match="not yours"):
        client.write("queue", ["jobs"], timeout=PATIENCE)


def test_a_broker_that_does_not_answer(stand: Stand) -> None:
    stand.broker.mute = True
    with stand.client() as client:
        with pytest.raises(TimeoutError):
            client.open(0.05)
        with pytest.raises(TimeoutError):
            client.read("queue", ["jobs"], timeout=0.05)
        with pytest.raises(TimeoutError):
            client.write("queue", ["jobs"], timeout=0.05)
        # what was given up leaves nothing behind
        assert client.client._flows == {}
        stand.broker.mute = False
        client.open(PATIENCE)


# reading


def test_contents_one_after_the_other(stand: Stand) -> None:
    with jobs(stand) as (_, reader):
        stand.give(b"1", b"2", b"3")
        first, second, third = (reader.take(PATIENCE) for _ in range(3))
        assert (first.body, first.resource, first.properties, third.body) == (b"1", "jobs", {}, b"3")
        second.confirm()
        first.reject(recycle=True)
        second.reject(recycle=False)
        assert stand.answers(2) == [data_messages.Confirm(2, False), data_messages.Reject(1, False, True)]
        with pytest.raises(TimeoutError):
            reader.take(0.05)
    # the third was never answered, and is given back when the client closes
    assert stand.answers(3)[2] == data_messages.Reject(3, True, True)


def test_work_is_answered_by_what_becomes_of_it(stand: Stand) -> None:
    done: list[bytes] = []

    def work(content: Content) -> None:
        done.append(content.body)
        if content.body == b"fails":
            raise RuntimeError
        if content.body == b"poison":
            raise NotTaken
        if content.body == b"last":
            reader.close()

    with jobs(stand) as (_, reader):
        stand.give(b"good", b"fails", b"poison", b"last")
        reader.work(work)
        with pytest.raises(Closed):
            reader.take()
    assert done == [b"good", b"fails", b"poison", b"last"]
    answers = stand.answers(4)
    assert answers[:3] == [
        data_messages.Confirm(1, False),
        data_messages.Reject(2, False, True),
        data_messages.Reject(3, False, False),
    ]
    # it was closed before it was done with the last one
    assert answers[3] == data_messages.Reject(4, True, True)


def test_a_coroutine_that_nothing_runs_is_no_work_done(stand: Stand) -> None:
    async def work() -> None: ...

    def begin(content: Content) -> object:
        reader.drain()
        return never

    never = work()
    with jobs(stand) as (_, reader):
        stand.give(b"x")
        reader.work(begin)
    never.close()
    assert stand.answers(1) == [data_messages.Reject(1, False, True)]


def test_what_is_not_confirmed_waits_until_it_is_taken(stand: Stand) -> None:
    with jobs(stand, confirm="none") as (_, reader):
        stand.give(*(b"%d" % number for number in range(300)))
        assert [reader.take(PATIENCE).body for _ in range(300)] == [b"%d" % number for number in range(300)]
        until(lambda: reader.reader.busy == 0)
        assert reader.reader.missed == 0
    assert stand.answers(0) == []


def test_many_that_are_not_taken_are_not_received(stand: Stand) -> None:
    with stand.client(settings=attrs.evolve(FAST, pending=5)) as client:
        reader = client.read("queue", ["jobs"], confirm="none", timeout=PATIENCE)
        stand.give(*(b"%d" % number for number in range(100)))
        until(lambda: reader.reader.busy == 6)
        assert reader._contents.qsize() <= 6
        for number in range(100):
            assert reader.take(PATIENCE).body == b"%d" % number


def test_a_restart_in_the_middle_is_not_noticed_but_for_what_comes_twice(stand: Stand) -> None:
    events: list[str] = []
    with jobs(stand, on_event=lambda event, why: events.append(event.value)) as (client, reader):
        stand.give(b"1", b"2")
        first = reader.take(PATIENCE)
        stand.loop.call(stand.broker.restart)
        until(lambda: events == ["lost", "back"])
        first.confirm()
        stand.give(b"1", b"2")
        # the second one of before is not given to the program: an answer to it would mean nothing
        for body in (b"1", b"2"):
            content = reader.take(PATIENCE)
            assert content.body == body
            content.confirm()
        assert stand.answers(2) == [data_messages.Confirm(1, False), data_messages.Confirm(2, False)]
        assert client.client.sessions == 2


def test_what_ends_a_flow_for_good_is_raised_again_and_again(stand: Stand) -> None:
    with jobs(stand) as (_, reader):
        stand.broker.answers["Reader"] = lambda members: FORBIDDEN
        stand.loop.call(stand.broker.leased.clear)
        for _ in range(3):
            with pytest.raises(Refused):
                reader.take(PATIENCE)
        with pytest.raises(Refused):
            list(reader)


# writing


def test_sending_waits_for_the_confirm(stand: Stand) -> None:
    with stand.client() as client:
        writer = client.write("queue", ["jobs", "more"], timeout=PATIENCE)
        writer.send(b"x", "jobs", {"a": 1}, timeout=PATIENCE)
        stand.broker.answers["Content"] = lambda identity, command: None
        with pytest.raises(TimeoutError):
            writer.send(b"y", "jobs", timeout=0.05)
        with pytest.raises(ValueError, match="must name"):
            writer.send(b"z")
        stand.broker.answers["Content"] = lambda identity, command: stand.broker.say(
            identity, data_messages.reject(command.sequence)
        )
        with pytest.raises(Rejected):
            writer.send(b"z", "jobs", timeout=PATIENCE)
        writer.close()
        with pytest.raises(Closed):
            writer.send(b"z", "jobs", timeout=PATIENCE)


def test_posting_waits_for_room_only_and_flushing_for_all(stand: Stand) -> None:
    with stand.client(settings=attrs.evolve(FAST, window=10)) as client:
        writer = client.write("queue", ["jobs"], timeout=PATIENCE)
        for number in range(100):
            writer.post(b"%d" % number, timeout=PATIENCE)
        writer.flush(PATIENCE)
        contents = stand.broker.of(data_messages.Content)
        assert [bytes(content.body) for content in contents] == [b"%d" % number for number in range(100)]
        stand.broker.answers["Content"] = lambda identity, command: stand.broker.say(
            identity, data_messages.reject(command.sequence)
        )
        writer.post(b"x", timeout=PATIENCE)
        writer.post(b"y", timeout=PATIENCE)
        with pytest.raises(Rejected):
            writer.flush(PATIENCE)
        writer.flush(PATIENCE)


def test_a_restart_in_the_middle_loses_nothing(stand: Stand) -> None:
    with stand.client() as client:
        writer = client.write("queue", ["jobs"], timeout=PATIENCE)
        stand.broker.answers["Content"] = lambda identity, command: None
        writer.post(b"x", timeout=PATIENCE)
        until(lambda: stand.broker.of(data_messages.Content))
        stand.loop.call(stand.broker.stop)
        del stand.broker.answers["Content"]
        writer.post(b"y", timeout=PATIENCE)
        stand.loop.call(stand.broker.start)
        writer.flush(PATIENCE)
        bodies = [bytes(content.body) for content in stand.broker.of(data_messages.Content)]
        # the second one may have been on its way already when the broker came back, without a lease
        assert (bodies[0], bodies[-2:]) == (b"x", [b"x", b"y"])


# services


def test_a_handler_may_block_for_longer_than_the_limit_of_silence(stand: Stand) -> None:
    events: list[str] = []
    # On a busy machine a thread may wait for some tenths of a second: that is no silence of the broker.
    settings = attrs.evolve(FAST, heartbeat=0.25)
    with stand.client(settings=settings) as client:
        worker = client.serve("bank", on_event=lambda event, why: events.append(event.value), timeout=PATIENCE)

        def serve(request: Request) -> bytes:
            # The broker receives the heartbeats of several times the limit while the handler blocks its thread.
            before = len(stand.broker.of(data_messages.Ping))
            until(lambda: len(stand.broker.of(data_messages.Ping)) - before > 4 * FAST.dead_after)
            worker.drain()
            return b"late"

        stand.broker.answers["Content"] = lambda identity, command: stand.broker.say(
            identity, data_messages.confirm(command.sequence)
        )
        stand.loop.call(stand.broker.give, "service/bank", b"", reply_to="reply/x")
        worker.work(serve)
        assert events == []
        assert client.client.sessions == 1


def test_requests_are_replied_to_rejected_and_returned(stand: Stand) -> None:
    replies: list[tuple[bytes, Any]] = []

    def content(identity: bytes, command: data_messages.Content) -> None:
        replies.append((bytes(command.body), decode(command.table)["reply-to"]))
        stand.broker.say(identity, data_messages.confirm(command.sequence))

    stand.broker.answers["Content"] = content
    with stand.client() as client:
        worker = client.serve("bank", window=7, timeout=PATIENCE)
        for number in range(5):
            stand.loop.call(stand.broker.give, "service/bank", b"%d" % number, reply_to="reply/x")
        requests = [worker.take(PATIENCE) for _ in range(5)]
        requests[0].reply(b"zero")
        requests[0].reply(b"again")
        requests[1].reject(recycle=True)
        requests[2].reject(recycle=False)
        requests[3].confirm()
        answers = stand.answers(4)
        # A request is confirmed when the broker has confirmed its reply: before or after the rejects.
        rejects = [answer for answer in answers if isinstance(answer, data_messages.Reject)]
        assert rejects == [data_messages.Reject(2, False, True), data_messages.Reject(3, False, False)]
        assert set(answers) - set(rejects) == {data_messages.Confirm(1, False), data_messages.Confirm(4, False)}
        assert replies == [(b"zero", "reply/x"), (b"", "reply/x")]
    # the last one was never answered
    assert stand.answers(5)[4] == data_messages.Reject(5, True, True)
    asked = [members for command, members in stand.broker.requests if command == "Connection.Reader"]
    assert asked[0]["window"] == 7


def test_a_request_of_a_lost_flow_is_not_replied_to_when_it_is_passed_over(stand: Stand) -> None:
    replies: list[bytes] = []

    def content(identity: bytes, command: data_messages.Content) -> None:
        replies.append(bytes(command.body))
        stand.broker.say(identity, data_messages.confirm(command.sequence))

    stand.broker.answers["Content"] = content
    with stand.client() as client:
        worker = client.serve("bank", timeout=PATIENCE)
        stand.loop.call(stand.broker.give, "service/bank", b"first", reply_to="reply/x")
        until(lambda: worker.worker.reader.busy == 1)
        stand.loop.call(stand.broker.leased.clear)
        until(lambda: worker.worker.reader.generation == 2 and worker.worker.reader.up)
        stand.loop.call(stand.broker.give, "service/bank", b"second", reply_to="reply/x")
        request = worker.take(PATIENCE)
        assert request.body == b"second"
        request.reply(b"done")
        stand.answers(1)
        assert replies == [b"done"]


def test_the_time_limit_of_the_settings_is_that_of_requests_loads_and_withdrawals(stand: Stand) -> None:
    with stand.client(settings=attrs.evolve(FAST, call_timeout=0.05)) as client:
        caller, offer = client.caller(timeout=PATIENCE), client.offer("bank", "h:1", load=0.1, timeout=PATIENCE)
        worker = client.serve("bank", loads=True, timeout=PATIENCE)
        stand.broker.answers["Content"] = lambda identity, command: None  # it responds to nothing any more
        for call in (
            lambda: caller.call("bank", b""),
            lambda: offer.load(0.5),
            lambda: worker.load(0.5),
            offer.withdraw,
        ):
            with pytest.raises(TimeoutError):
                call()
        assert decode(stand.broker.of(data_messages.Content)[2].table)["ttl"] == 50
        # The end of its flow withdraws an offer, too.
        assert client.wait(lambda: offer.offer.writer.flow.closed)


def test_several_threads_serve_one_service(stand: Stand) -> None:
    inside = threading.Barrier(3)

    def serve(request: Request) -> bytes:
        inside.wait(PATIENCE)  # passed only if three requests are served at the same time
        return b""

    stand.broker.answers["Content"] = lambda identity, command: stand.broker.say(
        identity, data_messages.confirm(command.sequence)
    )
    with ThreadPoolExecutor(3) as threads, stand.client() as client:
        worker = client.serve("bank", timeout=PATIENCE)
        working = [threads.submit(worker.work, serve) for _ in range(3)]
        for _ in range(3):
            stand.loop.call(stand.broker.give, "service/bank", b"", reply_to="reply/x")
        assert set(stand.answers(3)) == {data_messages.Confirm(number, False) for number in (1, 2, 3)}
        worker.close()
        for each in working:
            each.result(PATIENCE)


# watches


def test_changes_that_wait_are_merged() -> None:
    watch = Watch(ReactorThread())
    one, two, moved = (registry.Service("bank", place, "tcp", 1) for place in ("h:1", "h:2", "h:3"))
    other = registry.Service("shop", "h:1", "tcp", 2)
    watch.changed("up", one)
    watch.changed("up", other)
    watch.changed("update", two)
    assert watch.take() == Change("up", two)
    watch.changed("down", other)
    watch.changed("down", two)
    watch.changed("up", moved)
    assert watch.take() == Change("update", moved)
    with pytest.raises(TimeoutError):
        watch.take(0)


def test_a_watch_ends_with_its_client() -> None:
    with FakeBroker().blocking_client() as client:
        watch = client.watch(timeout=PATIENCE)
        changes: list[Any] = []
        thread = threading.Thread(target=lambda: changes.extend(watch))
        thread.start()
        client.offer("bank", "h:1", timeout=PATIENCE)
        until(lambda: changes)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    # The offer of the same client may go before the watch, or after it.
    assert [change.event for change in changes] in (["up"], ["up", "down"])


def test_an_offer_has_all_descriptive_members() -> None:
    more: dict[str, Any] = {"label": "a bank", "zone": "east", "tags": ("v2",), "meta": {"owner": "anna"}}
    with FakeBroker().blocking_client() as client:
        client.offer("bank", "h:1", protocol="http", **more)
        client.offer("bank", "h:2", zone="west")
        [found] = client.services("bank", filter='zone=east and "v2" in tags')
    assert found == registry.Service("bank", "h:1", "http", found.provider, **more)


# everything else


def test_a_look_at_the_services(stand: Stand) -> None:
    def summoned(identity: bytes, command: data_messages.Summon) -> Any:
        def tell() -> None:
            stand.broker.give(command.resource, b'{"service": "bank", "hostport": "h:1"}', event="snapshot", provider=3)
            stand.broker.give(command.resource, event="synced")

        stand.broker.reactor.callLater(0, tell)
        return ...

    stand.broker.answers["Summon"] = summoned
    with stand.client() as client:
        assert client.services(timeout=PATIENCE) == [registry.Service("bank", "h:1", "tcp", 3)]
        client.services("bank", timeout=PATIENCE)
    assert [summon.resource for summon in stand.broker.of(data_messages.Summon)] == ["services", "service/bank"]


def test_all_that_there_is_for_programs_with_a_reactor(stand: Stand) -> None:
    with stand.client() as client:
        stand.broker.more = {"reply": "reply/x"}
        caller = client.wait(service.caller, client.client, ["bank"], timeout=PATIENCE)

        def answer(identity: bytes, command: data_messages.Content) -> None:
            stand.broker.say(identity, data_messages.confirm(command.sequence))
            stand.broker.give("reply", bytes(command.body).upper(), correlation_id="1")

        stand.broker.answers["Content"] = answer
        assert client.wait(caller.call, "bank", b"hello").body == b"HELLO"


def test_many_threads(stand: Stand) -> None:
    with stand.client() as client:
        writer = client.write("queue", ["jobs"], timeout=PATIENCE)

        def send(number: int) -> None:
            writer.send(b"%d" % number, timeout=PATIENCE)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(send, range(200)))
    assert {bytes(content.body) for content in stand.broker.of(data_messages.Content)} == {
        b"%d" % n for n in range(200)
    }


def test_nobody_waits_for_a_client_that_was_closed(stand: Stand) -> None:
    client = stand.client()
    reader = client.read("queue", ["jobs"], confirm="full", timeout=PATIENCE)
    outcomes: list[Any] = []
    begun = threading.Barrier(4)

    def wait(function: Callable[..., Any], *arguments: Any) -> None:
        begun.wait()
        try:
            outcomes.append(function(*arguments))
        except Exception as error:
            outcomes.append(error)

    never: Deferred[None] = Deferred(lambda _: None)
    threads = [
        threading.Thread(target=wait, args=arguments)
        for arguments in ((reader.take,), (list, reader), (client.wait, lambda: never))
    ]
    for thread in threads:
        thread.start()
    begun.wait()
    client.close()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Closed", "Closed", "list"]
    for late in (client.open, lambda: client.wait(len, []), lambda: client.read("queue", ["jobs"])):
        with pytest.raises(Closed):
            late()
    client.close()


def test_a_call_in_the_clients_own_thread_does_not_wait_for_itself() -> None:
    broker = FakeBroker()
    refused: list[str] = []
    with broker.blocking_client() as client:

        def on_event(event: Event, why: str) -> None:
            for call in (client.services, client.open, writer.flush, lambda: client.wait(int), client.close):
                with pytest.raises(RuntimeError):
                    call()
            reader.drain()
            refused.append(event.value)

        writer = client.write("queue", ["jobs"])
        reader = client.read("queue", ["jobs"], on_event=on_event)
        broker.restart()
        assert list(reader) == []  # it is drained
        assert refused == ["lost"]
        assert client.services() == []


def test_a_client_leaves_no_descriptors_and_no_threads_behind(stand: Stand) -> None:
    def there() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    def use() -> None:
        with stand.client() as client:
            client.write("queue", ["jobs"], timeout=PATIENCE).send(b"x", timeout=PATIENCE)

    use()
    before = there()
    for _ in range(3):
        use()
    # libzmq closes what it has a moment later
    until(lambda: there() <= before)


# the loop


@pytest.fixture
def loop() -> Iterator[ReactorThread]:
    loop = ReactorThread()
    loop.start()
    yield loop
    loop.stop()


def test_a_call_gives_what_the_function_the_deferred_or_the_coroutine_gives(loop: ReactorThread) -> None:
    async def coroutine(value: int) -> int:
        await deferLater(loop.reactor, 0)
        return value

    assert loop.call(lambda a, b: a + b, 1, b=2) == 3
    assert loop.call(deferLater, loop.reactor, 0, lambda: 4) == 4
    assert loop.call(coroutine, 5) == 5
    with pytest.raises(ZeroDivisionError):
        loop.call(lambda: 1 // 0)
    assert loop.call(threading.get_ident) != threading.get_ident()


def test_what_takes_too_long_is_cancelled(loop: ReactorThread) -> None:
    cancelled = threading.Event()
    with pytest.raises(TimeoutError, match="more than"):
        loop.call(lambda: Deferred(lambda _: cancelled.set()), timeout=0.01)
    assert cancelled.is_set()


def test_a_timeout_of_the_function_itself_is_its_own(loop: ReactorThread) -> None:
    def late() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        loop.call(late, timeout=PATIENCE)


def test_a_result_that_comes_in_the_last_moment_counts(loop: ReactorThread) -> None:
    result: Deferred[str] = Deferred(lambda deferred: deferred.callback("just so"))
    assert loop.call(lambda: result, timeout=0.01) == "just so"


def test_nothing_is_called_after_the_end(loop: ReactorThread) -> None:
    loop.stop()
    called: list[int] = []
    loop.soon(called.append, 1)
    with pytest.raises(Closed):
        loop.call(called.append, 2)
    assert called == []
