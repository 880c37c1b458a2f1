"""Logins: the same attack on each door that checks a password, and a token beside it."""

from __future__ import annotations

import socket
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.access.logins import ADDRESS_GUESS_EVERY, ADDRESS_GUESSES, GUESS_EVERY, GUESSES
from broker.brokerctl.answers import Exit
from tests.brokerctl.server import ctl
from tests.contract.doors import (
    CODE,
    DOORS,
    IN,
    KEYED,
    NAMED,
    SPACED,
    TOKEN,
    TOKENS,
    Door,
    House,
    open_house,
    open_keyed_house,
)
from tests.integration.carried_peers import HttpPeer, RtcpPeer
from tests.integration.daemon import Peer
from tests.integration.http_api import ask
from tests.integration.mtl_peers import Control, Scram, challenge
from tests.patience import PATIENCE, until


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_house(tmp_path_factory.mktemp("doors")) as house:
        yield house


@pytest.fixture(params=list(DOORS.values()), ids=list(DOORS))
def door(request: pytest.FixtureRequest) -> Door:
    found: Door = request.param
    return found


@pytest.fixture(params=list(NAMED.values()), ids=list(NAMED))
def named(request: pytest.FixtureRequest) -> Door:
    found: Door = request.param
    return found


def is_refused(answer: str) -> bool:
    """True for an attempt that was not compared."""
    return "too many wrong passwords" in answer


def exhaust(house: House, door: Door, source: str, user: str = "ann") -> str:
    """Guess until a guess is refused without a comparison, and return that answer.

    Several guesses at once: on a machine that takes seconds for one, the next one would be admitted again.
    """
    end = time.monotonic() + PATIENCE
    with ThreadPoolExecutor(2 * GUESSES) as pool:
        while True:
            answers = list(pool.map(lambda _: door(house, user, "guess", source), range(2 * GUESSES)))
            assert IN not in answers
            if refused := [answer for answer in answers if is_refused(answer)]:
                return refused[0]
            assert time.monotonic() < end


def test_the_right_password_is_let_in_and_a_wrong_one_is_not(house: House, door: Door) -> None:
    source = house.source()
    assert door(house, "ann", "pencil", source) == IN
    assert "wrong" in door(house, "ann", "guess", source)
    assert door(house, "ann", "pencil", source) == IN


def test_blanks_at_the_ends_of_a_password_count(house: House, named: Door) -> None:
    source = house.source()
    assert named(house, "dan", SPACED, source) == IN
    assert "wrong" in named(house, "dan", SPACED.strip(), source)


def test_while_guesses_are_refused_a_right_password_is_answered_as_a_wrong_one(house: House, door: Door) -> None:
    source = house.source()
    assert door(house, "ann", "pencil", source) == IN  # it may be in a cache
    end = time.monotonic() + PATIENCE
    while True:
        before = exhaust(house, door, source)
        right = door(house, "ann", "pencil", source)
        after = door(house, "ann", "guess", source)
        # A right password takes no token. So if none was there after it, none was there before it.
        if is_refused(after):
            assert before == right == after
            return
        assert time.monotonic() < end


# exchanges that end half-way


SCRAM = "SCRAM-SHA-256"


def challenged(house: House, source: str, password: str = "pencil") -> tuple[Control, bytes]:
    """A client of ann that has got the challenge of SCRAM, and its answer."""
    peer, exchange = house.mtl.control(source=source), Scram("ann", password)
    assert peer.open().code == "401"
    return peer, exchange.final(challenge(peer.authorize(SCRAM, exchange.first())))


def test_an_exchange_that_ends_before_the_proof_is_no_guess(house: House) -> None:
    source = house.source()
    for number in range(2 * ADDRESS_GUESSES):
        peer, _ = challenged(house, source)
        if number % 2:
            # Begun again, and left open.
            assert peer.authorize(SCRAM, Scram("ann", "guess").first()).code == "402"
        else:
            peer.close()
    for door in (DOORS["mtl_scram"], DOORS["mtl_plain"], DOORS["elko"]):
        assert door(house, "ann", "pencil", source) == IN


