"""Authentication: admission, roles, and the operations served before it.

The file is longer than others: it has all tests of `broker.wires.elko.sessions.authentication`.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred

from broker.access.principal import Method, Principal
from broker.access.rights import AnonymousAccess
from broker.core.errors import Reason, Refusal
from broker.wires.elko.codec.blocks import AuthDesc
from broker.wires.elko.sessions.authentication import AccessControl, Policy
from broker.wires.elko.sessions.broker_session import BrokerSession
from tests.access.memory import MemoryAccess
from tests.wires.recording import Client, ElkoFarm, RecordingPeer, desc, found, nothing, told

PASSWORD = {"type": "auth", "mode": "password", "code": "figleaf"}

USERS = MemoryAccess(tokens={"figleaf": "server", "\u00e9\U0001f600": "other"})
"""Users by a token; peers without a user may do nothing."""


@pytest.fixture
def farm() -> ElkoFarm:
    return ElkoFarm()


@pytest.fixture
def locked(farm: ElkoFarm) -> ElkoFarm:
    """A farm with a users file."""
    farm.access = USERS
    return farm


def is_client(client: Client) -> bool:
    client.say("broker", "load", factor=0.5)
    return not client.closed


def is_admin(client: Client) -> bool:
    client.say("admin", "loaddesc")
    return not client.closed


# the rules of a listener


@pytest.mark.parametrize(
    ("users", "credentials", "user"),
    [
        (False, None, ""),
        (False, AuthDesc("open"), ""),
        (False, AuthDesc("open", "ignored", "too"), ""),
        (False, AuthDesc("password", "figleaf"), None),
        (False, AuthDesc("reservation", "1"), None),
        (False, AuthDesc("Open"), None),
        (True, AuthDesc("password", "figleaf"), "server"),
        (True, AuthDesc("password", "\u00e9\U0001f600"), "other"),
        (True, AuthDesc("password", "figlea"), None),
        (True, AuthDesc("password", "figleaf "), None),
        (True, AuthDesc("password", "FIGLEAF"), None),
        (True, AuthDesc("password", "\u00e9"), None),
        (True, AuthDesc("password", ""), None),
        (True, AuthDesc("password"), None),
        (True, AuthDesc("open", "figleaf"), ""),
        (True, AuthDesc("reservation", "figleaf"), None),
        (True, None, ""),
    ],
)
@pytest.mark.parametrize("role", ["client", "admin"])
def test_credentials(role: Any, users: bool, credentials: AuthDesc | None, user: str | None) -> None:
    door = AccessControl(Policy(), USERS if users else AnonymousAccess())

    def log_in() -> str:
        door.policy.check_mode(role, credentials)
        found = door.log_in(credentials, RecordingPeer(True))
        assert isinstance(found, Principal)
        return found.name

    if user is not None:
        assert log_in() == user
        return
    with pytest.raises(Refusal) as raised:
        log_in()
    assert raised.value.reason is Reason.WRONG_CREDENTIALS
    assert raised.value.reason.fatal
    assert "figleaf" not in raised.value.text


# auth


@pytest.mark.parametrize(
    "auth", [{}, {"auth": None}, {"auth": {"mode": "open"}}, {"auth": {"type": "bogus", "mode": "open", "zz": [1]}}]
)
@pytest.mark.parametrize("to", ["broker", "client", "admin"])
def test_an_open_listener_lets_in_without_a_word(farm: ElkoFarm, to: str, auth: dict[str, Any]) -> None:
    client = farm.connect()
    assert client.ask(to, "auth", label="one", **auth) == []
    assert not client.closed
    assert client.peer.logins == 1
    assert is_admin(client) if to == "admin" else is_client(client)


@pytest.mark.parametrize("to", ["broker", "client", "admin"])
def test_a_token_lets_in_without_a_word(locked: ElkoFarm, to: str) -> None:
    client = locked.connect(local=False)
    assert client.ask(to, "auth", auth=PASSWORD) == []
    assert is_admin(client) if to == "admin" else is_client(client)


@pytest.mark.parametrize("to", ["broker", "client", "admin"])
@pytest.mark.parametrize(
    ("users", "auth", "reason"),
    [
        (True, None, "wrong-credentials"),
        (True, {"mode": "open"}, "wrong-credentials"),
        (True, {**PASSWORD, "code": "wrong"}, "wrong-credentials"),
        (True, {"mode": "password"}, "wrong-credentials"),
        (False, PASSWORD, "wrong-credentials"),
        (False, {"mode": "reservation", "code": "1"}, "wrong-credentials"),
    ],
)
@pytest.mark.parametrize("local", [False, True])
def test_wrong_credentials_close(farm: ElkoFarm, to: str, users: bool, auth: Any, reason: str, local: bool) -> None:
    farm.access = USERS if users else AnonymousAccess()
    client = farm.connect(local=local)
    client.say(to, "auth", auth=auth)
    assert client.closed
    assert client.reasons == [reason]
    assert client.peer.logins == 0
    assert farm.registry.providers() == []
    assert all("figleaf" not in message["msg"] for message in client.take())


def test_a_peer_that_is_a_user_stays_that_user_without_credentials(locked: ElkoFarm) -> None:
    client = locked.connect()
    assert client.ask("client", "auth", auth=PASSWORD) == []
    assert client.ask("admin", "auth") == []
    assert isinstance(client.session, BrokerSession)
    assert client.session.principal.name == "server"


@pytest.mark.parametrize(
    ("roles", "to", "served"),
    [
        ({"client"}, "broker", True),
        ({"client"}, "client", True),
        ({"client"}, "admin", False),
        ({"admin"}, "admin", True),
        ({"admin"}, "broker", False),
        ({"admin"}, "client", False),
        (set(), "broker", False),
        (set(), "admin", False),
    ],
)
def test_a_listener_serves_its_roles_only(farm: ElkoFarm, roles: set[Any], to: str, served: bool) -> None:
    client = farm.connect(Policy(roles=frozenset(roles)))
    client.say(to, "auth")
    assert client.closed is not served
    assert client.reasons == ([] if served else ["wrong-credentials"])


@pytest.mark.parametrize(("first", "second"), [("broker", "broker"), ("broker", "client"), ("admin", "admin")])
def test_a_second_auth_for_the_same_role_closes(farm: ElkoFarm, first: str, second: str) -> None:
    client = farm.client(name=first)
    client.say(second, "auth")
    assert client.closed
    assert client.reasons == ["already-authenticated"]
    assert farm.registry.providers() == []


@pytest.mark.parametrize("order", [("broker", "admin"), ("admin", "broker")])
def test_one_connection_may_have_both_roles_and_the_last_label_counts(farm: ElkoFarm, order: tuple[str, str]) -> None:
    client = farm.client("first", name=order[0], policy=Policy(log_debug=True))
    assert client.ask(order[1], "auth", label="second") == []
    [reply] = client.ask("admin", "loaddesc")
    assert reply["desc"] == [{"type": "loaddesc", "label": "second", "load": 0.0, "provider": 1}]
    assert is_client(client)
    client.say("broker", "debug", msg="m")
    assert client.peer.debugs == [("second", "m")]


def test_a_second_role_without_label_is_anonymous(farm: ElkoFarm) -> None:
    client = farm.client("first")
    client.say("admin", "auth")
    assert [provider.label for provider in farm.registry.providers()] == ["<anonymous>"]


def test_a_second_role_that_is_refused_closes_and_changes_nothing(farm: ElkoFarm) -> None:
    client = farm.client("first", policy=Policy(roles=frozenset({"client"})))
    watcher = farm.admin()
    watcher.say("admin", "watch", services=True)
    watcher.take()
    client.offer(desc("bank"))
    client.say("admin", "auth", label="second")
    assert client.closed
    assert [notice["on"] for notice in watcher.take()] == [True, False]


@pytest.mark.parametrize("authenticated", [False, True])
@pytest.mark.parametrize("tolerant", [False, True])
def test_the_object_for_errors_has_no_role(farm: ElkoFarm, authenticated: bool, tolerant: bool) -> None:
    client = farm.connect(Policy(allow_before_auth=tolerant))
    if authenticated:
        client.say("broker", "auth")
    client.say("error", "auth")
    assert client.closed


@pytest.mark.parametrize(
    "parameters", [{"auth": "open"}, {"auth": {}}, {"auth": {"mode": 5}}, {"label": 7}, {"auth": 1}]
)
@pytest.mark.parametrize("tolerant", [False, True])
def test_an_ill_typed_auth_is_answered_and_may_be_tried_again(
    farm: ElkoFarm, parameters: dict[str, Any], tolerant: bool
) -> None:
    client = farm.connect(Policy(allow_before_auth=tolerant))
    [diagnostic] = client.ask("broker", "auth", **parameters)
    assert (diagnostic["to"], diagnostic["op"]) == ("error", "debug")
    assert client.reasons == ["parameter"]
    assert client.peer.logins == 0
    assert not client.closed
    assert farm.registry.providers() == []
    assert client.ask("broker", "auth") == []
    assert is_client(client)


def test_an_ill_typed_auth_is_no_auth(farm: ElkoFarm) -> None:
    client = farm.connect()
    client.say("broker", "auth", label=7)
    client.say("broker", "load", factor=0.5)
    assert client.closed


def test_a_label_is_cut_at_its_limit_and_kept(farm: ElkoFarm) -> None:
    farm.client("l" * 5_000)
    assert [len(provider.label) for provider in farm.registry.providers()] == [1_024]


# before auth, as the document has it


MESSAGES: list[tuple[str, str, dict[str, Any]]] = [
    ("broker", "ping", {}),
    ("broker", "pong", {}),
    ("broker", "debug", {"msg": "m"}),
    ("broker", "disconnect", {}),
    ("client", "find", {"service": "bank"}),
    ("broker", "willserve", {}),
    ("broker", "wontserve", {}),
    ("broker", "load", {"factor": 1.0}),
    ("admin", "loaddesc", {}),
    ("admin", "servicedesc", {}),
    ("admin", "reinit", {}),
    ("admin", "shutdown", {"self_": True}),
    ("admin", "watch", {}),
    ("admin", "launch", {"name": "x"}),
    ("admin", "launcherdesc", {}),
    ("error", "ping", {}),
    ("nobody", "ping", {}),
    ("broker", "dance", {}),
    ("broker", "find", {"service": 5}),
]


@pytest.mark.parametrize(("to", "op", "parameters"), MESSAGES)
def test_anything_but_auth_first_closes(farm: ElkoFarm, to: str, op: str, parameters: dict[str, Any]) -> None:
    client = farm.connect()
    client.say(to, op, **parameters)
    assert client.closed
    assert client.reasons == ["not-authenticated"]
    assert client.peer.debugs == []
    assert farm.control.calls == []
    assert all(message["op"] == "debug" for message in client.take())


def test_so_does_an_auth_to_nobody(farm: ElkoFarm) -> None:
    client = farm.connect()
    client.say("nobody", "auth")
    assert client.closed


@pytest.mark.parametrize("data", [b"{to}\n", b"}\n\n", b'"x"\n\n', b'{"to":"broker"}\n', b"\xff\n"])
def test_text_that_is_no_message_first_closes(farm: ElkoFarm, data: bytes) -> None:
    client = farm.connect()
    client.send(data)
    assert client.closed
    assert client.reasons == ["not-authenticated"]


def test_empty_lines_are_no_message(farm: ElkoFarm) -> None:
    client = farm.connect()
    client.send(b"\n\r\n  \n\n")
    assert not client.closed
    assert client.ask("broker", "auth") == []


def test_messages_behind_the_auth_in_one_block_are_served(farm: ElkoFarm) -> None:
    client = farm.connect()
    client.send(b'{to:"broker",op:"auth"}{to:"broker",op:"ping"}\n\n')
    assert client.take() == [{"to": "broker", "op": "pong"}]


def test_messages_behind_what_closes_are_not(farm: ElkoFarm) -> None:
    client = farm.connect()
    client.send(b'{to:"broker",op:"ping"}{to:"broker",op:"auth"}{to:"broker",op:"ping"}\n\n')
    assert client.closed
    assert [message["op"] for message in client.take()] == ["debug"]
    assert farm.registry.providers() == []


def test_the_text_says_what_to_do(farm: ElkoFarm) -> None:
    [diagnostic] = farm.connect().ask("broker", "ping")
    assert diagnostic["msg"] == "the first message must be auth, not 'ping'"


def test_the_text_of_an_auth_to_nobody_makes_sense(farm: ElkoFarm) -> None:
    [diagnostic] = farm.connect().ask("nobody", "auth")
    assert "nobody" in diagnostic["msg"]


# before auth, as the original has it


TOLERANT = Policy(allow_before_auth=True, log_debug=True)


@pytest.fixture
def stranger(farm: ElkoFarm) -> Client:
    farm.client().offer(desc("bank", auth=PASSWORD))
    return farm.connect(TOLERANT)


@pytest.mark.parametrize("to", ["broker", "client", "admin", "error"])
def test_what_is_common_to_all_objects_is_served(stranger: Client, to: str) -> None:
    assert stranger.ask(to, "ping", tag="t") == [{"to": to, "op": "pong", "tag": "t"}]
    assert stranger.ask(to, "pong") == []
    assert stranger.ask(to, "debug", msg="m") == []
    assert stranger.peer.debugs == [("<anonymous>", "m")]
    assert stranger.peer.refusals == []
    stranger.say(to, "disconnect")
    assert stranger.closed


@pytest.mark.parametrize("to", ["broker", "client"])
def test_find_is_served_in_full_but_without_secrets(farm: ElkoFarm, stranger: Client, to: str) -> None:
    assert stranger.ask(to, "find", service="bank") == [found(told("bank", 1), to=to)]
    assert stranger.ask(to, "find", service="none") == [nothing("none", to=to)]
    assert stranger.ask(to, "find", service="shop", wait=5, monitor=True) == []
    farm.client().offer(desc("shop", auth=PASSWORD))
    assert stranger.take() == [found(told("shop", 2), to=to)]
    assert farm.wiring.roster.keys() == {1, 2}, "a stranger is no provider"


@pytest.mark.parametrize(
    ("to", "op", "reason"),
    [
        ("nobody", "ping", "unknown-target"),
        ("nobody", "auth", "unknown-target"),
        ("broker", "dance", "unknown-op"),
        ("admin", "find", "unknown-op"),
        ("error", "load", "unknown-op"),
        ("broker", "loaddesc", "unknown-op"),
        ("admin", "load", "unknown-op"),
        ("admin", "willserve", "unknown-op"),
    ],
)
def test_what_does_not_exist_is_answered_and_leaves_it_open(stranger: Client, to: str, op: str, reason: str) -> None:
    needed: dict[str, dict[str, Any]] = {"find": {"service": "x"}, "load": {"factor": 1}}
    [diagnostic] = stranger.ask(to, op, **needed.get(op, {}))
    assert (diagnostic["to"], diagnostic["op"]) == ("error", "debug")
    assert stranger.reasons == [reason]
    assert not stranger.closed


@pytest.mark.parametrize("data", [b"{to}\n", b"[1,2]\n\n", b'{"to":"broker"}\n', b'{"to":"broker","op":"load"}\n'])
def test_broken_text_is_answered_and_leaves_it_open(stranger: Client, data: bytes) -> None:
    stranger.send(data)
    assert [message["op"] for message in stranger.take()] == ["debug"]
    assert not stranger.closed


ROLES = [message for message in MESSAGES if message[1] in ("willserve", "wontserve", "load") or message[0] == "admin"]


@pytest.mark.parametrize(("to", "op", "parameters"), ROLES)
@pytest.mark.parametrize("tolerant", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_an_operation_of_a_role_closes_those_without_it(
    farm: ElkoFarm, to: str, op: str, parameters: dict[str, Any], tolerant: bool, other: bool
) -> None:
    client = farm.connect(Policy(allow_before_auth=tolerant))
    if other:  # the other role is of no help
        client.say("broker" if to == "admin" else "admin", "auth")
    client.say(to, op, **parameters)
    assert client.closed
    assert client.reasons == ["not-authenticated"]
    assert farm.control.calls == []
    assert all(message["op"] == "debug" for message in client.take())


@pytest.mark.parametrize(
    "message",
    [
        b'{to:"broker", op:"load", factor:1.0}\n\n',
        b'{to:"admin", op:"loaddesc"}\n\n',
        b'{to:"broker", op:"auth", auth:{mode:"password", code:"wrong"}}\n\n',
        b'{to:"broker", op:"auth"}{to:"broker", op:"auth"}\n\n',
        b'{to:"error", op:"auth"}\n\n',
    ],
)
def test_as_in_the_original_these_close_without_a_message(stranger: Client, message: bytes) -> None:
    stranger.send(message)
    assert stranger.closed
    assert stranger.take() == []


def test_a_stranger_may_still_authenticate(farm: ElkoFarm, stranger: Client) -> None:
    stranger.say("broker", "ping")
    stranger.take()
    assert stranger.ask("broker", "auth", label="known") == []
    assert is_client(stranger)
    assert stranger.find("bank") == [found(told("bank", 1, auth=PASSWORD))], "now it is trusted: it is local"


def test_the_waits_of_a_stranger_are_kept_and_bounded(farm: ElkoFarm) -> None:
    stranger = farm.connect(attrs.evolve(TOLERANT, waits=1))
    assert stranger.find("a", wait=5) == []
    [reply] = stranger.find("a", wait=5)
    assert "waiting finds" in reply["desc"][0]["failure"]
    stranger.drop()
    assert farm.clock.getDelayedCalls() == []


# while a password is checked


class SlowAccess(MemoryAccess):
    """Users whose passwords are being checked, until `right` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.checks: list[Deferred[Principal]] = []

    def by_password(self, user: str, password: str, address: str) -> Deferred[Principal]:
        check: Deferred[Principal] = Deferred()
        self.checks.append(check)
        return check

    def right(self, user: str) -> None:
        """End the oldest check: that user is logged in."""
        self.checks.pop(0).callback(Principal(user, Method.PASSWORD))


