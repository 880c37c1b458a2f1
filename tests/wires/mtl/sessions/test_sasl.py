"""SASL: each mechanism, its failures, and indistinguishable answers.

The file is longer than others: it has all tests of `broker.wires.mtl.sessions.sasl`.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramClient  # type: ignore[import-untyped]
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.threads import deferToThread
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from broker.access import passwords
from broker.access.logins import Logins
from broker.access.passwords import CHECKS, MAX_PASSWORD, MAX_WAITING, PasswordChecks, PasswordVerifier
from broker.core.errors import Reason, Refusal
from broker.wires.mtl.sessions.sasl import (
    MAX_RESPONSE,
    MAX_SCRAM,
    MAX_TRACE,
    NOT_YOURS,
    WRONG,
    FailureReason,
    LoginChallenge,
    LoginDone,
    LoginFailed,
    LoginOutcome,
    Mechanisms,
    SaslExchange,
)
from tests.access.memory import MemoryAccess
from tests.examples import examples
from tests.threads import Thread

FAST = 4_096

ANNA = passwords.of("pencil", FAST)

LOGINS = partial(Logins.open, lambda: 0.0)
"""New limits on logins, whose checks run in the given threads."""


def people(**users: PasswordVerifier) -> MemoryAccess:
    """Users in memory."""
    return MemoryAccess(users)


def mechanisms(
    access: MemoryAccess | None = None,
    in_thread: Callable[..., Deferred[Any]] = maybeDeferred,
    secret: bytes = b"secret",
) -> Mechanisms:
    access = people(anna=ANNA) if access is None else access
    return Mechanisms(access, LOGINS(in_thread), secret, {"KEY": "anna"}.get)


def begun(mechanism: str, among: Mechanisms | None = None, key: str = "KEY", address: str = "") -> SaslExchange:
    exchange = (mechanisms() if among is None else among).begin(mechanism, key, address)
    assert exchange.mechanism == mechanism
    return exchange


def outcome(deferred: Deferred[LoginOutcome]) -> LoginOutcome:
    """The immediate result of a step."""
    found: list[LoginOutcome] = []
    deferred.addCallback(found.append)
    (one,) = found
    return one


def step(exchange: SaslExchange, response: bytes | None) -> LoginOutcome:
    return outcome(exchange.step(response))


def answer(exchange: SaslExchange, response: bytes | None) -> bytes:
    """The challenge that a response brings."""
    found = step(exchange, response)
    assert isinstance(found, LoginChallenge), found
    return found.data


def failed(exchange: SaslExchange, response: bytes | None) -> LoginFailed:
    """A failure, which ends the exchange."""
    found = step(exchange, response)
    assert isinstance(found, LoginFailed), found
    assert step(exchange, b"") == LoginFailed(FailureReason.MALFORMED, "a response out of order")
    return found


# what is offered


def test_passwords_go_in_the_clear_only_where_nobody_listens() -> None:
    offered = mechanisms()
    assert offered.names(True, "", True) == ("SCRAM-SHA-256", "PLAIN", "ANONYMOUS")
    assert offered.names(False, "", True) == ("SCRAM-SHA-256", "ANONYMOUS")


def test_a_key_that_stands_for_a_user_is_enough() -> None:
    offered = mechanisms()
    assert offered.names(True, "KEY", True) == ("SCRAM-SHA-256", "EXTERNAL", "PLAIN", "ANONYMOUS")
    assert offered.names(True, "OTHER", True) == offered.names(True, "", True)


def test_an_empty_key_and_a_key_of_the_empty_user_stand_for_nobody() -> None:
    for key, user in (("", "anna"), ("KEY", "")):
        offered = Mechanisms(people(), LOGINS(maybeDeferred), b"", {key: user}.get)
        assert offered.names(True, key) == ()


def test_anybody_comes_in_only_where_that_is_said() -> None:
    assert mechanisms().names(True, "") == ("SCRAM-SHA-256", "PLAIN")


def test_without_users_there_are_no_passwords() -> None:
    assert Mechanisms(people(), LOGINS(maybeDeferred), b"").names(True, "KEY") == ()
    assert mechanisms(people()).names(True, "KEY", True) == ("EXTERNAL", "ANONYMOUS")


# SCRAM


class Client:
    """The client's side of SCRAM-SHA-256, written from RFC 5802."""

    def __init__(self, user: str, password: str, header: str = "n,,", nonce: str = "rOprNGfwEbeRWgbNEkqO") -> None:
        self.header = header
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self.nonce = nonce
        self.password = password.encode()

    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, challenge: bytes, extension: str = "") -> bytes:
        fields = dict(field.split("=", 1) for field in challenge.decode().split(","))
        assert list(fields) == ["r", "s", "i"]
        assert fields["r"].startswith(self.nonce)
        assert len(fields["r"]) >= len(self.nonce) + 20
        self.salt, self.iterations = b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac("sha256", self.password, self.salt, self.iterations)
        key = hmac.digest(salted, b"Client Key", "sha256")
        said = f"c={b64encode(self.header.encode()).decode()},r={fields['r']}{extension}"
        message = f"{self.bare},{challenge.decode()},{said}".encode()
        signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        self.server = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), message, "sha256")
        return f"{said},p={b64encode(proof).decode()}".encode()

    def proves(self, challenge: bytes) -> bool:
        return challenge == b"v=" + b64encode(self.server)


