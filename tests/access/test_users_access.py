"""Access by a users file: credentials, back-off, expiry, and changes of the file."""

from __future__ import annotations

import gc
import hashlib
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from broker.access import passwords as password_verifiers
from broker.access import users_document
from broker.access.logins import EACH_TURN, GUESS_EVERY, GUESSES, LIFETIME, Later, Logins
from broker.access.passwords import CHECKS, MAX_WAITING, MIN_ITERATIONS, of
from broker.access.principal import Method, Principal
from broker.access.users_access import CHECK, UsersAccess
from broker.access.users_document import password_credential
from broker.access.users_file import BadUsers
from broker.core.errors import Reason, Refusal
from tests.access.users import ANN, BOB, FILE, KEY, TOKEN, put

HERE, THERE = "10.0.0.1", "10.0.0.2"


class Rig:
    """Access by the file, whose threads run at once."""

    def __init__(
        self,
        path: Path,
        in_thread: Callable[..., Deferred[Any]] = maybeDeferred,
        later: Later = lambda call: call(),
    ) -> None:
        self.path = path
        self.clock = Clock()
        self.counts: Counter[str] = Counter()
        logins = Logins.open(self.clock.seconds, in_thread, later=later)
        put(path, FILE)
        self.access = UsersAccess(str(path), self.clock, maybeDeferred, logins, self._count)
        self.changes = 0
        self.access.changed.append(self._changed)

    def _count(self, family: str, reason: str) -> None:
        self.counts[f"{family}.{reason}"] += 1

    def _changed(self) -> None:
        self.changes += 1

    def change(self, text: str, mode: int = 0o600) -> None:
        put(self.path, text, mode)
        self.access.refresh()

    def login(self, user: str, password: str, address: str = HERE) -> list[Any]:
        """Log in. The list has the principal, or the refusal, as soon as there is an answer."""
        results: list[Any] = []

        def refused(failure: Failure) -> None:
            failure.trap(Refusal)
            results.append(failure.value)

        self.access.by_password(user, password, address).addCallbacks(results.append, refused)
        return results


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "users.toml")


def reason(results: list[Any]) -> Reason:
    (refusal,) = results
    assert isinstance(refusal, Refusal)
    found: Reason = refusal.reason
    return found


def refused_token(rig: Rig, token: str) -> Refusal:
    with pytest.raises(Refusal) as refusal:
        rig.access.by_token(token, HERE)
    return refusal.value


# credentials


def test_a_password_authenticates_its_user(rig: Rig) -> None:
    (ann,) = rig.login("ann", "pencil")
    assert (ann.name, ann.method, ann.address) == ("ann", Method.PASSWORD, HERE)
    assert rig.access.stands(ann)
    assert rig.access.allows(ann, "console", "admin.shutdown")
    assert rig.counts == {"access_logins.password": 1}


@pytest.mark.parametrize(("user", "password"), [("ann", "crayon"), ("carl", "pencil"), ("ann", ""), ("ann", "x" * 600)])
def test_a_wrong_user_and_a_wrong_password_have_one_answer(rig: Rig, user: str, password: str) -> None:
    (refusal,) = rig.login(user, password)
    assert (refusal.reason, refusal.text) == (Reason.WRONG_CREDENTIALS, "the user or the password is wrong")


def test_a_check_takes_the_same_work_for_every_user_and_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterations = [0]
    original = hashlib.pbkdf2_hmac

    def counted(name: str, password: bytes, salt: bytes, count: int) -> bytes:
        iterations[-1] += count
        return original(name, password, salt, count)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
    monkeypatch.setattr(password_verifiers, "pbkdf2_hmac", counted)
    rig = Rig(tmp_path / "users.toml")
    slow = of("pen", 3 * MIN_ITERATIONS)
    rig.change(FILE.replace(f'passwords = ["{BOB.text()}"]', f'passwords = ["{BOB.text()}", "{slow.text()}"]'))
    for number, password in enumerate(("x", "\u0627x", "x" * 600)):  # the second one is refused by SASLprep
        for user in ("ann", "bob", "nobody", "no body"):
            iterations.append(0)
            rig.login(user, password, f"10.3.0.{number}")
            assert iterations[-1] == 4 * MIN_ITERATIONS, (user, password)


