"""The control flow of MTL: the answer to each request.

Each test is named after the row of the conformance list that it is for, if there is one. Rows that a client can tell
are tested over sockets, in tests/integration/test_mtl.py and test_mtl_logins.py.

The file is longer than others: it has all tests of `broker.wires.mtl.sessions.control_flow`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from scramp import ScramClient  # type: ignore[import-untyped]
from twisted.logger import capturedLogs, formatEvent

from broker.access.logins import GUESSES
from broker.access.rights import Right
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Side
from broker.wires.mtl.sessions.control_flow import WIRE
from broker.wires.mtl.sessions.sasl import EXCHANGE_SECONDS, EXTERNAL, PLAIN, SCRAM
from tests.recording.logs import nothing_fails
from tests.wires.mtl.control_recording import (
    HERE,
    KEY,
    OTHER_KEY,
    PORT,
    ControlFarm,
    ControlPeer,
    Users,
    authorize,
    challenge,
    plain,
)

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


# A: Connection.Open


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
    assert [farm.counted(f"mtl_logins.{why}") for why in ("late", "malformed")] == [1, 0]
    farm.threads.run()
    assert peer.take() == []
    assert peer.profile("test")[0] == 401
    assert peer.plain("alice", "pencil")[0] == 201


# A: access that is taken away


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


# L: Connection.Reader and Connection.Writer


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


def test_L03_an_endpoint_is_told_where_one_is_set() -> None:
    _, said = ControlFarm(data_endpoint="tcp://broker.example:5976").peer().opened().working("test").reader()
    assert said["endpoint"] == "tcp://broker.example:5976"
    assert said["port"] == PORT


def test_L05_nor_is_a_side_that_it_has_not() -> None:
    peer = working()
    peer.farm.shelf.confirms = {Side.WRITER: (ConfirmMode.FULL,)}
    for more in ({}, {"confirm": "none"}, {"confirm": "full"}):
        assert peer.reader(**more) == (501, {"status": "Not implemented"})
    assert peer.writer(confirm="none") == (501, {"status": "Not implemented"})
    assert peer.writer()[0] == 202


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


def test_what_the_profile_has_to_say_is_told_with_the_lease() -> None:
    peer = working()
    peer.farm.shelf.members = {"reply": "reply/abc", "status": "not this", "lease": "nor this"}
    _, said = peer.reader("a")
    assert said["reply"] == "reply/abc"
    assert said["status"] == "Data Lease"
    assert peer.farm.data.take(said["lease"], b"data", "") is not None


# E: errors


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