def test_a_user_comes_in_by_scram_and_knows_that_the_broker_is_the_right_one() -> None:
    client, exchange = Client("anna", "pencil"), begun("SCRAM-SHA-256")
    first = step(exchange, client.first())
    assert isinstance(first, LoginChallenge)
    last = step(exchange, client.final(first.data))
    assert isinstance(last, LoginChallenge)
    assert client.proves(last.data)
    assert step(exchange, b"") == LoginDone("anna")
    assert failed(exchange, b"").why is FailureReason.MALFORMED


def test_another_clients_library_comes_in_too() -> None:
    client, exchange = ScramClient(["SCRAM-SHA-256"], "anna", "pencil"), begun("SCRAM-SHA-256")
    client.set_server_first(answer(exchange, client.get_client_first().encode()).decode())
    client.set_server_final(answer(exchange, client.get_client_final().encode()).decode())
    assert step(exchange, b"") == LoginDone("anna")


def test_the_client_may_wait_for_a_challenge_before_it_begins() -> None:
    client, exchange = Client("anna", "pencil"), begun("SCRAM-SHA-256")
    assert step(exchange, None) == LoginChallenge(b"")
    assert client.proves(answer(exchange, client.final(answer(exchange, client.first()))))
    assert step(exchange, None) == LoginDone("anna")


def test_a_client_that_would_bind_a_channel_if_it_could_comes_in() -> None:
    client, exchange = Client("anna", "pencil", header="y,,"), begun("SCRAM-SHA-256")
    assert client.proves(answer(exchange, client.final(answer(exchange, client.first()))))


def test_extensions_that_may_be_ignored_are() -> None:
    client, exchange = Client("anna", "pencil"), begun("SCRAM-SHA-256")
    client.bare += ",x=1,y==\u20ac="
    assert client.proves(answer(exchange, client.final(answer(exchange, client.first()), ",z=1,x=\xe9")))


def test_a_name_with_characters_that_scram_escapes() -> None:
    client, exchange = Client("a,b=c", "pencil"), begun("SCRAM-SHA-256", mechanisms(people(**{"a,b=c": ANNA})))
    answer(exchange, client.final(answer(exchange, client.first())))
    assert step(exchange, b"") == LoginDone("a,b=c")


def test_a_wrong_password_does_not_come_in() -> None:
    client, exchange = Client("anna", "pencil "), begun("SCRAM-SHA-256")
    assert failed(exchange, client.final(answer(exchange, client.first()))) == WRONG


def test_an_unknown_user_looks_like_a_wrong_password() -> None:
    client, exchange = Client("bert", "pencil"), begun("SCRAM-SHA-256")
    assert failed(exchange, client.final(answer(exchange, client.first()))) == WRONG
    assert (client.iterations, len(client.salt)) == (FAST, len(ANNA.salt))


def seen(among: Mechanisms, user: str) -> tuple[bytes, int]:
    """The salt and the iterations that a client is told."""
    challenge = answer(begun("SCRAM-SHA-256", among), Client(user, "").first())
    _, salt, iterations = challenge.decode().split(",")
    return b64decode(salt.removeprefix("s=")), int(iterations.removeprefix("i="))