@pytest.mark.parametrize("spoiled", [b"x,p=", b",p=!"], ids=["another nonce", "no base64"])
def test_a_malformed_proof_is_neither_compared_nor_a_guess(house: House, spoiled: bytes) -> None:
    source = house.source()
    answers = set()
    for number in range(2 * ADDRESS_GUESSES):
        peer, final = challenged(house, source, "guess" if number % 2 else "pencil")
        reply = peer.authorize(SCRAM, final.replace(b",p=", spoiled))
        answers.add(f"{reply.code} {reply.body}")
        peer.close()
    assert len(answers) == 1
    assert DOORS["mtl_scram"](house, "ann", "pencil", source) == IN


def test_a_proof_counts_as_a_guess_although_its_client_does_not_wait_for_the_answer(house: House) -> None:
    source = house.source()
    end = time.monotonic() + PATIENCE
    while not is_refused(DOORS["elko"](house, "ann", "pencil", source)):
        assert time.monotonic() < end
        clients = [challenged(house, source, "guess") for _ in range(2 * GUESSES)]
        for peer, final in clients:
            peer.send("Connection.Authorize", {"mechanism": SCRAM, "response": b64encode(final).decode()})
        for peer, _ in clients:
            assert peer.socket.poll(int(PATIENCE * 1_000))
            peer.close()


def test_a_client_that_loses_its_connection_after_the_right_proof_is_let_in_again(house: House) -> None:
    source = house.source()
    for _ in range(2 * GUESSES):
        peer, final = challenged(house, source)
        assert peer.authorize(SCRAM, final).code == "402"  # the proof of the broker
        peer.close()
    assert DOORS["mtl_scram"](house, "ann", "pencil", source) == IN


# brokerctl