def test_the_end_of_input_counts_during_the_check_of_a_second_password(farm: ElkoFarm) -> None:
    farm.access = access = SlowAccess()
    client = farm.connect()
    client.say("client", "auth", auth={**PASSWORD, "id": "server"})
    client.offer(desc("bank"))
    client.say("admin", "auth", auth={**PASSWORD, "id": "operator"})
    assert client.session.input_ended()
    access.right("server")
    assert [each.name for each in farm.registry.find("bank", "tcp")] == ["bank"]
    assert not client.closed
    access.right("operator")
    assert client.closed
    assert farm.registry.providers() == []


def test_messages_that_wait_for_a_check_count_as_memory_of_their_address(farm: ElkoFarm) -> None:
    farm.access = access = SlowAccess()
    client = farm.connect()
    client.peer.room = 1_000_000
    client.say("client", "auth", auth={**PASSWORD, "id": "server"})
    for _ in range(3):
        client.say("broker", "find", service="x" * 300_000)
    assert 900_000 < client.peer.held < 1_000_000
    assert client.take() == []
    client.say("broker", "find", service="x" * 300_000)
    [refused] = client.take()
    assert "too many messages of this address wait" in refused["msg"]
    access.right("server")
    assert client.peer.held == 0


def test_messages_that_wait_for_a_check_count_once_as_requests(farm: ElkoFarm) -> None:
    farm.access = access = SlowAccess()
    client = farm.connect()
    farm.doors[-1].requests.use(per_address=1.0, per_user=0.0, burst=3)
    client.say("client", "auth", auth={**PASSWORD, "id": "server"})
    for _ in range(2):
        client.say("broker", "find", service="bank")
    access.right("server")
    assert client.take() == [nothing("bank"), nothing("bank")]
    [refused] = client.ask("broker", "find", service="bank")
    assert "access.requests_per_address" in refused["msg"]