def test_an_unknown_user_has_the_same_salt_each_time_and_after_a_restart() -> None:
    assert seen(mechanisms(), "bert") == seen(mechanisms(), "bert")
    assert seen(mechanisms(), "bert") != seen(mechanisms(), "carl")
    assert seen(mechanisms(), "bert") != seen(mechanisms(secret=b"other"), "bert")


def test_unknown_users_are_like_the_known_ones_also_where_those_differ() -> None:
    access = people()
    for number in range(10):
        salt = bytes(64) if number < 3 else bytes(12)
        access.passwords[f"user{number}"] = PasswordVerifier(4_096 + number, salt, bytes(32), bytes(32))
    shapes = {(iterations, len(salt)) for salt, iterations in (seen(mechanisms(access), f"x{at}") for at in range(300))}
    assert shapes == set(access.shapes)
    assert seen(mechanisms(people()), "bert")[1] == passwords.ITERATIONS


def test_when_users_come_few_of_the_unknown_ones_change() -> None:
    access = people(**{f"user{at}": PasswordVerifier(FAST + at % 2, bytes(16), b"", b"") for at in range(100)})
    before = [seen(mechanisms(access), f"x{at}")[1] for at in range(200)]
    access.passwords["another"] = ANNA
    after = [seen(mechanisms(access), f"x{at}")[1] for at in range(200)]
    assert sum(one != two for one, two in zip(before, after, strict=True)) < 10


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b"", FailureReason.MALFORMED),
        (b"n", FailureReason.MALFORMED),
        (b"n,,", FailureReason.MALFORMED),
        (b"n,", FailureReason.MALFORMED),
        (b",,n=anna,r=abc", FailureReason.MALFORMED),
        (b"N,,n=anna,r=abc", FailureReason.MALFORMED),
        (b"n=anna,r=abc", FailureReason.MALFORMED),
        (b"n,a=anna,n=anna,r=abc", FailureReason.MALFORMED),
        (b"n,a=bert,n=anna,r=abc", FailureReason.MALFORMED),
        (b"p=,,n=anna,r=abc", FailureReason.UNSUPPORTED),
        (b"p=tls-unique,,n=anna,r=abc", FailureReason.UNSUPPORTED),
        (b"p=tls-exporter,,n=anna,r=abc", FailureReason.UNSUPPORTED),
        (b"p=nothing,,n=anna,r=abc", FailureReason.UNSUPPORTED),
        (b"n,,m=x,n=anna,r=abc", FailureReason.UNSUPPORTED),
        (b"n,,n=anna", FailureReason.MALFORMED),
        (b"n,,r=abc", FailureReason.MALFORMED),
        (b"n,,r=abc,n=anna", FailureReason.MALFORMED),
        (b"n,,n=,r=abc", FailureReason.MALFORMED),
        (b"n,,n=anna,r=", FailureReason.MALFORMED),
        (b"n,,n=anna,r=a b", FailureReason.MALFORMED),
        (b"n,,n=anna,r=abc\x7f", FailureReason.MALFORMED),
        ("n,,n=anna,r=\xe9".encode(), FailureReason.MALFORMED),
        (b"n,,n=anna,r=abc,", FailureReason.MALFORMED),
        (b"n,,n=anna,r=abc,x", FailureReason.MALFORMED),
        (b"n,,n=anna,r=abc,x=1,x=2", FailureReason.MALFORMED),
        (b"n,,n=anna,r=abc,1=2", FailureReason.MALFORMED),
        (b"n,,n=an=na,r=abc", FailureReason.MALFORMED),
        (b"n,,n=an=2cna,r=abc", FailureReason.MALFORMED),
        (b"n,,n=an\0na,r=abc", FailureReason.MALFORMED),
        (b"n,,n=an\x07na,r=abc", FailureReason.MALFORMED),
        ("n,,n=\xad,r=abc".encode(), FailureReason.MALFORMED),
        ("n,,n=\N{LOCK},r=abc".encode(), FailureReason.MALFORMED),
        (b"n,,n=anna\xff,r=abc", FailureReason.MALFORMED),
        (b"n,,n=anna,r=\xed\xb2\x80", FailureReason.MALFORMED),
        (b"n,,n=anna,r=" + b"a" * (MAX_SCRAM - 11), FailureReason.MALFORMED),
    ],
)
def test_a_first_message_that_is_none_fails(first: bytes, why: FailureReason) -> None:
    assert failed(begun("SCRAM-SHA-256"), first).why is why


