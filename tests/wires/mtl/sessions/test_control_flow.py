"""The control flow of MTL: the answer to each request.

Each test is named after the row of the conformance list that it is for, if there is one.

The file is longer than others: it has all tests of `broker.wires.mtl.sessions.control_flow`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from scramp import ScramClient  # type: ignore[import-untyped]
from twisted.logger import capturedLogs, formatEvent

from broker.access.logins import GUESS_EVERY, GUESSES
from broker.access.rights import Right
from broker.wires.mtl.codec.control_messages import MAX_REQUEST, MAX_RESOURCES
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Side
from broker.wires.mtl.sessions.control_flow import WIRE
from broker.wires.mtl.sessions.sasl import ANONYMOUS, EXCHANGE_SECONDS, EXTERNAL, PLAIN, SCRAM
from tests.recording.logs import nothing_fails
from tests.wires.mtl.control_recording import (
    HERE,
    KEY,
    OTHER_KEY,
    PORT,
    PROTOCOL,
    ControlFarm,
    ControlPeer,
    Users,
    authorize,
    challenge,
    plain,
)

OPEN = (400, {"status": "Bad Request", "reason": "open"})
PROFILES = ["test", "shelf", "registry"]
LIMITS = {
    "request": 65_536,
    "depth": 32,
    "resources": 1_000,
    "leases": 100,
    "flows": 1_000,
    "lease-ttl": 30_000,
    "heartbeat": 5_000,
    "dead-after": 3,
    "window": 100,
    "most-window": 1_000,
    "window-bytes": 4_194_304,
    "properties": 65_536,
    "body": 16_777_216,
}


@pytest.fixture(autouse=True)
def _no_failures(request: pytest.FixtureRequest) -> Iterator[None]:
    if "defect" in request.node.name:
        yield
        return
    with nothing_fails(collect=True):
        yield


def users() -> Users:
    return Users(alice="pencil", bob="rubber")


def closed_farm(**more: Any) -> ControlFarm:
    """A farm whose users must log in."""
    return ControlFarm(users(), **more)


def ready() -> ControlPeer:
    """A peer that is ready, on a farm without logins."""
    return ControlFarm().peer().opened()


def working(profile: str = "shelf") -> ControlPeer:
    return ready().working(profile)


def right(user: str, host: str = "*", read: str = "*") -> Right:
    """The right to read some resources in a virtual host, or in all."""
    listeners = {"*": ("mtl", "mtl *"), "/": ("mtl",)}.get(host, (f"mtl {host}",))
    return Right((user,), ("subscribe",), listeners, (read,))


# G: framing


def test_G03_G04_a_request_is_answered_behind_its_delimiter_with_a_code_and_an_object() -> None:
    peer = ControlFarm().peer(socket_type="REQ")
    peer.say("Open", {"protocol": PROTOCOL})
    [[delimiter, code, body]] = peer.take_frames()
    assert delimiter == b""
    assert code == b"201"
    assert json.loads(body)["status"] == "Ready"


def test_G05_each_request_has_exactly_one_reply_and_nothing_else_is_ever_sent() -> None:
    farm = closed_farm()
    peer = farm.peer(HERE)
    peer.open()
    peer.scram("alice", "wrong")
    peer.scram("alice", "pencil")
    peer.working("shelf").lease()
    farm.wait(2 * EXCHANGE_SECONDS)
    farm.control.revoke_users(["alice"])
    farm.control.review()
    farm.wait(60)
    assert peer.take() == []
    assert farm.counted("mtl_requests.answered") == 8


@pytest.mark.parametrize(
    ("command", "body"),
    [
        ("Open", {"protocol": PROTOCOL}),
        ("Open", {}),
        ("Authorize", {"mechanism": "x"}),
        ("Profile", {"profile": "x"}),
        ("Reader", {"resources": []}),
        (b"x", {}),
    ],
)
def test_G06_every_body_has_a_status(command: str, body: object) -> None:
    ControlFarm().peer().ask(command, body)  # which looks at each
    ready().ask(command, body)


@pytest.mark.parametrize("command", ["open", "OPEN", "oPeN"])
def test_G07_commands_are_case_insensitive(command: str) -> None:
    assert ControlFarm().peer().ask(command, {"protocol": PROTOCOL})[0] == 201
    assert ControlFarm().peer().ask(f"CONNECTION.{command}".encode(), {"protocol": PROTOCOL})[0] == 201


def test_G08_a_session_belongs_to_one_peer() -> None:
    farm = ControlFarm()
    one, other = farm.peer().opened(), farm.peer()
    assert other.profile("test") == OPEN
    assert one.profile("test")[0] == 200
    other.opened()
    assert one.reader()[0] == 202
    assert other.reader()[0] == 400


# A: Connection.Open


@pytest.mark.parametrize("passwords", [None, users()])
def test_A01_a_request_before_open_is_refused_with_that_reason(passwords: Users | None) -> None:
    farm = ControlFarm(passwords)
    peer = farm.peer()
    assert peer.authorize(PLAIN, b"\0alice\0pencil") == OPEN
    assert peer.profile("test") == OPEN
    assert peer.reader() == OPEN
    assert peer.writer() == OPEN
    assert len(farm.control) == 0


def test_A02_A03_A22_where_nobody_has_to_log_in_an_open_is_answered_ready() -> None:
    farm = ControlFarm()
    code, said = farm.peer().open()
    assert code == 201
    assert said == {"status": "Ready", "profiles": PROFILES, "limits": LIMITS}
    assert farm.session().principal is not None


def test_A02_A04_where_users_log_in_an_open_is_answered_with_the_mechanisms() -> None:
    code, said = closed_farm().peer().open()
    assert code == 401
    assert said == {"status": "Unauthorized", "mechanisms": [SCRAM]}


def test_A05_until_then_anything_else_is_refused() -> None:
    peer = closed_farm().peer()
    peer.open()
    for code, said in (peer.profile("test"), peer.reader(), peer.writer()):
        assert code == 401
        assert said["mechanisms"] == [SCRAM]


def test_A14_an_open_of_another_protocol_or_version_is_refused() -> None:
    peer = ControlFarm().peer()
    for protocol, code in (
        (None, 400),
        ("MTL", 400),
        ({"name": "MTL"}, 400),
        ({"name": "AMQP", "version": 1}, 400),
        ({"name": "MTL", "version": 2}, 501),
        ({"name": "MTL", "version": "1"}, 400),
    ):
        assert peer.ask("Open", {"protocol": protocol})[0] == code
    assert peer.ask("Open", {})[0] == 400
    assert peer.profile("test") == OPEN


def test_A15_a_virtual_host_is_text() -> None:
    hosts: list[object] = [1, None, ["/"], {}]
    for host in hosts:
        assert ControlFarm().peer().ask("Open", {"protocol": PROTOCOL, "virtual-host": host})[0] == 400


def test_A16_a_virtual_host_that_is_not_there_and_one_that_is_not_yours_are_refused_alike() -> None:
    farm = ControlFarm(None, right("anonymous", "/"))
    replies = [farm.peer().open(host) for host in ("nowhere", "other", "", "x" * 60_000, "/ ")]
    assert replies[0][0] == 403
    assert replies[0][1]["status"] == "Forbidden"
    assert all(reply == replies[0] for reply in replies)
    assert len(farm.control) == 0
    assert farm.peer().open("/")[0] == farm.peer().open()[0] == 201


def test_A16_nobody_learns_which_virtual_hosts_there_are_without_logging_in() -> None:
    farm = ControlFarm(users(), right("alice", "/"))
    refused = []
    for host in ("nowhere", "other", "x" * 60_000):
        peer = farm.peer()
        assert peer.open(host) == farm.peer().open("/")
        refused.append(peer.scram("alice", "pencil"))
        assert peer.profile("test")[0] == 401
    assert refused[0][0] == 403
    assert refused[0] == refused[1] == refused[2]


def test_A16_after_a_refused_virtual_host_another_may_be_opened() -> None:
    farm = ControlFarm()
    peer = farm.peer().opened().working("test")
    assert peer.open("nowhere")[0] == 403
    assert peer.profile("test") == OPEN
    assert peer.authorize(PLAIN, b"\0alice\0pencil") == OPEN
    assert peer.open("other")[0] == 201


def test_A17_members_that_are_not_known_are_ignored() -> None:
    peer = ControlFarm().peer()
    protocol = {**PROTOCOL, "flavour": "x"}
    assert peer.ask("Open", {"protocol": protocol, "virtual-host": "/", "agent": {"name": [None]}})[0] == 201
    assert peer.ask("Profile", {"profile": "test", "more": 1})[0] == 200
    assert peer.ask("Reader", {"resources": [], "confirm": "none", "more": {}})[0] == 202


def test_A18_a_second_open_starts_over_and_the_data_flows_go_on() -> None:
    farm = closed_farm()
    peer = farm.peer(HERE).logged_in("alice", "pencil").working("shelf")
    token = peer.used_lease()
    assert peer.open()[0] == 401
    assert peer.profile("shelf")[0] == 401
    assert peer.scram("alice", "pencil")[0] == 201
    assert peer.reader()[0] == 400
    assert peer.working("shelf").reader()[0] == 202
    assert farm.ended == []
    assert farm.data.take(token, b"data", "") is not None


def test_A18_what_was_had_in_another_virtual_host_or_as_somebody_else_ends() -> None:
    farm = closed_farm()
    peer = farm.peer(HERE).logged_in("alice", "pencil").working("shelf")
    token = peer.used_lease()
    peer.logged_in("alice", "pencil", "other").working("shelf")
    assert farm.ended == [token]
    there = peer.used_lease()
    peer.logged_in("bob", "rubber", "other")
    assert farm.ended == [token, there]


# A: Connection.Authorize


def test_A06_A08_plain_lets_in_who_knows_the_password() -> None:
    peer = closed_farm().peer(HERE)
    assert PLAIN in peer.open()[1]["mechanisms"]
    code, said = peer.plain("alice", "pencil")
    assert code == 201
    assert said["profiles"] == PROFILES
    assert peer.farm.session().principal.user == "alice"  # type: ignore[union-attr]


def test_A06_A07_A08_scram_goes_over_two_challenges_and_proves_the_broker() -> None:
    peer = closed_farm().peer()
    peer.open()
    client = ScramClient([SCRAM], "alice", "pencil")
    code, said = peer.authorize(SCRAM, client.get_client_first().encode())
    assert code == 402
    assert list(said) == ["status", "mechanism", "challenge"]
    client.set_server_first(challenge(said))
    code, said = peer.authorize(SCRAM, client.get_client_final().encode())
    assert code == 402
    client.set_server_final(challenge(said))
    code, said = peer.authorize(SCRAM, b"")
    assert code == 201
    assert said["profiles"] == PROFILES
    assert peer.profile("test")[0] == 200


def test_A07_who_sends_no_initial_response_gets_an_empty_challenge() -> None:
    peer = closed_farm().peer(HERE)
    peer.open()
    assert peer.ask("Authorize", {"mechanism": PLAIN}) == (
        402,
        {"status": "Challenged", "mechanism": PLAIN, "challenge": ""},
    )
    assert peer.plain("alice", "pencil")[0] == 201


def test_A08_external_lets_in_whom_the_key_stands_for() -> None:
    farm = ControlFarm(keys={KEY: "carol"})
    peer = farm.peer(key=KEY)
    assert peer.open()[0] == 201
    assert farm.session().principal.user == "carol"  # type: ignore[union-attr]
    assert peer.authorize(EXTERNAL, b"")[0] == 201
    assert peer.authorize(EXTERNAL, b"dave") == (
        401,
        {
            "status": "Unauthorized",
            "reason": "the authorisation id is not the user's own name",
            "mechanisms": [EXTERNAL],
        },
    )
    assert peer.profile("test")[0] == 401
    assert peer.authorize(EXTERNAL, b"carol")[0] == 201


def test_A08_anonymous_lets_in_anybody_where_it_is_offered() -> None:
    farm = ControlFarm(users(), anonymous=True)
    peer = farm.peer()
    assert peer.open()[1]["mechanisms"] == [SCRAM, ANONYMOUS]
    assert peer.authorize(ANONYMOUS, b"me")[0] == 201
    assert farm.session().principal.user == ""  # type: ignore[union-attr]


def test_A08_plain_is_offered_only_where_nobody_else_can_read_it() -> None:
    def offered(farm: ControlFarm, address: str, key: str = "") -> list[str]:
        return farm.peer(address, key).open()[1]["mechanisms"]  # type: ignore[no-any-return]

    farm = ControlFarm(users(), keys={KEY: ""})
    assert offered(farm, "192.0.2.7") == [SCRAM]
    assert offered(farm, "2001:db8::1") == [SCRAM]
    assert offered(farm, "127.0.0.1") == [SCRAM, PLAIN]
    assert offered(farm, "127.9.9.9") == [SCRAM, PLAIN]
    assert offered(farm, "::1") == [SCRAM, PLAIN]
    assert offered(farm, "uid 1000 here") == [SCRAM, PLAIN]
    assert offered(farm, "192.0.2.7", KEY) == [SCRAM, PLAIN]
    assert offered(ControlFarm(users(), plain=True), "192.0.2.7") == [SCRAM, PLAIN]


def test_A08_a_mechanism_that_is_not_offered_cannot_be_used() -> None:
    peer = closed_farm().peer()
    peer.open()
    code, said = peer.plain("alice", "pencil")
    assert code == 401
    assert said["mechanisms"] == [SCRAM]
    assert peer.farm.counted("mtl_logins.done") == 0


@pytest.mark.parametrize("login", ["scram", "plain"])
def test_A09_a_wrong_password_and_an_unknown_user_look_alike(login: str) -> None:
    farm = closed_farm()
    peer = farm.peer(HERE)
    peer.open()
    wrong = getattr(peer, login)("alice", "wrong")
    unknown = getattr(peer, login)("nobody", "pencil")
    assert wrong == unknown
    assert wrong[0] == 401
    assert wrong[1]["mechanisms"] == [SCRAM, PLAIN]
    assert peer.profile("test")[0] == 401
    assert farm.counted("mtl_logins.credentials") == 2
    assert farm.counted("mtl_refused.wrong-credentials") == 2
    assert getattr(peer, login)("alice", "pencil")[0] == 201


def test_A09_passwords_and_users_are_not_logged() -> None:
    with capturedLogs() as logged:
        peer = closed_farm().peer(HERE)
        peer.open()
        peer.plain("some-user", "some-password")
        peer.scram("some-user", "some-password")
        peer.authorize(PLAIN, b"some-password")
    assert logged
    assert "some-" not in repr(logged)


def test_A10_an_unknown_mechanism_is_answered_with_those_that_there_are() -> None:
    peer = closed_farm().peer()
    peer.open()
    for name in ("KERBEROS_V4", "", "é", "CRAM-MD5"):
        code, said = peer.authorize(name, b"x")
        assert code == 401
        assert said["mechanisms"] == [SCRAM]
    assert peer.scram("alice", "pencil")[0] == 201


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"mechanism": 1},
        {"mechanism": None, "response": ""},
        {"mechanism": PLAIN, "response": 1},
        {"mechanism": PLAIN, "response": "!"},
        {"mechanism": PLAIN, "response": "AGEAY"},
        [],
    ],
)
def test_A11_an_authorize_that_is_none_is_refused_and_changes_nothing(members: object) -> None:
    peer = closed_farm().peer(HERE).logged_in("alice", "pencil")
    assert peer.ask("Authorize", members)[0] == 400
    assert peer.profile("test")[0] == 200


def test_A12_while_an_exchange_goes_on_anything_else_is_refused() -> None:
    peer = closed_farm().peer(HERE)
    peer.open()
    client = ScramClient([SCRAM], "alice", "pencil")
    code, said = peer.authorize(SCRAM, client.get_client_first().encode())
    assert code == 402
    for refused, _ in (peer.profile("test"), peer.reader(), peer.writer()):
        assert refused == 401
    client.set_server_first(challenge(said))
    assert peer.authorize(SCRAM, client.get_client_final().encode())[0] == 402
    assert peer.profile("test")[0] == 401
    assert peer.authorize(SCRAM, b"")[0] == 201


@pytest.mark.parametrize("far", [1, 2])
@pytest.mark.parametrize("how", ["the same mechanism", "another mechanism", "an open"])
def test_A12_in_the_middle_of_an_exchange_a_new_one_may_start(far: int, how: str) -> None:
    farm = closed_farm()
    peer = farm.peer(HERE)
    peer.open()
    client = ScramClient([SCRAM], "alice", "pencil")
    code, said = peer.authorize(SCRAM, client.get_client_first().encode())
    if far == 2:
        client.set_server_first(challenge(said))
        code, said = peer.authorize(SCRAM, client.get_client_final().encode())
    assert code == 402
    if how == "the same mechanism":
        assert peer.scram("bob", "rubber")[0] == 201
    elif how == "another mechanism":
        assert peer.plain("bob", "rubber")[0] == 201
    else:
        assert peer.logged_in("bob", "rubber")
    assert farm.session().principal.user == "bob"  # type: ignore[union-attr]
    assert farm.counted("mtl_logins.malformed") == 0
    assert len(farm.leases) == 0


def test_A12_what_can_neither_go_on_nor_begin_ends_the_exchange() -> None:
    farm = closed_farm()
    peer = farm.peer()
    peer.open()
    assert peer.authorize(SCRAM, ScramClient([SCRAM], "alice", "pencil").get_client_first().encode())[0] == 402
    assert peer.authorize(SCRAM, b"nonsense")[0] == 401
    assert farm.counted("mtl_logins.malformed") == 1
    assert len(farm.leases) == 0
    assert peer.scram("alice", "pencil")[0] == 201


def test_A13_who_logs_in_again_as_the_same_user_keeps_what_it_has() -> None:
    farm = closed_farm()
    peer = farm.peer(HERE).logged_in("alice", "pencil").working("shelf")
    token = peer.used_lease()
    assert peer.scram("alice", "pencil")[0] == 201
    assert peer.plain("alice", "pencil")[0] == 201
    assert peer.reader()[0] == 202
    assert farm.ended == []
    assert farm.data.take(token, b"data", "") is not None


def test_A13_who_logs_in_as_somebody_else_has_nothing_of_the_former() -> None:
    farm = closed_farm()
    peer = farm.peer(HERE).logged_in("alice", "pencil").working("shelf")
    used, unused = peer.used_lease(), peer.lease()
    assert peer.scram("bob", "rubber")[0] == 201
    assert farm.ended == [used]
    assert farm.data.take(unused, b"data", "") is None
    assert peer.reader()[0] == 400


@pytest.mark.parametrize("failing", [(PLAIN, b"\0alice\0wrong"), (PLAIN, b"nonsense"), ("NONE", b"")])
def test_A13_a_login_that_fails_takes_access_away(failing: tuple[str, bytes]) -> None:
    farm = closed_farm()
    peer = farm.peer(HERE).logged_in("alice", "pencil").working("shelf")
    used, unused = peer.used_lease(), peer.lease()
    peer.say("Authorize", authorize(*failing))
    farm.threads.run()
    assert peer.reply()[0] == 401
    assert farm.ended == [used]
    assert farm.data.take(unused, b"data", "") is None
    assert peer.reader()[0] == 401
    assert peer.profile("shelf")[0] == 401
    peer.scram("alice", "pencil")
    assert peer.reader()[0] == 400


def test_A13_the_flows_go_on_while_a_login_does() -> None:
    farm = closed_farm()
    peer = farm.peer(HERE).logged_in("alice", "pencil").working("shelf")
    peer.used_lease()
    peer.say("Authorize", plain("alice", "pencil"))
    assert farm.ended == []
    farm.threads.run()
    assert peer.reply()[0] == 201
    assert farm.ended == []


def test_A13_an_exchange_that_is_left_alone_has_failed_after_its_time() -> None:
    farm = closed_farm()
    peer = farm.peer(HERE).logged_in("alice", "pencil").working("shelf")
    token = peer.used_lease()
    assert peer.ask("Authorize", authorize(SCRAM, None))[0] == 402
    farm.wait(EXCHANGE_SECONDS - 0.1)
    assert farm.ended == []
    farm.wait(0.3)
    assert farm.ended == [token]
    assert farm.counted("mtl_logins.late") == 1
    assert peer.take() == []
    assert peer.reader()[0] == 401
    assert peer.scram("alice", "pencil")[0] == 201
    assert len(farm.leases) == 0


def test_A13_an_exchange_whose_thread_is_stuck_fails_after_its_time() -> None:
    farm = closed_farm()
    peer = farm.peer(HERE)
    peer.open()
    peer.say("Authorize", plain("alice", "pencil"))
    farm.wait(EXCHANGE_SECONDS + 0.2)
    assert peer.reply()[0] == 401
    farm.threads.run()
    assert peer.take() == []
    assert peer.profile("test")[0] == 401
    assert peer.plain("alice", "pencil")[0] == 201


def test_A19_mechanisms_are_case_insensitive() -> None:
    peer = closed_farm().peer(HERE)
    peer.open()
    peer.say("Authorize", {**plain("alice", "pencil"), "mechanism": "plain"})
    peer.farm.threads.run()
    assert peer.reply()[0] == 201
    assert peer.authorize("Scram-Sha-256", None)[1]["mechanism"] == SCRAM


def test_A20_an_authorize_where_nobody_has_to_log_in_is_refused_and_changes_nothing() -> None:
    farm = ControlFarm()
    peer = farm.peer().opened().working("shelf")
    token = peer.used_lease()
    assert peer.authorize(PLAIN, b"\0alice\0pencil")[0] == 400
    assert peer.reader()[0] == 202
    assert farm.ended == []
    assert farm.data.take(token, b"data", "") is not None


# A: access that is taken away


def test_A21_a_user_who_is_gone_or_has_another_password_has_to_log_in_again() -> None:
    farm = closed_farm()
    alice = farm.peer(HERE).logged_in("alice", "pencil").working("shelf")
    again = farm.peer(HERE).logged_in("alice", "pencil").working("shelf")
    bob = farm.peer(HERE).logged_in("bob", "rubber").working("shelf")
    tokens = [peer.used_lease() for peer in (alice, again, bob)]
    unused = alice.lease()
    assert farm.users is not None
    farm.users.set("alice", "pen")
    farm.control.revoke_users({"alice", "carol"})
    assert sorted(farm.ended) == sorted(tokens[:2])
    for token in (*tokens[:2], unused):
        assert farm.data.take(token, b"data", "") is None
    for peer in (alice, again):
        assert peer.take() == []
        code, said = peer.reader()
        assert code == 401
        assert said["mechanisms"] == [SCRAM, PLAIN]
    assert bob.reader()[0] == 202
    assert alice.scram("alice", "pencil")[0] == 401
    assert alice.scram("alice", "pen")[0] == 201
    assert alice.working("shelf").reader()[0] == 202


def test_A21_flows_end_with_their_user_also_when_the_session_is_gone() -> None:
    farm = closed_farm(sessions=2)
    token = farm.peer(HERE).logged_in("alice", "pencil").working("shelf").used_lease()
    for _ in range(2):
        farm.peer(HERE).logged_in("bob", "rubber")
    assert all(session.principal.user == "bob" for session in farm.control.sessions() if session.principal)
    assert farm.ended == []
    farm.control.revoke_users(["alice"])
    assert farm.ended == [token]


def test_A21_a_login_that_began_before_its_user_was_taken_away_lets_nobody_in() -> None:
    farm = closed_farm()
    assert farm.users is not None
    peer = farm.peer(HERE)
    peer.open()
    peer.say("Authorize", plain("alice", "pencil"))
    farm.users.set("alice", None)
    farm.control.revoke_users(["alice"])
    farm.threads.run()
    assert peer.reply()[0] == 401
    assert peer.profile("test")[0] == 401


def test_A21_a_login_that_waits_behind_such_a_one_is_not_hurt() -> None:
    farm = closed_farm()
    peer = farm.peer(HERE)
    peer.open()
    peer.say("Authorize", plain("alice", "pencil"))
    peer.say("Authorize", plain("bob", "rubber"))
    farm.control.revoke_users(["alice"])
    farm.threads.run()
    assert [code for code, _ in peer.take()] == [401, 201]


def test_A21_a_key_that_is_gone_gives_no_access_any_more() -> None:
    farm = ControlFarm(users(), keys={KEY: "carol", OTHER_KEY: "dave"})
    carol, dave = (farm.peer(key=key).opened().working("shelf") for key in (KEY, OTHER_KEY))
    alice = farm.peer(key=KEY).opened()
    assert alice.scram("alice", "pencil")[0] == 201
    tokens = [peer.used_lease() for peer in (carol, dave, alice.working("shelf"))]
    del farm.keys[KEY]
    farm.control.revoke_keys({KEY})
    assert sorted(farm.ended) == sorted([tokens[0], tokens[2]])
    for peer in (carol, alice):
        assert peer.reader() == (401, {"status": "Unauthorized", "reason": "authenticate first", "mechanisms": []})
        assert peer.open() == (401, {"status": "Unauthorized", "mechanisms": []})
        assert peer.scram("alice", "pencil")[0] == 401
    assert dave.reader()[0] == 202


def test_A21_a_key_that_stands_for_somebody_else_now_acts_for_that_one() -> None:
    farm = ControlFarm(keys={KEY: "carol"})
    peer = farm.peer(key=KEY).opened().working("shelf")
    token = peer.used_lease()
    farm.keys[KEY] = "dave"
    farm.control.revoke_keys([KEY])
    assert farm.ended == [token]
    assert peer.reader()[0] == 401
    assert peer.authorize(EXTERNAL, b"")[0] == 201
    assert farm.session().principal.user == "dave"  # type: ignore[union-attr]


def test_A21_who_has_other_rights_has_to_log_in_again() -> None:
    farm = ControlFarm(users(), right("alice", "/"), right("bob", "/"))
    alice, bob = farm.peer(HERE), farm.peer(HERE)
    alice.logged_in("alice", "pencil").working("shelf")
    bob.logged_in("bob", "rubber").working("shelf")
    tokens = [alice.used_lease(), bob.used_lease()]
    farm.permit(right("bob", "/"), right("alice", "/", "shelf*"))
    assert farm.ended == [tokens[0]]
    assert alice.reader()[0] == 401
    assert bob.reader()[0] == 202
    assert alice.scram("alice", "pencil")[0] == 201
    farm.permit(right("alice", "other"), right("bob", "/"))
    assert alice.reader()[0] == 401
    assert alice.scram("alice", "pencil")[0] == 403
    assert bob.reader()[0] == 202


def test_A21_new_rights_count_where_nobody_has_to_log_in() -> None:
    farm = ControlFarm(None, right("anonymous"))
    peer = farm.peer().opened().working("shelf")
    token = peer.used_lease()
    farm.permit(right("anonymous", "other"))
    assert farm.ended == [token]
    assert peer.reader()[0] == 401
    assert peer.open()[0] == 403
    assert peer.open("other")[0] == 201


# A: guesses


@pytest.mark.parametrize("mechanism", [SCRAM, PLAIN])
def test_while_guesses_are_refused_a_right_password_is_answered_as_a_wrong_one(mechanism: str) -> None:
    farm = closed_farm()

    def login(user: str, password: str, address: str = HERE) -> tuple[int, Any]:
        peer = farm.peer(address)
        peer.open()
        return peer.scram(user, password) if mechanism == SCRAM else peer.plain(user, password)

    assert login("alice", "pencil")[0] == 201
    assert [login("alice", "wrong")[0] for _ in range(GUESSES)] == [401] * GUESSES
    right, wrong = login("alice", "pencil"), login("alice", "wrong")
    assert right == wrong
    assert right[0] == 429
    assert login("bob", "rubber")[0] == 201
    assert login("alice", "pencil", f"{HERE}1")[0] == 201
    farm.wait(GUESS_EVERY)
    assert login("alice", "pencil")[0] == 201
    assert len(farm.leases) == 0


def test_exchanges_at_once_are_no_more_guesses_than_one_after_the_other() -> None:
    farm = closed_farm()
    codes = []
    begun = []
    for _ in range(200):
        peer = farm.peer(HERE)
        peer.open()
        client = ScramClient([SCRAM], "alice", "wrong")
        client.set_server_first(challenge(peer.authorize(SCRAM, client.get_client_first().encode())[1]))
        begun.append((peer, client))
    for peer, client in begun:
        codes.append(peer.authorize(SCRAM, client.get_client_final().encode())[0])
    assert codes == [401] * GUESSES + [429] * (200 - GUESSES)


def test_an_exchange_that_begins_again_is_no_guess() -> None:
    farm = closed_farm()
    peer = farm.peer(HERE)
    peer.open()
    for _ in range(GUESSES + 5):
        assert peer.authorize(SCRAM, ScramClient([SCRAM], "alice", "pencil").get_client_first().encode())[0] == 402
    assert peer.scram("alice", "pencil")[0] == 201


def test_too_many_passwords_at_once_are_told_and_end_nothing() -> None:
    farm = closed_farm()
    peer = farm.peer(HERE).logged_in("alice", "pencil").working("shelf")
    token = peer.used_lease()
    others = [farm.peer(HERE) for _ in range(102)]
    for number, other in enumerate(others, 1):
        other.open()
        # The same text would be one check. SASLprep removes soft hyphens, so that all these are the right password.
        other.say("Authorize", plain("alice", "pencil" + number * "\u00ad"))
    assert peer.ask("Authorize", plain("alice", "pencil"))[0] == 429
    assert peer.reader()[0] == 202
    assert farm.data.take(token, b"data", "") is not None
    farm.threads.run()
    assert {other.reply()[0] for other in others} == {201}


# P: Connection.Profile


@pytest.mark.parametrize("name", PROFILES)
def test_P01_P04_every_profile_that_is_named_can_be_chosen(name: str) -> None:
    assert ready().profile(name) == (200, {"status": "OK"})


@pytest.mark.parametrize("name", ["amqp", "", "test ", "tes", "\u212a", "x" * 1000])
def test_P02_another_one_is_refused(name: str) -> None:
    code, said = ready().profile(name)
    assert code == 400
    assert said["status"] == "Bad Request"


@pytest.mark.parametrize("name", ["TEST", "Test", "tEST"])
def test_P03_profiles_are_case_insensitive(name: str) -> None:
    assert ready().profile(name)[0] == 200


@pytest.mark.parametrize("members", [{}, {"profile": None}, {"profile": 1}, {"profile": ["test"]}, [], "test"])
def test_P05_a_profile_is_a_name(members: object) -> None:
    assert ready().ask("Profile", members)[0] == 400


def test_P06_after_a_refused_profile_the_earlier_one_stays() -> None:
    peer = working()
    assert peer.profile("amqp")[0] == 400
    assert peer.reader("anything")[0] == 202
    assert peer.profile("test")[0] == 200
    assert peer.reader("anything")[0] == 400


def test_what_other_wires_share_is_in_one_virtual_host_only() -> None:
    farm = ControlFarm(hosts=("other", "/"), bridged=("registry", "test"))
    assert farm.peer().open("other")[1]["profiles"] == PROFILES
    peer = farm.peer()
    assert peer.open("/")[1]["profiles"] == ["shelf"]
    assert peer.profile("registry")[0] == 400
    assert peer.profile("shelf")[0] == 200


# L: Connection.Reader and Connection.Writer


@pytest.mark.parametrize("command", ["Reader", "Writer"])
def test_L01_a_lease_needs_a_profile(command: str) -> None:
    code, said = ready().ask(command, {"resources": ["resource"]})
    assert code == 400
    assert said["reason"] == "no profile is chosen"


@pytest.mark.parametrize("command", ["Reader", "Writer"])
def test_L02_a_lease_is_told_with_its_port(command: str) -> None:
    code, said = working("test").ask(command, {"resources": ["resource"], "confirm": "none"})
    assert code == 202
    assert list(said) == ["status", "port", "lease"]
    assert said["status"] == "Data Lease"
    assert said["port"] == PORT


def test_L02_a_lease_gives_what_was_asked_for() -> None:
    farm = closed_farm()
    peer = farm.peer(HERE).logged_in("alice", "pencil", "other").working("shelf")
    _, said = peer.writer("b", "a", "b", confirm="full")
    grant = farm.data.take(said["lease"], b"data", "")
    assert grant is not None
    assert (grant.principal.user, grant.principal.host, grant.principal.key) == ("alice", "other", "")
    assert grant.profile is farm.shelf
    assert (grant.side, grant.resources, grant.confirm) == (Side.WRITER, ("b", "a"), ConfirmMode.FULL)
    assert farm.shelf.asked == [("alice", Side.WRITER, "b"), ("alice", Side.WRITER, "a")]
    assert farm.shelf.grants == [grant]


def test_L02_a_lease_is_for_the_key_that_it_was_asked_with() -> None:
    farm = ControlFarm(keys={KEY: "carol"})
    token = farm.peer(key=KEY).opened().working("shelf").lease()
    assert farm.data.take(token, b"thief", "") is None
    assert farm.data.take(token, b"thief", OTHER_KEY) is None
    assert farm.data.take(token, b"data", KEY) is not None


@pytest.mark.parametrize("port", [0, 65_535, lambda: 4_711])
def test_L03_the_port_is_that_of_the_data_socket(port: Any) -> None:
    _, said = ControlFarm(port=port).peer().opened().working("test").reader()
    assert said["port"] == (port() if callable(port) else port)
    assert "endpoint" not in said


def test_L03_an_endpoint_is_told_where_one_is_set() -> None:
    _, said = ControlFarm(data_endpoint="tcp://broker.example:5976").peer().opened().working("test").reader()
    assert said["endpoint"] == "tcp://broker.example:5976"
    assert said["port"] == PORT


def test_L04_an_empty_list_means_all_resources() -> None:
    peer = working()
    for answer in (peer.reader(), peer.writer()):
        assert answer[0] == 202
        grant = peer.farm.data.take(answer[1]["lease"], b"data", "")
        assert grant is not None
        assert grant.resources == ()
    assert peer.farm.shelf.asked == []


@pytest.mark.parametrize("command", ["Reader", "Writer"])
def test_L05_a_confirmation_that_the_profile_has_not_is_not_implemented(command: str) -> None:
    peer = working("test")
    answer = peer.ask(command, {"resources": ["resource"], "confirm": "full"})
    assert answer == (501, {"status": "Not implemented"})
    assert len(peer.farm.data) == 0


def test_L05_nor_is_a_side_that_it_has_not() -> None:
    peer = working()
    peer.farm.shelf.confirms = {Side.WRITER: (ConfirmMode.FULL,)}
    for more in ({}, {"confirm": "none"}, {"confirm": "full"}):
        assert peer.reader(**more) == (501, {"status": "Not implemented"})
    assert peer.writer(confirm="none") == (501, {"status": "Not implemented"})
    assert peer.writer()[0] == 202


@pytest.mark.parametrize("confirm", ["", "NONE", "some", 1, None, True])
def test_L06_a_confirmation_is_none_or_full(confirm: object) -> None:
    assert working().reader(confirm=confirm)[0] == 400
    assert working().writer(confirm=confirm)[0] == 400


@pytest.mark.parametrize(
    "members", [{}, {"resources": None}, {"resources": "a"}, {"resources": [1]}, {"resources": {}}]
)
def test_L07_resources_are_a_list_of_names(members: object) -> None:
    assert working().ask("Reader", members)[0] == 400
    assert working().ask("Writer", members)[0] == 400


@pytest.mark.parametrize("name", ["x" * 256, "é" * 128, "a\0", "a\nb", "", "\u200b", "\ud800"])
def test_L08_a_name_is_one_that_fits_into_a_command(name: str) -> None:
    assert working().reader(name)[0] == 400
    assert working().writer("fine", name)[0] == 400


def test_L03_L09_leases_differ_and_cannot_be_guessed() -> None:
    peer = working("test")
    tokens = {peer.lease() for _ in range(20)}
    assert len(tokens) == 20
    assert all(re.fullmatch("[!-~]{22,255}", token) for token in tokens)


def test_L10_who_says_nothing_of_confirmation_gets_the_profiles_way() -> None:
    peer = working()
    for answer, confirm in ((peer.reader(), ConfirmMode.FULL), (peer.writer(), ConfirmMode.NONE)):
        grant = peer.farm.data.take(answer[1]["lease"], b"data", "")
        assert grant is not None
        assert grant.confirm is confirm


def test_L11_a_resource_that_there_is_not_is_refused_at_once() -> None:
    peer = working("test")
    assert peer.reader("Resource")[0] == 400
    assert peer.writer("resource", "other")[0] == 400
    assert peer.reader("resource")[0] == 202


def test_what_the_profile_refuses_is_answered_by_its_reason() -> None:
    peer = working()
    for name, code, status in (
        ("no shelf", 400, "Bad Request"),
        ("not yours", 403, "Forbidden"),
        ("full shelf", 429, "Too Many Requests"),
    ):
        answer = peer.reader("fine", name)
        assert answer == (code, {"status": status, "reason": f"not {name}"})
    assert len(peer.farm.data) == 0
    assert peer.farm.counted("mtl_refused.forbidden") == 1


def test_the_log_says_which_user_was_refused_something() -> None:
    peer = closed_farm().peer(HERE).logged_in("alice", "pencil").working("shelf")
    with capturedLogs() as logged:
        assert peer.reader("not yours")[0] == 403
    [event] = logged
    assert "forbidden: alice: not" in formatEvent(event)


@pytest.mark.parametrize(
    ("asked", "given"), [({}, 100), ({"window": None}, 100), ({"window": 7}, 7), ({"window": 10**9}, 1_000)]
)
def test_the_window_is_what_was_asked_for_up_to_a_limit_and_is_told(asked: dict[str, Any], given: int) -> None:
    peer = working()
    _, said = peer.reader("a", **asked)
    assert said["window"] == given
    grant = peer.farm.data.take(said["lease"], b"data", "")
    assert grant is not None
    assert grant.window == given


def test_no_window_is_told_where_nothing_is_confirmed() -> None:
    peer = working()
    assert "window" not in peer.reader("a", confirm="none", window=5)[1]
    assert "window" not in peer.writer("a", confirm="full", window=5)[1]
    assert peer.reader("a", window=0)[0] == 400


def test_what_the_profile_has_to_say_is_told_with_the_lease() -> None:
    peer = working()
    peer.farm.shelf.members = {"reply": "reply/abc", "status": "not this", "lease": "nor this"}
    _, said = peer.reader("a")
    assert said["reply"] == "reply/abc"
    assert said["status"] == "Data Lease"
    assert peer.farm.data.take(said["lease"], b"data", "") is not None


def test_a_session_and_a_user_have_a_limited_number_of_leases() -> None:
    farm = closed_farm(leases=3, flows=4)
    one, other = (farm.peer(HERE).logged_in("alice", "pencil").working("shelf") for _ in range(2))
    for _ in range(3):
        assert one.reader()[0] == 202
    code, said = one.reader()
    assert code == 429
    assert said["status"] == "Too Many Requests"
    assert other.writer()[0] == 202
    assert other.writer()[0] == 429
    farm.wait(31)
    assert one.writer()[0] == 202


def test_an_unused_lease_ends_and_the_session_goes_on() -> None:
    peer = working()
    token = peer.lease()
    peer.farm.wait(31)
    assert peer.farm.data.take(token, b"data", "") is None
    assert peer.reader()[0] == 202


# E: errors


def dropped(peer: ControlPeer, fault: str, *frames: bytes) -> None:
    """These frames are dropped for that fault, and the next good request is answered, once."""
    before = peer.farm.counted(f"mtl_ill_formed.{fault}")
    peer.send(*frames)
    assert peer.take_frames() == []
    assert peer.farm.counted(f"mtl_ill_formed.{fault}") == before + 1
    assert peer.profile("test")[0] == 200


OPENING = [b"Connection.Open", json.dumps({"protocol": PROTOCOL}).encode()]


@pytest.mark.parametrize("count", [0, 1, 3, 200])
def test_E01_a_wrong_number_of_frames_is_dropped(count: int) -> None:
    dropped(ready(), "frames", b"", *(OPENING * 100)[:count])


@pytest.mark.parametrize("body", [b"", b"{", b"{}{}", b"{'a': 1}", b"nonsense", b'{"a": 01}', b'{"a": "\n"}'])
def test_E02_a_body_that_is_not_json_is_dropped(body: bytes) -> None:
    for command in (b"Connection.Open", b"no such command"):
        dropped(ready(), "json", b"", command, body)


@pytest.mark.parametrize("body", [b"\xff", b'{"a": "\xe9"}', '{"a": 1}'.encode("utf-16")])
def test_E03_a_body_that_is_not_utf_8_is_dropped(body: bytes) -> None:
    dropped(ready(), "encoding", b"", b"Connection.Open", body)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_E04_numbers_that_are_none_are_dropped(number: str) -> None:
    dropped(ready(), "json", b"", b"Connection.Open", f'{{"protocol": {number}}}'.encode())


@pytest.mark.parametrize("body", [b"[]", b"[{}]", b"42", b'"text"', b"null"])
def test_E05_json_that_is_no_object_is_answered(body: bytes) -> None:
    for command in ("Open", "Authorize", "Profile", "Reader", "Writer"):
        code, said = ready().ask(command, body)
        assert code == 400
        assert said["status"] == "Bad Request"


@pytest.mark.parametrize("command", [b"Connection.Close", b"Connection", b"\xff\xfe", b"Connection.Open "])
def test_E06_an_unknown_command_is_answered(command: bytes) -> None:
    for peer in (ready(), ControlFarm().peer()):
        code, said = peer.ask(command, {})
        assert code == 501
        assert said["status"] == "Not implemented"


def test_E07_errors_are_a_code_and_an_object_with_a_status() -> None:
    peer = ControlFarm(leases=1).peer().opened()
    answers = [
        peer.profile("x"),
        peer.open("nowhere"),
        peer.ask(b"x", {}),
        peer.opened().working("shelf").reader("not yours"),
        peer.ask("Reader", b" " * (MAX_REQUEST + 1)),
    ]
    assert [code for code, _ in answers] == [400, 403, 501, 403, 413]
    assert all(set(said) == {"status", "reason"} for _, said in answers)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 20_000 + b"]" * 20_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"protocol": ' + b"9" * 5_000 + b"}",
        b'{"protocol": {"name": "MTL", "version": ' + b"1" * 5_000 + b"}}",
        b'{"protocol": {"name": "\\ud800", "version": 1}}',
        b'{"protocol": {"name": "MTL", "version": 1}, "virtual-host": "\\udfff"}',
        b'{"protocol": {"name": "MTL", "version": 2}, "protocol": 1}',
    ],
)
def test_E08_odd_json_is_answered(body: bytes) -> None:
    peer = ready()
    assert peer.ask("Open", body)[0] in (400, 413, 501)
    assert peer.profile("test")[0] == 200


def test_E08_a_byte_order_mark_is_not_json() -> None:
    dropped(ready(), "json", b"", b"Connection.Open", b"\xef\xbb\xbf" + OPENING[1])


@pytest.mark.parametrize("command", [b"\0" * 64, b"x" * 65_536, bytes(range(256))])
def test_E09_odd_commands_are_answered(command: bytes) -> None:
    peer = ready()
    assert peer.ask(command, {})[0] in (413, 501)
    assert peer.profile("test")[0] == 200


def test_E09_an_empty_command_is_answered() -> None:
    peer = ready()
    assert peer.ask(b"", {})[0] == 501


def test_E10_what_has_no_delimiter_is_dropped() -> None:
    dropped(ready(), "delimiter", *OPENING)
    dropped(ready(), "envelope", *[b"x"] * 50)


def test_E11_a_huge_request_is_refused_and_its_envelope_is_bounded() -> None:
    peer = ready()
    assert peer.ask("Open", b" " * (8 * 1024 * 1024))[0] == 413
    names = json.dumps({"resources": [str(number) for number in range(MAX_RESOURCES + 1)]})
    assert peer.ask("Reader", names.encode())[0] == 413
    dropped(peer, "envelope", *[b"x" * 100] * 11, b"", *OPENING)
    assert peer.farm.counted("mtl_ill_formed.envelope") == 1
    assert len(peer.farm.control) == 1


def test_what_is_dropped_is_logged_seldom() -> None:
    with capturedLogs() as logged:
        farm = ControlFarm()
        peer, other = farm.peer(), farm.peer("192.0.2.8")
        for _ in range(100):
            for each in (peer, other):
                each.send(b"", b"Connection.Open", b"some secret")
    assert [(event["wire"], event["address"]) for event in logged] == [(WIRE, peer.sender.address), (WIRE, "192.0.2.8")]
    assert "some secret" not in repr(logged)
    assert farm.counted("mtl_ill_formed.json") == 200
    assert len(farm.control) == 0


def test_a_defect_of_ours_is_answered_and_logged() -> None:
    peer = working()
    with capturedLogs() as logged:
        code, said = peer.reader("defect")
    assert code == 500
    assert said["status"] == "Internal Error"
    assert [event["log_failure"].type for event in logged if "log_failure" in event] == [RuntimeError]
    assert peer.reader("fine")[0] == 202


def test_a_defect_in_a_thread_is_answered_and_logged() -> None:
    def fails(*_: object) -> None:
        raise RuntimeError

    farm = closed_farm()
    peer = farm.peer(HERE)
    peer.open()
    farm.mechanisms._logins.passwords._checks._in_thread = fails  # type: ignore[assignment]
    with capturedLogs() as logged:
        code, said = peer.ask("Authorize", plain("alice", "pencil"))
    assert code == 500
    assert said["status"] == "Internal Error"
    assert [event["log_failure"].type for event in logged if "log_failure" in event] == [RuntimeError]
    assert len(farm.leases) == 0
    assert peer.scram("alice", "pencil")[0] == 201


def test_a_defect_in_sending_a_reply_costs_that_reply_and_those_behind_it() -> None:
    def fails(*_: object) -> None:
        raise RuntimeError

    farm = closed_farm()
    peer = farm.peer(HERE)
    peer.open()
    peer.say("Authorize", plain("alice", "pencil"))
    peer.say("Profile", {"profile": "test"})
    reply, farm.router.reply = farm.router.reply, fails  # type: ignore[method-assign, assignment]
    with capturedLogs() as logged:
        farm.threads.run()
    assert [event["log_failure"].type for event in logged if "log_failure" in event] == [RuntimeError]
    farm.router.reply = reply  # type: ignore[method-assign]
    assert peer.profile("test")[0] == 200
    assert farm.counted("mtl_dropped.gone") == 2


def test_a_drain_ends_leases_and_answers_503_until_it_is_undone() -> None:
    farm = closed_farm()
    peer, waiting, new = farm.peer(HERE), farm.peer(HERE), farm.peer()
    peer.logged_in("alice", "pencil")
    assert peer.profile("test")[0] == 200
    token = peer.reader()[1]["lease"]
    waiting.open()
    waiting.say("Authorize", plain("alice", "pencil"))
    farm.control.drain()
    assert farm.data.take(token, b"data", "") is None
    farm.control.drain()
    assert [code for code, _ in waiting.take()] == [503]
    farm.threads.run()
    for each in (peer, waiting, new):
        code, said = each.open()
        assert (code, said["reason"]) == (503, "the broker is draining: connect to another one")
    assert not any(session.principal for session in farm.control.sessions())
    farm.control.undrain()
    assert new.open()[0] == 401
    peer.logged_in("alice", "pencil")
    farm.control.stop()
    farm.control.undrain()
    assert peer.open()[0] == 503


def test_while_the_broker_stops_everybody_hears_that() -> None:
    farm = closed_farm()
    peer, waiting, new = farm.peer(HERE), farm.peer(HERE), farm.peer()
    peer.logged_in("alice", "pencil")
    waiting.open()
    waiting.say("Authorize", plain("alice", "pencil"))
    waiting.say("Profile", {"profile": "test"})
    farm.control.stop()
    assert [code for code, _ in waiting.take()] == [503, 503]
    farm.threads.run()
    for each in (peer, waiting, new):
        code, said = each.open()
        assert code == 503
        assert said["status"] == "Unavailable"
        assert each.plain("alice", "pencil")[0] == 503
    assert len(farm.leases) == 0


def test_new_settings_count_from_then_on() -> None:
    farm = ControlFarm()
    peer = farm.peer().opened().working("shelf")
    farm.control.use(Mtl(window=3, flows=1, data_endpoint="tcp://there:1"))
    _, said = peer.reader()
    assert said["window"] == 3
    assert said["endpoint"] == "tcp://there:1"
    assert farm.peer().open()[1]["limits"] == LIMITS | {"window": 3, "flows": 1}