def test_brokerctl_is_answered_alike_for_right_and_wrong_passwords_while_guesses_are_refused(
    house: House, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{house.daemon.http_port()}"

    def answer(password: str) -> tuple[int, str]:
        file = tmp_path / password
        file.write_text(password)
        file.chmod(0o600)
        result = ctl("--url", url, "--user", "cyd", "--password-file", file, "services")
        return result.exit_code, result.stdout + result.stderr

    assert answer("eraser")[0] == 0
    assert answer("guess")[0] == Exit.DENIED
    end = time.monotonic() + PATIENCE
    while True:
        with ThreadPoolExecutor(2 * GUESSES) as pool:
            list(pool.map(lambda _: DOORS["basic"](house, "cyd", "guess", "127.0.0.1"), range(2 * GUESSES)))
        before, right, after = answer("guess"), answer("eraser"), answer("guess")
        if is_refused(before[1]) and is_refused(after[1]):
            assert before == right == after
            return
        assert time.monotonic() < end


# other names and addresses


def test_a_guessed_name_refuses_no_other_name_and_no_other_address(house: House, named: Door) -> None:
    source = house.source()
    exhaust(house, named, source)
    assert named(house, "bob", "crayon", source) == IN
    assert named(house, "ann", "pencil", house.source()) == IN


def test_guesses_at_all_doors_count_together(house: House) -> None:
    source = house.source()
    begin = time.monotonic()
    answers = [door(house, "ann", "guess", source) for _ in range(2) for door in NAMED.values()]
    compared = sum(not is_refused(answer) for answer in answers)
    assert GUESSES <= compared <= GUESSES + (time.monotonic() - begin) / GUESS_EVERY


def test_the_limit_of_an_address_is_one_for_all_doors(house: House) -> None:
    source, doors = house.source(), list(NAMED.values())
    begin = time.monotonic()
    answers = [
        doors[number % len(doors)](house, f"no-{number}", "guess", source) for number in range(2 * ADDRESS_GUESSES)
    ]
    compared = sum(not is_refused(answer) for answer in answers)
    assert ADDRESS_GUESSES <= compared <= ADDRESS_GUESSES + (time.monotonic() - begin) / ADDRESS_GUESS_EVERY


def test_names_that_nobody_has_are_answered_as_others_and_have_a_limit_together(house: House, named: Door) -> None:
    source = house.source()
    begin = time.monotonic()
    wrong = named(house, "ann", "guess", source)
    answers = [named(house, f"nobody-{number}", "guess", source) for number in range(2 * ADDRESS_GUESSES)]
    assert answers[0] == wrong
    compared = sum(not is_refused(answer) for answer in answers)
    assert compared <= ADDRESS_GUESSES + (time.monotonic() - begin) / ADDRESS_GUESS_EVERY


def test_a_name_that_logged_in_before_comes_back_while_an_address_guesses_others(house: House, named: Door) -> None:
    source = house.source()
    assert named(house, "ann", "pencil", source) == IN
    for number in range(2 * ADDRESS_GUESSES):
        named(house, f"nobody-{number}", "guess", source)
        if not number % 10:
            assert named(house, "ann", "pencil", source) == IN


def test_a_name_that_logged_in_before_a_restart_comes_back_too(tmp_path: Path) -> None:
    source = "127.9.1.1"
    with open_house(tmp_path) as house:
        assert DOORS["elko"](house, "ann", "pencil", source) == IN
        until((tmp_path / "state" / "known_logins").exists)
    with open_house(tmp_path) as house:
        for number in range(ADDRESS_GUESSES):
            DOORS["basic"](house, f"nobody-{number}", "guess", source)
        assert all(DOORS[name](house, "ann", "pencil", source) == IN for name in ("elko", "mtl_scram"))


@pytest.mark.parametrize("name", TOKENS)
def test_a_token_is_never_refused_for_guesses_of_passwords_or_tokens(house: House, name: str) -> None:
    source, door = house.source(), DOORS[name]
    for user in ("ann", "bob"):
        exhaust(house, door, source, user)
    for _ in range(2 * GUESSES):
        assert not is_refused(door(house, "", TOKEN[:-1] + "!", source))
    assert door(house, "", TOKEN, source) == IN


@pytest.fixture(scope="module")
def keyed_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_keyed_house(tmp_path_factory.mktemp("keyed")) as house:
        yield house


@pytest.mark.parametrize("name", KEYED)
def test_a_key_or_certificate_is_never_refused_for_guesses_of_its_address(keyed_house: House, name: str) -> None:
    source, door = keyed_house.source(), KEYED[name]
    assert door(keyed_house, "stranger", "", source) != IN
    end = time.monotonic() + PATIENCE
    while True:
        for number in range(2 * ADDRESS_GUESSES):
            DOORS["elko"](keyed_house, f"nobody-{number}", "guess", source)
        exhaust(keyed_house, DOORS["elko"], source)
        assert door(keyed_house, "ann", "", source) == IN
        if is_refused(DOORS["elko"](keyed_house, "ann", "guess", source)):
            return
        assert time.monotonic() < end


def test_open_sessions_are_not_touched_by_guesses(house: House) -> None:
    source = house.source()
    auth = {"mode": "password", "id": "ann", "code": "pencil"}
    with ExitStack() as stack:
        peers: list[Peer | RtcpPeer] = [
            Peer(socket.create_connection(("127.0.0.1", house.daemon.port()), PATIENCE, (source, 0))),
            RtcpPeer(house.daemon.port("rtcp"), source=source),
        ]
        for peer in peers:
            stack.enter_context(peer)
            peer.send(to="client", op="auth", auth=auth)
        poll = HttpPeer(house.daemon.port("poll"), "/", source=source)
        stack.callback(poll.connection.close)
        poll.send(to="client", op="auth", auth=auth)
        operator = stack.enter_context(
            socket.create_connection(("127.0.0.1", house.daemon.console_port()), PATIENCE, (source, 0))
        )
        lines = stack.enter_context(operator.makefile("rw"))
        lines.write("login ann\npencil\n")
        lines.flush()
        while "elkobroker console" not in lines.readline():
            pass
        control = house.mtl.control(source=source)
        assert control.open().code == "401"
        assert control.plain("ann", "pencil").code == "201"
        for door in (DOORS["basic"], DOORS["mtl_scram"]):
            exhaust(house, door, source)
        assert is_refused(DOORS["elko"](house, "ann", "pencil", source))
        for peer in peers:
            peer.send(to="client", op="ping")
            assert peer.receive()["op"] == "pong"
        poll.send(to="client", op="ping")
        assert poll.receive()[0]["op"] == "pong"
        lines.write("version\n")
        lines.flush()
        assert "elkobroker 0" in lines.readline()
        assert control.profile("topic").code == "200"


@pytest.mark.parametrize("user", ["x" * 100_000, "an n", "\u00e9"], ids=["long", "blank", "accent"])
def test_a_name_that_nobody_can_have_is_wrong_and_shown_nowhere(house: House, user: str) -> None:
    source = house.source()
    assert "wrong" in DOORS["elko"](house, user, "guess", source)
    assert not any(user[:1_000] in line for line in house.daemon.log)


# messages behind a login


def pipelined(house: House, source: str, *messages: dict[str, object]) -> Peer:
    """A peer of Elko that sends all messages at once, before it has an answer to the first one."""
    peer = Peer(socket.create_connection(("127.0.0.1", house.daemon.port()), PATIENCE, (source, 0)))
    peer.send_at_once(*messages)
    return peer


def auth(user: str, password: str, to: str = "client") -> dict[str, object]:
    return {"to": to, "op": "auth", "auth": {"mode": "password", "id": user, "code": password}}


def found_by_ann(house: House, service: str) -> list[str]:
    """The hostports of a service."""
    with pipelined(house, house.source(), auth("ann", "pencil")) as peer:
        answer = peer.ask(to="client", op="find", service=service)
        return [each["hostport"] for each in answer["desc"] if "failure" not in each]


def test_nothing_is_done_behind_a_login_that_closes_the_connection(house: House) -> None:
    source = house.source()
    assert DOORS["elko"](house, "bob", "crayon", source) == IN  # from now on its password needs no check
    offer: dict[str, object] = {"to": "client", "op": "willserve", "services": [{"service": "late", "hostport": "h:1"}]}
    with pipelined(house, source, auth("bob", "guess"), auth("bob", "crayon"), offer) as peer:
        assert "wrong" in peer.receive()["msg"]
        peer.closed()
    assert found_by_ann(house, "late") == []


# secrets of services


def found_over_elko(house: House, listener: str, auth: dict[str, str] | None) -> object:
    """The credentials that a find shows."""
    with Peer(socket.create_connection(("127.0.0.1", house.daemon.port(listener)), PATIENCE)) as peer:
        peer.send(to="client", op="auth", **({} if auth is None else {"auth": auth}))
        return peer.ask(to="client", op="find", service="secretive")["desc"][0].get("auth")


def found_over_http(house: House, **headers: str) -> object:
    return ask(house.daemon, "GET", "/v1/services/secretive", **headers)[1]["services"][0]["auth"]


def test_secrets_of_services_are_for_users_and_not_for_everybody_on_this_machine(house: House) -> None:
    secret = {"mode": "password", "code": "hunter2"}
    offered = {"service": "secretive", "hostport": "h:1", "auth": secret}
    ann = {"mode": "password", "id": "ann", "code": "pencil"}
    with Peer(socket.create_connection(("127.0.0.1", house.daemon.port()), PATIENCE)) as server:
        server.send(to="client", op="auth", auth=ann)
        server.send(to="client", op="willserve", services=[offered])
        server.done()
        shown = {"type": "auth", **secret}
        assert found_over_elko(house, "main", ann) == shown
        assert found_over_elko(house, "coded", {"mode": "password", "code": CODE}) == shown
        assert found_over_elko(house, "open", None) is None
        assert found_over_http(house, Authorization=f"Bearer {TOKEN}") == secret
        assert found_over_http(house) == {"mode": "password"}