def test_the_longest_first_message_is_taken() -> None:
    client, exchange = Client("anna", "pencil", nonce="a" * (MAX_SCRAM - 12)), begun("SCRAM-SHA-256")
    assert len(client.first()) == MAX_SCRAM
    assert answer(exchange, client.first()).startswith(b"r=aaa")


def test_a_name_that_no_user_may_have_looks_like_a_wrong_password() -> None:
    client, exchange = Client("\xe9 *", "pencil"), begun("SCRAM-SHA-256")
    assert failed(exchange, client.final(answer(exchange, client.first()))) == WRONG


def swapped(final: bytes, old: str, new: str) -> bytes:
    assert old.encode() in final
    return final.replace(old.encode(), new.encode())


def proof(final: bytes) -> str:
    return final.decode().rpartition(",p=")[2]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda final: b"", FailureReason.MALFORMED),
        (lambda final: None, FailureReason.MALFORMED),
        (lambda final: final[:-1], FailureReason.MALFORMED),
        (lambda final: final + b"=", FailureReason.MALFORMED),
        (lambda final: final + b",x=1", FailureReason.MALFORMED),
        (lambda final: final + final, FailureReason.MALFORMED),
        (lambda final: final + b"\xff", FailureReason.MALFORMED),
        (lambda final: final + b"," * MAX_SCRAM, FailureReason.MALFORMED),
        (lambda final: final.rpartition(b",")[0], FailureReason.MALFORMED),
        (lambda final: swapped(final, proof(final), "!" * 44), FailureReason.MALFORMED),
        (lambda final: swapped(final, proof(final), "\xe9"), FailureReason.MALFORMED),
        (lambda final: swapped(final, proof(final), "AAAA"), FailureReason.CREDENTIALS),
        (lambda final: swapped(final, proof(final), b64encode(bytes(32)).decode()), FailureReason.CREDENTIALS),
        (lambda final: swapped(final, ",r=", ",r=x"), FailureReason.MALFORMED),
        (lambda final: swapped(final, ",p=", "x,p="), FailureReason.MALFORMED),
        (lambda final: swapped(final, ",p=", ",x=1,p="), FailureReason.CREDENTIALS),
        (lambda final: swapped(final, ",p=", ",m=1,p="), FailureReason.UNSUPPORTED),
        (lambda final: swapped(final, "c=biws", "c=eSws"), FailureReason.MALFORMED),
        (lambda final: swapped(final, "c=biws", "c=biw"), FailureReason.MALFORMED),
        (lambda final: swapped(final, "c=biws,", ""), FailureReason.MALFORMED),
        (lambda final: swapped(final, "c=biws", "c=cD10bHMtdW5pcXVlLCw="), FailureReason.MALFORMED),
        (lambda final: b"n,,n=anna,r=abc", FailureReason.MALFORMED),
    ],
)
@pytest.mark.parametrize("user", ["anna", "bert"])
def test_a_last_message_that_is_none_fails_for_any_user(
    user: str, change: Callable[[bytes], bytes | None], why: FailureReason
) -> None:
    client, exchange = Client(user, "pencil"), begun("SCRAM-SHA-256")
    assert failed(exchange, change(client.final(answer(exchange, client.first())))).why is why


def test_a_proof_from_another_exchange_is_worth_nothing() -> None:
    client, exchange = Client("anna", "pencil"), begun("SCRAM-SHA-256")
    final = client.final(answer(exchange, client.first()))
    other = begun("SCRAM-SHA-256")
    answer(other, client.first())
    assert failed(other, final).why is FailureReason.MALFORMED
    assert client.proves(answer(exchange, final))


def test_the_last_challenge_is_answered_by_nothing_else_than_an_empty_response() -> None:
    client, exchange = Client("anna", "pencil"), begun("SCRAM-SHA-256")
    answer(exchange, client.final(answer(exchange, client.first())))
    assert failed(exchange, b"x").why is FailureReason.MALFORMED