def test_a_user_may_have_two_passwords_while_one_replaces_the_other(rig: Rig) -> None:
    rig.change(FILE.replace(f'passwords = ["{BOB.text()}"]', f'passwords = ["{BOB.text()}", "{ANN.text()}"]'))
    assert [rig.login("bob", word)[0].name for word in ("crayon", "pencil")] == ["bob", "bob"]


def test_a_token_a_certificate_and_a_key_authenticate_their_user(rig: Rig) -> None:
    assert rig.access.by_token(TOKEN, HERE).name == "ann"
    certificate = rig.access.by_certificate(("other", "ANN.example"), HERE)
    assert certificate is not None
    assert (certificate.name, certificate.method) == ("ann", Method.CERTIFICATE)
    assert rig.access.by_certificate(("ann",), HERE) is None
    assert rig.access.keys == {KEY: "ann"}


def test_a_token_and_a_certificate_are_never_refused_for_guesses(rig: Rig) -> None:
    for _ in range(100):
        assert refused_token(rig, TOKEN[:-1] + "!").reason is Reason.WRONG_CREDENTIALS
        rig.login("ann", "x")
    assert rig.access.by_token(TOKEN, HERE).name == "ann"
    assert rig.access.by_certificate(("ann.example",), HERE) is not None
    assert reason(rig.login("ann", "pencil")) is Reason.TOO_MANY_GUESSES


# guesses


def test_a_token_that_a_person_chose_passes_the_gate(rig: Rig) -> None:
    rig.change(FILE.replace(users_document.token_hash(TOKEN), users_document.token_hash("figleaf")))
    assert rig.access.by_token("figleaf", HERE).name == "ann"
    for _ in range(GUESSES):
        assert refused_token(rig, "guess").reason is Reason.WRONG_CREDENTIALS
    assert refused_token(rig, "figleaf").reason is refused_token(rig, "guess").reason is Reason.TOO_MANY_GUESSES
    assert rig.access.by_token("figleaf", THERE).name == "ann"
    rig.clock.advance(GUESS_EVERY)
    assert rig.access.by_token("figleaf", HERE).name == "ann"


def test_a_guessed_user_is_refused_without_a_check_and_no_other_one(rig: Rig) -> None:
    for _ in range(GUESSES):
        assert reason(rig.login("ann", "x")) is Reason.WRONG_CREDENTIALS
    wrong, right = rig.login("ann", "x"), rig.login("ann", "pencil")
    assert reason(wrong) is reason(right) is Reason.TOO_MANY_GUESSES
    assert wrong[0].text == right[0].text
    assert rig.login("bob", "crayon")[0].name == "bob"
    assert rig.login("ann", "pencil", THERE)[0].name == "ann"
    rig.clock.advance(GUESS_EVERY)
    assert rig.login("ann", "pencil")[0].name == "ann"


def test_a_password_that_was_right_is_refused_too_while_guesses_are(rig: Rig) -> None:
    assert rig.login("ann", "pencil")[0].name == "ann"
    for _ in range(GUESSES):
        rig.login("ann", "x")
    assert reason(rig.login("ann", "pencil")) is Reason.TOO_MANY_GUESSES


