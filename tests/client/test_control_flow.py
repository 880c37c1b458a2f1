"""The control flow of a client: order of requests, authentication, and recovery from errors, timeouts and invalid
replies.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import attrs
from scramp import ScramMechanism  # type: ignore[import-untyped]
from twisted.internet.defer import CancelledError, Deferred

from broker.client.credentials import Anonymous, External, Password
from broker.client.errors import AuthenticationFailed, BrokerUnverified, Closed, MtlError, Refused
from broker.client.mtl import Client
from broker.wires.mtl.codec.client_messages import Ready
from tests.client.scripted import FORBIDDEN, NOT_OPEN, QUICK, READY, Stage, response_of, unauthorized

SCRAM = ScramMechanism("SCRAM-SHA-256")
PENCIL = SCRAM.make_auth_info("pencil", iteration_count=4096)


class Scram:
    """The broker's side of SCRAM, for the user anna with the password pencil."""

    def __init__(self, final: bool = True, liar: bool = False) -> None:
        self._final = final
        self._liar = liar
        self._server: Any = None
        self.steps = 0
        self.failures = 0

    def __call__(self, members: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        assert members["mechanism"] == "SCRAM-SHA-256"
        response = (response_of(members) or b"").decode()
        self.steps += 1
        if self._server is None:
            self._server = SCRAM.make_server(lambda name: PENCIL)
            self._server.set_client_first(response)
            return challenge(self._server.get_server_first())
        if not response:
            self._server = None
            return READY
        try:
            self._server.set_client_final(response)
        except Exception:
            self._server = None
            self.failures += 1
            return unauthorized("SCRAM-SHA-256")
        final = self._server.get_server_final()
        if not self._final:
            self._server = None
            return READY
        return challenge("v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=" if self._liar else final)


def challenge(text: str, mechanism: str = "scram-sha-256") -> tuple[int, dict[str, Any]]:
    return 402, {"status": "Challenged", "mechanism": mechanism, "challenge": b64encode(text.encode()).decode()}


ANNA = Password("anna", "pencil")


def asks(*mechanisms: str) -> Any:
    return lambda members: unauthorized(*mechanisms)


class Requests(Stage):
    async def test_open_comes_first_and_says_the_protocol_and_the_host_a01(self) -> None:
        ready = await self.client(virtual_host="test-env").open()
        self.assertEqual(ready.profiles, ("test", "queue", "topic", "registry", "service"))
        self.assertEqual(
            self.broker.requests,
            [("Connection.Open", {"protocol": {"name": "MTL", "version": 1}, "virtual-host": "test-env"})],
        )

    async def test_who_is_let_in_already_does_not_ask_again(self) -> None:
        client = self.client()
        first, second = client.open(), client.open()
        self.assertEqual(await first, await second)
        self.assertEqual(self.broker.asked(), ["Open"])

    async def test_a_profile_comes_before_a_lease_and_is_said_once_l01(self) -> None:
        client = self.client()
        await client.writer("Test", ["resource"])
        await client.writer("TEST", ["resource"])
        await client.writer("topic", ["news"], confirm="full")
        await client.reader("topic", [], lambda delivery: None, confirm="none", window=7)
        self.assertEqual(
            self.broker.requests[1:],
            [
                ("Connection.Profile", {"profile": "test"}),
                ("Connection.Writer", {"resources": ["resource"], "confirm": "none"}),
                ("Connection.Writer", {"resources": ["resource"], "confirm": "none"}),
                ("Connection.Profile", {"profile": "topic"}),
                ("Connection.Writer", {"resources": ["news"], "confirm": "full"}),
                ("Connection.Reader", {"resources": [], "confirm": "none", "window": 7}),
            ],
        )

    async def test_many_flows_at_once_take_turns(self) -> None:
        client = self.client()
        flows = [client.writer(profile, ["resource"]) for profile in ("test", "topic") * 5]
        for flow in flows:
            await flow
        self.assertEqual(self.broker.asked().count("Profile"), 10)

    async def test_members_that_are_not_known_do_not_matter_a17(self) -> None:
        self.broker.answers["Open"] = lambda members: (
            201,
            {"status": "Ready", "profiles": ["test"], "limits": "none", "weather": {"sun": [1, 2]}, "lease": 7},
        )
        self.broker.more = {"window": "wide", "endpoint": 7, "colour": "red", "deep": {"er": []}}
        client = self.client()
        self.assertEqual(await client.open(), Ready(("test",), {}))
        reader = await client.reader("test", ["resource"], lambda delivery: None)
        assert reader.lease is not None
        self.assertEqual(
            (reader.lease.window, reader.lease.endpoint, reader.lease.more), (None, None, {"colour": "red"})
        )

    async def test_what_is_refused_is_not_asked_for_again(self) -> None:
        self.broker.answers["Reader"] = lambda members: FORBIDDEN
        client = self.client()
        with self.assertRaises(Refused) as caught:
            await client.reader("queue", ["jobs"], lambda delivery: None)
        self.assertEqual((caught.exception.code, caught.exception.reason), (403, "not yours"))
        self.assertEqual(self.broker.asked(), ["Open", "Profile", "Reader"])

    async def test_a_profile_that_is_refused_is_not_taken_for_chosen(self) -> None:
        self.broker.answers["Profile"] = lambda members: (400, {"status": "Bad Request"})
        client = self.client()
        for _ in range(2):
            with self.assertRaises(Refused):
                await client.writer("topic", ["news"])
        self.assertEqual(self.broker.asked(), ["Open", "Profile", "Profile"])

    async def test_a_virtual_host_that_is_not_there_is_an_answer_a16(self) -> None:
        self.broker.answers["Open"] = lambda members: FORBIDDEN
        with self.assertRaises(Refused):
            await self.client(virtual_host="nowhere").open()

    async def test_what_no_broker_could_take_is_not_asked(self) -> None:
        client = self.client()
        for resources in (["x" * 256], ["a\nb"], [""], "news", ["a"] * 1001):
            with self.assertRaises(ValueError):
                client.reader("topic", resources, lambda delivery: None)
        with self.assertRaises(ValueError):
            client.reader("topic", ["a"], lambda delivery: None, window=0)
        self.assertEqual(self.broker.requests, [])


class Silence(Stage):
    async def test_a_broker_that_is_not_there_is_noticed_by_the_timeout_and_looked_for_e12(self) -> None:
        self.broker.stop()
        settings = attrs.evolve(QUICK, timeout=0.1)
        client = self.client(settings=settings)
        opened = client.open()
        await self.until(lambda: len(self.sockets) >= 3)
        self.assertFalse(opened.called)
        await self.broker.start()
        self.assertIsInstance(await opened, Ready)
        self.assertEqual(set(self.broker.asked()), {"Open"})
        self.assertEqual(client.sessions, 1)

    def client(self, *arguments: Any, **more: Any) -> Client:
        client = super().client(*arguments, **more)
        self.sockets: list[object] = []
        connect = client.transport.connect

        def counted(*arguments: Any) -> Any:
            self.sockets.append(dealer := connect(*arguments))
            return dealer

        client.transport.connect = counted  # type: ignore[method-assign, assignment]
        return client

    async def test_a_late_answer_is_nobodys(self) -> None:
        late: list[Deferred[Any]] = []

        def slow(members: dict[str, Any]) -> Any:
            if late:
                return ...
            late.append(Deferred())
            return late[0]

        self.broker.answers["Open"] = slow
        client = self.client(settings=attrs.evolve(QUICK, timeout=0.2))
        opened = client.open()
        await self.until(lambda: self.broker.asked() == ["Open", "Open"])
        late[0].callback((201, {"status": "Ready", "profiles": ["late"]}))
        self.assertEqual((await opened).profiles, tuple(READY[1]["profiles"]))
        self.assertEqual(len(self.sockets), 2)

    async def test_what_may_be_over_soon_is_asked_for_again(self) -> None:
        answers = [(503, {"status": "Unavailable"}), (429, {"status": "Too Many Requests"}), READY]
        self.broker.answers["Open"] = lambda members: answers.pop(0)
        await self.client().open()
        self.assertEqual(self.broker.asked(), ["Open", "Open", "Open"])

    async def test_what_is_no_reply_is_not_believed_g03(self) -> None:
        nonsense = [
            (b"201",),
            (b"201", b"{}", b""),
            (b"200x", b'{"status": "Ready"}'),
            (b"199", b'{"status": "Ready", "profiles": []}'),
            (b"600", b'{"status": "Ready", "profiles": []}'),
            (b"abc", b'{"status": "Ready", "profiles": []}'),
            (b"201", b"[]"),
            (b"201", b"{"),
            (b"201", b""),
            (b"201", b"\xff"),
            (b"201", b'{"profiles": []}'),
            (b"201", b'{"status": 7, "profiles": []}'),
            (b"201", b'{"status": "Ready"}'),
            (b"201", b'{"status": "Ready", "profiles": "test"}'),
            (b"201", b'{"status": "Ready", "profiles": [7]}'),
            (b"201", b"[" * 100_000),
            (b"201", b'{"status": "Ready", "profiles": [], "x": NaN}'),
            (b"201", b" " * 70_000),
            (b"401", b'{"status": "Unauthorized"}'),
            (b"402", b'{"status": "Challenged", "mechanism": "PLAIN", "challenge": "!"}'),
            (b"202", b'{"status": "Data Lease", "port": 5976, "lease": "x"}'),
            (b"200", b'{"status": "OK"}'),
        ]
        asked: list[bytes] = []

        def answer(frames: list[bytes]) -> None:
            identity = frames[0]
            asked.append(identity)
            if nonsense:
                self.broker.control.send(identity, b"", *nonsense.pop(0))
            else:
                self.broker.control.send(identity, b"", b"201", json.dumps(READY[1]).encode())

        self.broker.control._receive = answer
        await self.client().open()
        self.assertEqual(len(asked), 23)
        # each began with a new connection
        self.assertEqual(len(set(asked)), 23)

    async def test_frames_that_are_no_reply_at_all_are_not_believed_either(self) -> None:
        def answer(frames: list[bytes]) -> None:
            self.broker.control.send(frames[0], b"x", b"201", json.dumps(READY[1]).encode())
            self.broker.control._receive = self.broker._receive

        self.broker.control._receive = answer
        await self.client().open()

    async def test_answers_to_nothing_do_not_matter(self) -> None:
        client = self.client()
        await client.open()
        identity = next(iter(self.broker.sessions))
        for _ in range(3):
            self.broker.reply(identity, (400, {"status": "Bad Request", "reason": "open"}))
        await self.until(lambda: client._control.unasked == 3)
        await client.writer("test", ["resource"])
        self.assertEqual(self.broker.asked(), ["Open", "Profile", "Writer"])

    async def test_who_closes_the_client_hears_of_what_goes_on(self) -> None:
        self.broker.mute = True
        client = self.client()
        opened, flow = client.open(), client.writer("test", ["resource"])
        await self.until(lambda: self.broker.requests)
        client.close()
        for waiting, error in ((opened, (CancelledError, Closed)), (flow, Closed)):
            with self.assertRaises(error):
                await waiting
        with self.assertRaises(ValueError):
            client.open()
        with self.assertRaises(ValueError):
            client.writer("test", ["resource"])

    async def test_who_gives_up_waiting_does_not_disturb_others(self) -> None:
        self.broker.mute = True
        client = self.client()
        first, second = client.open(), client.open()
        await self.until(lambda: self.broker.requests)
        first.cancel()
        with self.assertRaises(CancelledError):
            await first
        self.broker.mute = False
        await second

    async def test_an_endpoint_that_is_none_is_said_so(self) -> None:
        for endpoint in ("nonsense", "tcp://", "tcp://nowhere:x", "udp://127.0.0.1:1"):
            client = Client(self.reactor, endpoint, settings=QUICK)
            self.addCleanup(client.close)
            with self.assertRaises(ValueError):
                await client.open()
            with self.assertRaises(ValueError):
                await client.writer("test", ["resource"])


class Authentication(Stage):
    async def test_plain_a06(self) -> None:
        self.broker.answers["Open"] = asks("plain")
        self.broker.answers["Authorize"] = lambda members: READY
        await self.client(ANNA).open()
        self.assertEqual(response_of(self.broker.requests[1][1]), b"\0anna\0pencil")
        self.assertEqual(self.broker.asked(), ["Open", "Authorize"])

    async def test_external_and_anonymous_a06(self) -> None:
        self.broker.answers["Authorize"] = lambda members: READY
        for credentials, mechanism, response in (
            (External("anna"), "EXTERNAL", b"anna"),
            (External(), "EXTERNAL", b""),
            (Anonymous("me"), "ANONYMOUS", b"me"),
        ):
            self.broker.answers["Open"] = asks("SCRAM-SHA-256", mechanism)
            await self.client(credentials).open()
            self.assertEqual(self.broker.requests[-1][1]["mechanism"], mechanism)
            self.assertEqual(response_of(self.broker.requests[-1][1]), response)

    async def test_scram_is_preferred_and_its_challenges_are_answered_a07(self) -> None:
        self.broker.answers["Open"] = asks("PLAIN", "ANONYMOUS", "Scram-SHA-256")
        self.broker.answers["Authorize"] = scram = Scram()
        await self.client(ANNA).open()
        self.assertEqual((scram.steps, scram.failures), (3, 0))
        # the last response is there, and empty
        self.assertEqual(self.broker.requests[-1][1]["response"], "")

    async def test_a_broker_that_does_not_know_the_user_is_not_believed_a07(self) -> None:
        self.broker.answers["Open"] = asks("SCRAM-SHA-256")
        for scram in (Scram(liar=True), Scram(final=False)):
            self.broker.answers["Authorize"] = scram
            with self.assertRaises(BrokerUnverified):
                await self.client(ANNA).open()

    async def test_a_wrong_password_is_an_answer_a09(self) -> None:
        self.broker.answers["Open"] = asks("SCRAM-SHA-256")
        self.broker.answers["Authorize"] = Scram()
        client = self.client(Password("anna", "pen"))
        with self.assertRaises(AuthenticationFailed):
            await client.open()
        self.assertEqual(self.broker.asked(), ["Open", "Authorize", "Authorize"])
        client.credentials = ANNA
        await client.open()

    async def test_an_error_of_scram_itself_is_an_answer_too(self) -> None:
        self.broker.answers["Open"] = asks("SCRAM-SHA-256")
        self.broker.answers["Authorize"] = lambda members: challenge("e=unknown-user")
        with self.assertRaisesRegex(AuthenticationFailed, "unknown-user"):
            await self.client(ANNA).open()

    async def test_a_password_is_not_sent_to_any_broker_that_asks(self) -> None:
        self.broker.answers["Open"] = asks("PLAIN")
        for endpoint, credentials, shown in (
            ("tcp://192.0.2.7:5975", ANNA, False),
            ("tcp://broker.example:5975", ANNA, False),
            ("tcp://192.0.2.7:5975", Password("anna", "pencil", plain=True), True),
            ("tcp://localhost:5975", ANNA, True),
            ("tcp://[::1]:5975", ANNA, True),
            ("ipc:///run/x", ANNA, True),
        ):
            client = Client(self.reactor, endpoint, credentials, settings=QUICK)
            self.addCleanup(client.close)
            exchange = client._control._secure or credentials.plain
            self.assertEqual(exchange, shown, endpoint)
        client = self.client(ANNA)
        client._control._secure = False
        with self.assertRaisesRegex(AuthenticationFailed, "others may read"):
            await client.open()
        self.assertEqual(self.broker.asked(), ["Open"])

    async def test_who_has_nothing_to_show_does_not_try(self) -> None:
        for credentials, offered in (
            (None, ["SCRAM-SHA-256"]),
            (ANNA, ["GSSAPI", "\u202e"]),
            (ANNA, []),
            (External(), ["PLAIN"]),
            (Anonymous(), ["PLAIN"]),
        ):
            self.broker.answers["Open"] = asks(*offered)
            self.broker.requests.clear()
            with self.assertRaises(AuthenticationFailed):
                await self.client(credentials).open()
            self.assertEqual(self.broker.asked(), ["Open"])

    async def test_an_exchange_has_an_end(self) -> None:
        self.broker.answers["Open"] = asks("SCRAM-SHA-256")
        for answer in (
            lambda members: challenge("r=x"),
            lambda members: challenge("\xff"),
            lambda members: challenge("r=1", mechanism="PLAIN"),
        ):
            self.broker.answers["Authorize"] = answer
            self.broker.requests.clear()
            with self.assertRaises(BrokerUnverified):
                await self.client(ANNA).open()
            self.assertEqual(self.broker.asked(), ["Open", "Authorize"])
        self.broker.answers["Open"] = asks("PLAIN")
        self.broker.answers["Authorize"] = lambda members: challenge("what?", mechanism="PLAIN")
        with self.assertRaises(MtlError):
            await self.client(ANNA).open()

    async def test_401_to_anything_is_answered_by_authentication_and_then_it_goes_on_a13_a21(self) -> None:
        refusals: list[Any] = []
        self.broker.answers["Authorize"] = lambda members: READY
        for command in ("Profile", "Writer"):
            self.broker.requests.clear()
            refusals.append(unauthorized("PLAIN"))
            self.broker.answers[command] = lambda members: refusals.pop() if refusals else ...
            await self.client(ANNA).writer("test", ["resource"])
            del self.broker.answers[command]
            before = ["Open", "Profile"] if command == "Profile" else ["Open", "Profile", "Writer"]
            # the profile is said again, since it may be forgotten
            self.assertEqual(self.broker.asked(), [*before, "Authorize", "Profile", "Writer"])

    async def test_who_is_not_let_in_again_has_lost_what_it_wanted_a21(self) -> None:
        self.broker.answers["Writer"] = lambda members: unauthorized("PLAIN")
        self.broker.answers["Authorize"] = lambda members: unauthorized("PLAIN")
        with self.assertRaises(AuthenticationFailed):
            await self.client(ANNA).writer("test", ["resource"])
        self.assertEqual(self.broker.asked(), ["Open", "Profile", "Writer", "Authorize"])

    async def test_a_session_that_is_forgotten_is_opened_again(self) -> None:
        client = self.client()
        await client.writer("test", ["resource"])
        self.broker.sessions.clear()
        self.broker.requests.clear()
        await client.writer("test", ["resource"])
        # the profile was chosen in the session before, and the client could not know
        self.assertEqual(self.broker.asked(), ["Writer", "Open", "Profile", "Writer"])
        self.assertEqual(client.sessions, 2)
        self.assertEqual(self.broker.wrong, ["Connection.Writer before Open"])
        self.broker.wrong.clear()

    async def test_a_broker_that_forgets_at_once_is_not_asked_without_a_pause(self) -> None:
        count = 0

        def forgets(members: dict[str, Any]) -> Any:
            nonlocal count
            count += 1
            return NOT_OPEN if count < 8 else ...

        self.broker.answers["Writer"] = forgets
        await self.client().writer("test", ["resource"])
        self.assertEqual(self.broker.asked().count("Open"), 8)

    async def test_a_session_that_is_forgotten_in_the_middle_of_an_exchange(self) -> None:
        answers = [NOT_OPEN, READY]
        self.broker.answers["Open"] = asks("PLAIN")
        self.broker.answers["Authorize"] = lambda members: answers.pop(0)
        await self.client(ANNA).open()
        self.assertEqual(self.broker.asked(), ["Open", "Authorize", "Open", "Authorize"])