@pytest.mark.parametrize("replaced", [None, passwords.of("pencil", FAST)])
def test_a_user_who_is_taken_away_meanwhile_does_not_come_in(replaced: PasswordVerifier | None) -> None:
    def change() -> None:
        access.passwords = {} if replaced is None else {"anna": replaced}

    for after in (1, 2):
        access = people(anna=ANNA)
        client, exchange = Client("anna", "pencil"), begun("SCRAM-SHA-256", mechanisms(access))
        final = client.final(answer(exchange, client.first()))
        if after == 1:
            change()
            assert failed(exchange, final) == WRONG
        else:
            answer(exchange, final)
            change()
            assert failed(exchange, b"") == WRONG


# PLAIN


def test_a_user_comes_in_by_plain() -> None:
    for authorisation in (b"", b"anna"):
        exchange = begun("PLAIN")
        assert step(exchange, authorisation + b"\0anna\0pencil") == LoginDone("anna")


def test_plain_may_wait_for_an_empty_challenge() -> None:
    exchange = begun("PLAIN")
    assert step(exchange, None) == LoginChallenge(b"")
    assert step(exchange, b"\0anna\0pencil") == LoginDone("anna")


@pytest.mark.parametrize("response", [b"\0anna\0Pencil", b"\0bert\0pencil", b"\0\xc3\xa9*\0pencil", b"\0anna\0\x07"])
def test_a_wrong_password_and_an_unknown_user_are_the_same_to_plain(response: bytes) -> None:
    assert failed(begun("PLAIN"), response) == WRONG


def test_a_password_that_is_longer_than_any_is_wrong() -> None:
    assert failed(begun("PLAIN"), b"\0anna\0" + b"a" * (MAX_PASSWORD + 1)) == WRONG


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"\0",
        b"\0\0",
        b"anna\0pencil",
        b"\0anna\0",
        b"\0\0pencil",
        b"\0anna\0pencil\0",
        b"\0anna\0pen\0cil",
        b"\0anna\0pencil\xff",
        b"\xff\0anna\0pencil",
        b"a" * (MAX_RESPONSE + 1),
    ],
)
def test_a_response_that_is_none_of_plain_fails(response: bytes) -> None:
    assert failed(begun("PLAIN"), response).why is FailureReason.MALFORMED


@pytest.mark.parametrize("user", ["anna", "carl"])
def test_nobody_may_act_for_somebody_else(user: str) -> None:
    assert failed(begun("PLAIN"), f"bert\0{user}\0pencil".encode()) == NOT_YOURS


def test_an_unknown_user_costs_as_much_work_as_a_wrong_password() -> None:
    threads = Thread()
    among = mechanisms(in_thread=threads)
    work = []
    for user in (b"anna", b"bert"):
        begun("PLAIN", among).step(b"\0" + user + b"\0wrong")
        _, function, arguments = threads.jobs[-1]
        assert function is passwords.matching
        work.append(arguments[1:])
    # The work of `matching` itself is tested with the users file.
    assert work[0] == work[1] == ("wrong", FAST)


def test_a_user_who_is_taken_away_during_the_check_does_not_come_in() -> None:
    threads, access = Thread(), people(anna=ANNA)
    waiting = begun("PLAIN", mechanisms(access, threads)).step(b"\0anna\0pencil")
    access.passwords = {}
    threads.work()
    assert outcome(waiting) == WRONG


def test_a_step_before_the_outcome_of_the_last_is_out_of_order_and_does_no_harm() -> None:
    threads = Thread()
    exchange = begun("PLAIN", mechanisms(in_thread=threads))
    waiting = exchange.step(b"\0anna\0pencil")
    assert step(exchange, b"\0anna\0pencil") == LoginFailed(FailureReason.MALFORMED, "a response out of order")
    threads.work()
    assert outcome(waiting) == LoginDone("anna")


def test_few_passwords_are_checked_at_once_and_the_others_in_turn() -> None:
    threads = Thread()
    among = mechanisms(in_thread=threads)
    done: list[tuple[int, object]] = []

    def note(number: int, result: object) -> None:
        done.append((number, result))

    for number in range(5):
        begun("PLAIN", among).step(b"\0%d\0pencil" % number).addBoth(partial(note, number))
    assert len(threads.jobs) == CHECKS
    for _ in range(5):
        assert len(threads.jobs) <= CHECKS
        threads.work()
    assert [number for number, _ in done] == list(range(5))
    assert all(isinstance(result, LoginFailed) for _, result in done)