def test_a_verified_password_is_not_checked_again_for_a_while(tmp_path: Path) -> None:
    jobs: list[Any] = []

    def in_thread(function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        jobs.append(arguments)
        return maybeDeferred(function, *arguments)

    rig = Rig(tmp_path / "users.toml", in_thread)
    for address in (HERE, THERE, HERE):
        assert rig.login("ann", "pencil", address)[0].address == address
    assert len(jobs) == 1
    assert reason(rig.login("ann", "pencil ")) is Reason.WRONG_CREDENTIALS
    rig.clock.advance(LIFETIME)
    assert rig.login("ann", "pencil")[0].name == "ann"
    assert len(jobs) == 3
    rig.change(FILE.replace(ANN.text(), BOB.text(), 1))
    assert reason(rig.login("ann", "pencil")) is Reason.WRONG_CREDENTIALS


def test_attempts_at_once_are_no_more_guesses_than_one_after_the_other(tmp_path: Path) -> None:
    waiting: list[Callable[[], None]] = []

    def in_thread(function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        later: Deferred[Any] = Deferred()
        waiting.append(lambda: later.callback(None))
        return later.addCallback(lambda _: function(*arguments))

    rig = Rig(tmp_path / "users.toml", in_thread)
    attempts = [rig.login("ann", f"guess {number}") for number in range(50)] + [rig.login("ann", "pencil")]
    checked = 0
    while waiting:
        waiting.pop(0)()
        checked += 1
    assert checked == GUESSES
    assert [reason(each) for each in attempts[GUESSES:]] == [Reason.TOO_MANY_GUESSES] * (51 - GUESSES)


class Slow(Rig):
    """Access whose threads take their time: `work` lets the first one end."""

    def __init__(self, path: Path, later: Later = lambda call: call()) -> None:
        self.waiting: list[Deferred[Any]] = []
        super().__init__(path, self._begin, later)

    def _begin(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        self.waiting.append(Deferred())
        return self.waiting[-1].addCallback(lambda _: function(*arguments))

    def work(self) -> None:
        self.waiting.pop(0).callback(None)


@pytest.fixture
def slow(tmp_path: Path) -> Slow:
    return Slow(tmp_path / "users.toml")


def test_a_thousand_servers_with_one_password_have_one_check(slow: Slow) -> None:
    servers = [slow.login("ann", "pencil") for _ in range(1_000)]
    elsewhere = slow.login("ann", "pencil", THERE)
    slow.work()
    assert slow.waiting == []
    assert [each[0].name for each in [*servers, elsewhere]] == ["ann"] * 1_001
    assert [each[0].address for each in [*servers, elsewhere]] == [HERE] * 1_000 + [THERE]
    assert slow.counts["access_logins.password"] == 1_001


def test_a_password_that_is_removed_logs_in_none_of_the_servers_that_wait(tmp_path: Path) -> None:
    turns: list[Callable[[], object]] = []
    slow = Slow(tmp_path / "users.toml", turns.append)
    servers = [slow.login("ann", "pencil") for _ in range(EACH_TURN + 10)]
    slow.work()
    assert [each[0].name for each in servers if each] == ["ann"] * EACH_TURN
    slow.change(FILE.replace(ANN.text(), BOB.text(), 1))
    while turns:
        turns.pop(0)()
    late = servers[EACH_TURN:]
    assert [reason(each) for each in late[:GUESSES]] == [Reason.WRONG_CREDENTIALS] * GUESSES
    assert [reason(each) for each in late[GUESSES:]] == [Reason.TOO_MANY_GUESSES] * (10 - GUESSES)
    assert slow.counts["access_logins.password"] == EACH_TURN
    assert reason(slow.login("ann", "pencil")) is Reason.TOO_MANY_GUESSES


def test_servers_of_an_address_that_guesses_hold_up_no_others_with_the_same_password(slow: Slow) -> None:
    guesses = [slow.login("ann", f"guess {number}") for number in range(CHECKS)]
    here = [slow.login("ann", "pencil") for _ in range(3)]
    there = slow.login("ann", "pencil", THERE)
    for number in range(GUESSES):
        slow.login("ann", f"more {number}")
    while slow.waiting:
        slow.work()
    assert [reason(each) for each in guesses] == [Reason.WRONG_CREDENTIALS] * CHECKS
    assert there[0].name == "ann"
    assert all(isinstance(each[0], Principal) or reason(each) is Reason.TOO_MANY_GUESSES for each in here)


def test_a_refused_login_that_ends_the_others_with_its_password_holds_up_no_check(slow: Slow) -> None:
    guesses = [slow.login("ann", f"guess {number}") for number in range(GUESSES)]
    logins = [slow.access.by_password("ann", "pencil", HERE) for _ in range(2)]
    ended: list[Any] = []
    logins[0].addErrback(lambda failure: logins[1].cancel()).addBoth(ended.append)
    logins[1].addErrback(lambda failure: failure.trap(CancelledError)).addBoth(ended.append)
    while slow.waiting:
        slow.work()
    assert [reason(each) for each in guesses] == [Reason.WRONG_CREDENTIALS] * GUESSES
    assert len(ended) == 2


def test_one_wrong_password_at_once_counts_as_often_as_it_came(slow: Slow) -> None:
    servers = [slow.login("ann", "guess") for _ in range(50)]
    slow.work()
    assert slow.waiting == []
    assert [reason(each) for each in servers[:GUESSES]] == [Reason.WRONG_CREDENTIALS] * GUESSES
    assert [reason(each) for each in servers[GUESSES:]] == [Reason.TOO_MANY_GUESSES] * (50 - GUESSES)
    assert reason(slow.login("ann", "pencil")) is Reason.TOO_MANY_GUESSES


def test_a_server_that_goes_takes_the_check_of_others_along_only_as_the_last_one(slow: Slow) -> None:
    results: list[Any] = []
    logins = [slow.access.by_password("ann", "pencil", HERE) for _ in range(4)]
    for login in logins:
        login.addBoth(results.append)
    logins[0].cancel()
    logins[2].cancel()
    slow.work()
    assert [getattr(each, "name", None) for each in results] == [None, None, "ann", "ann"]
    for login in [slow.access.by_password("bob", "crayon", HERE) for _ in range(2)]:
        login.addErrback(lambda failure: failure.trap(CancelledError))
        login.cancel()
    late = slow.login("bob", "crayon")
    while slow.waiting:
        slow.work()
    assert late[0].name == "bob"


@pytest.mark.long
def test_names_of_any_length_leave_nothing_behind(rig: Rig) -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(300):
            rig.login(f"{number}" + "x" * 1_000_000, "x", f"10.4.{number >> 8}.{number & 255}")
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1_000_000


def test_checks_of_one_address_leave_room_for_others(tmp_path: Path) -> None:
    waiting: list[Deferred[Any]] = []

    def in_thread(function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        waiting.append(Deferred())
        return waiting[-1].addCallback(lambda _: function(*arguments))

    rig = Rig(tmp_path / "users.toml", in_thread)
    attempts = [rig.login(f"user-{number}", "guess") for number in range(1_000)]
    assert sum(each == [] for each in attempts) == CHECKS + MAX_WAITING
    good = rig.login("bob", "crayon", THERE)
    for _ in range(CHECKS + 2):
        waiting.pop(0).callback(None)
    assert good[0].name == "bob"


# expiry and changes


def test_a_token_expires_and_all_sessions_are_told_at_once(rig: Rig) -> None:
    ann = rig.access.by_token(TOKEN, HERE)
    rig.clock.advance(999)
    assert rig.access.stands(ann)
    assert rig.changes == 0
    rig.clock.advance(1)
    assert rig.changes == 1
    assert not rig.access.stands(ann)
    assert "expired" in refused_token(rig, TOKEN).text


@pytest.mark.parametrize(
    ("old", "new", "stands"),
    [
        (ANN.text(), BOB.text(), {"token", "certificate"}),
        ('certificates = ["Ann.example"]', "", {"password", "token"}),
        (f'keys = ["{KEY}"]', "", {"password", "token", "certificate"}),
        ('label = "ci"', 'label = "other"', {"password", "token", "certificate"}),
        ('name = "ann"', 'name = "anna"', set()),
    ],
)
def test_a_principal_stands_as_long_as_its_credential(rig: Rig, old: str, new: str, stands: set[str]) -> None:
    found = [rig.login("ann", "pencil")[0], rig.access.by_token(TOKEN, HERE)]
    found.append(rig.access.by_certificate(("ann.example",), HERE))
    text = FILE.replace(old, new, 1)
    rig.change(text)
    assert {each.method.value for each in found if rig.access.stands(each)} == stands
    assert rig.changes == 1


def test_rights_change_with_the_file(rig: Rig) -> None:
    bob = Principal("bob")
    assert rig.access.allows(bob, "http", "find", "shared")
    rig.change(FILE.replace('"shared"', '"other"'))
    assert not rig.access.allows(bob, "http", "find", "shared")
    assert rig.access.allows(bob, "http", "find", "other")


def test_a_removed_user_has_no_rights(rig: Rig) -> None:
    (ann,) = rig.login("ann", "pencil")
    rig.change("nobody = true\n[[rights]]\nusers = ['*']\noperations = ['*']\n")
    assert not rig.access.allows(ann, "http", "find", "x")
    # A name that a wire knows by its own keys or passwords.
    assert rig.access.allows(Principal("node-1"), "mc0", "find", "x")


@pytest.mark.parametrize(("text", "mode"), [("users = 3", 0o600), (FILE, 0o604), (FILE, 0o620)])
def test_a_bad_file_changes_nothing_and_is_a_problem(rig: Rig, text: str, mode: int) -> None:
    (ann,) = rig.login("ann", "pencil")
    rig.change(text, mode)
    assert rig.access.stands(ann)
    assert rig.changes == 0
    assert rig.access.problems
    rig.change(FILE)
    assert not rig.access.problems


@pytest.mark.parametrize("text", ["", "\n", "# nobody\n", '[[rights]]\nusers = ["*"]\noperations = ["*"]\n'])
def test_a_file_without_users_replaces_none_with_users(rig: Rig, text: str) -> None:
    (ann,) = rig.login("ann", "pencil")
    rig.change(text)
    assert rig.access.stands(ann)
    assert rig.changes == 0
    assert "has no users any more, and lacks the line that permits that" in rig.access.problems[0]
    rig.change("nobody = true\n" + text)
    assert not rig.access.stands(ann)
    assert rig.access.problems == ()
    rig.change("")  # there is nobody to lock out
    assert rig.access.problems == ()


def test_another_file_takes_the_place_of_the_first(rig: Rig, tmp_path: Path) -> None:
    bob = Principal("bob", Method.PASSWORD, HERE, password_credential(BOB))
    assert rig.access.stands(bob)
    other = tmp_path / "other.toml"
    rig.access.use(put(other, FILE.replace('name = "bob"', 'name = "rob"')))
    assert not rig.access.stands(bob)
    assert rig.changes == 1
    # The first file is watched no longer, and the other one is.
    rig.path.unlink()
    rig.clock.pump([CHECK] * 3)
    assert rig.access.problems == ()
    put(other, FILE)
    rig.clock.pump([CHECK] * 3)
    assert rig.access.stands(bob)


def test_another_file_that_is_bad_changes_nothing(rig: Rig, tmp_path: Path) -> None:
    rig.access.use(put(tmp_path / "other.toml", "[[users]]\n"))
    assert rig.access.problems
    assert rig.login("bob", "crayon")[0].name == "bob"
    assert rig.changes == 0


def test_a_change_is_noticed_without_a_request(rig: Rig) -> None:
    put(rig.path, FILE.replace('name = "bob"', 'name = "rob"'))
    rig.clock.pump([CHECK] * 3)
    assert rig.changes == 1
    assert "bob" not in rig.access.directory.users


def test_a_file_that_others_may_read_is_refused_at_the_start(tmp_path: Path) -> None:
    path = put(tmp_path / "users.toml", FILE, 0o644)
    clock = Clock()
    with pytest.raises(BadUsers, match="has the mode 0644"):
        UsersAccess(
            path,
            clock,
            maybeDeferred,
            Logins.open(clock.seconds, maybeDeferred),
            lambda *_: None,
        )
    assert not clock.getDelayedCalls()


def test_nothing_is_left_after_the_stop(rig: Rig) -> None:
    rig.access.stop()
    assert not rig.clock.getDelayedCalls()