def test_there_is_a_bound_to_what_waits() -> None:
    threads = Thread()
    among = mechanisms(in_thread=threads)
    done: list[object] = []
    for number in range(CHECKS + MAX_WAITING):
        begun("PLAIN", among, address=f"192.0.2.{number}").step(b"\0anna\0%d" % number).addBoth(done.append)
    refused: list[Failure] = []
    exchange = begun("PLAIN", among)
    exchange.step(b"\0anna\0pencil").addErrback(refused.append)
    (failure,) = refused
    assert isinstance(failure.value, Refusal)
    assert failure.value.reason is Reason.LIMIT
    assert failed(exchange, b"\0anna\0pencil").why is FailureReason.MALFORMED
    threads.work()
    begun("PLAIN", among, address="192.0.2.200").step(b"\0anna\0pencil").addBoth(done.append)
    while threads.jobs:
        threads.work()
    assert len(done) == CHECKS + MAX_WAITING + 1
    assert LoginDone("anna") in done


def test_who_gives_up_makes_room_at_once_unless_the_check_has_begun() -> None:
    threads = Thread()
    checks = PasswordChecks(threads)
    results: list[object] = []
    running = [checks.run(str, number).addBoth(results.append) for number in range(CHECKS)]
    waiting = [checks.run(str, 100 + number).addBoth(results.append) for number in range(MAX_WAITING)]
    for deferred in (*waiting[:-1], *running):
        deferred.cancel()
    assert len(results) == CHECKS + MAX_WAITING - 1
    assert all(isinstance(result, Failure) and result.check(CancelledError) for result in results)
    del results[:]
    assert len(threads.jobs) == CHECKS
    threads.work()
    assert results == []
    threads.work()
    threads.work()
    assert results == [str(100 + MAX_WAITING - 1)]
    assert threads.jobs == []
    for number in range(CHECKS + MAX_WAITING):
        checks.run(str, number)
    with pytest.raises(Refusal, match="too many passwords"):
        checks.run(str)


def test_checks_of_different_addresses_take_turns() -> None:
    threads = Thread()
    checks = PasswordChecks(threads)
    results: list[object] = []
    for turn in (*["busy"] * (CHECKS + 2), "other", "third"):
        checks.run(str, turn, turn=turn).addBoth(results.append)
    while threads.jobs:
        threads.work()
    assert results[CHECKS:] == ["busy", "other", "third", "busy"]


def test_a_check_that_breaks_makes_room_and_is_told() -> None:
    def broken(*arguments: object) -> Deferred[Any]:
        raise RuntimeError("no thread")

    checks = PasswordChecks(broken)
    for _ in range(CHECKS + MAX_WAITING + 1):
        failures: list[Failure] = []
        checks.run(str).addErrback(failures.append)
        assert failures[0].check(RuntimeError)


class InThreads(TestCase):
    """With real threads."""

    def test_a_check_does_not_hold_the_reactor(self) -> Deferred[None]:
        """The password is checked in another thread, and its outcome comes in this one."""
        threads: list[threading.Thread] = []

        class Watched(MemoryAccess):
            def verifier(self, user: str) -> PasswordVerifier | None:
                threads.append(threading.current_thread())
                return super().verifier(user)

        def in_thread(function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
            def run() -> Any:
                threads.append(threading.current_thread())
                return function(*arguments)

            return deferToThread(run)

        def ended(found: LoginOutcome) -> None:
            self.assertEqual(found, LoginDone("anna"))
            looked, _, checked, looked_again = threads
            self.assertIs(looked, looked_again)
            self.assertIsNot(looked, checked)

        exchange = begun("PLAIN", mechanisms(Watched({"anna": ANNA}), in_thread))
        return exchange.step(b"\0anna\0pencil").addCallback(ended)


# EXTERNAL


def test_a_key_comes_in_as_its_user() -> None:
    for response in (b"", b"anna"):
        exchange = begun("EXTERNAL")
        assert step(exchange, response) == LoginDone("anna")
    exchange = begun("EXTERNAL")
    assert step(exchange, None) == LoginChallenge(b"")
    assert step(exchange, None) == LoginDone("anna")


@pytest.mark.parametrize("response", [b"bert", b"ANNA", b"anna\0", b" "])
def test_a_key_does_not_come_in_as_somebody_else(response: bytes) -> None:
    assert failed(begun("EXTERNAL"), response) == NOT_YOURS


@pytest.mark.parametrize("response", [b"\xff", b"a" * (MAX_RESPONSE + 1)])
def test_a_response_that_is_no_name_fails(response: bytes) -> None:
    assert failed(begun("EXTERNAL"), response).why is FailureReason.MALFORMED


def test_a_key_that_is_not_allowed_any_more_does_not_come_in() -> None:
    keys = {"KEY": "anna"}
    exchange = Mechanisms(people(), LOGINS(maybeDeferred), b"", keys.get).begin("EXTERNAL", "KEY")
    keys.clear()
    assert failed(exchange, b"").why is FailureReason.CREDENTIALS


# ANONYMOUS


def test_anybody_comes_in_as_nobody() -> None:
    for response in (b"", b"sirhc", "\u0442".encode() * MAX_TRACE):
        exchange = begun("ANONYMOUS")
        assert step(exchange, response) == LoginDone("", response.decode())
    exchange = begun("ANONYMOUS")
    assert step(exchange, None) == LoginChallenge(b"")
    assert step(exchange, b"") == LoginDone("")


def test_a_trace_cannot_write_into_the_log_what_it_wants() -> None:
    with capturedLogs() as events:
        assert step(begun("ANONYMOUS"), "a\n\x1b[2J\u202e{x}\u2028".encode()) == LoginDone("", "a??[2J?{x}?")
    (event,) = events
    assert event["log_level"] is LogLevel.debug
    assert formatEvent(event) == "an anonymous client logged in, with the trace 'a??[2J?{x}?'"


@pytest.mark.parametrize("response", [b"\xff", b"a" * (MAX_TRACE + 1), b"a" * (MAX_RESPONSE + 1)])
def test_a_trace_that_is_none_fails(response: bytes) -> None:
    assert failed(begun("ANONYMOUS"), response).why is FailureReason.MALFORMED


# anything


PIECES = st.sampled_from(
    [b"n,,", b"y,,", b"n=anna", b"r=abc", b",", b"=", b"\0", b"a=", b"m=", b"c=biws", b"p=AAAA", b"anna", b"pencil"]
)
responses = st.one_of(st.none(), st.binary(max_size=40), st.lists(PIECES, max_size=9).map(b"".join))


@settings(max_examples=examples(50))
@given(st.sampled_from(["SCRAM-SHA-256", "PLAIN", "EXTERNAL", "ANONYMOUS"]), st.lists(responses, max_size=5))
def test_whatever_comes_has_an_outcome(mechanism: str, given: list[bytes | None]) -> None:
    exchange = begun(mechanism)
    over = False
    for response in given:
        found = step(exchange, response)
        if over:
            assert found == LoginFailed(FailureReason.MALFORMED, "a response out of order")
        over = over or not isinstance(found, LoginChallenge)
        if isinstance(found, LoginDone) and mechanism == "SCRAM-SHA-256":
            raise AssertionError("that was no proof")
        if isinstance(found, LoginFailed):
            found.text.encode()


@settings(max_examples=examples(50))
@given(st.data(), st.sampled_from(["anna", "bert"]))
def test_whatever_is_changed_in_a_last_message_it_does_not_come_in(data: st.DataObject, user: str) -> None:
    client, exchange = Client(user, "pencil"), begun("SCRAM-SHA-256")
    good = client.final(answer(exchange, client.first()))
    at = data.draw(st.integers(0, len(good) - 1))
    final = good[:at] + data.draw(st.binary(max_size=2)) + good[at + data.draw(st.integers(0, 2)) :]
    found = step(exchange, final)
    # The last bits of a BASE64 text may stand for nothing.
    same = user == "anna" and final[:-2] == good[:-2] and len(final) == len(good)
    assert isinstance(found, LoginFailed) or final == good or same
