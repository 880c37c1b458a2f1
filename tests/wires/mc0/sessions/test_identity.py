"""mc0: the owners of identities, admission, and the end of sessions whose key is not allowed any more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.core.errors import Reason, Refusal
from broker.net.peer_interfaces import Sender
from broker.wires.mc0.sessions.session_table import RECONNECT_WITHIN, Admission
from tests.recording.logs import nothing_fails
from tests.wires.mc0.recording import Mc0Farm

KEYS = {"K1": "one", "K2": "two", "K3": "three"}


@pytest.fixture
def farm() -> Iterator[Mc0Farm]:
    with nothing_fails():
        yield Mc0Farm(keys=KEYS)


# one identity, two connections


@pytest.mark.parametrize("key", ["", "K1"])
def test_the_same_key_takes_its_session_along_to_a_new_connection(farm: Mc0Farm, key: str) -> None:
    peer, publisher = farm.peer("A", key), farm.peer("P", "K2")
    peer.say("SUB||t")
    peer.connect()
    assert peer.ask("NOOP|ID|n") == ["OK|ID|n"]
    publisher.say("PUT|TOPIC|t||x")
    assert peer.take() == ["MESSAGE|TOPIC|t||x"]
    assert farm.counted("mc0_sessions.begun") == 2


@pytest.mark.parametrize("gone", [False, True])
def test_another_key_gets_neither_the_session_of_an_identity_nor_its_messages(farm: Mc0Farm, gone: bool) -> None:
    peer, publisher = farm.peer("A", "K1"), farm.peer("P", "K3")
    peer.say("CONNECT|TTL|30000")
    peer.say("SUB||t")
    if gone:
        peer.drop()
    thief = farm.peer("A", "K2")
    publisher.say("PUT|TOPIC|t||secret")
    farm.wait(20)
    assert not thief.connected
    assert thief.take() == []
    if gone:
        peer.connect()
        publisher.say("PUT|TOPIC|t||secret")
    assert "MESSAGE|TOPIC|t||secret" in peer.take()
    assert farm.counted("mc0_sessions.taken") == 0


def test_after_a_restart_too_another_key_gets_no_messages(farm: Mc0Farm) -> None:
    peer = farm.peer("A", "K1")
    peer.say("CONNECT|TTL|30000")
    peer.say("SUB||t")
    peer.drop()
    farm.restart(farm.record.known())
    assert not farm.peer("A", "K2").connected
    peer.connect()
    farm.peer("P", "K3").say("PUT|TOPIC|t||x")
    assert peer.take() == ["MESSAGE|TOPIC|t||x"]


def test_an_identity_stays_with_its_key_after_its_session(farm: Mc0Farm) -> None:
    peer = farm.peer("A", "K1")
    peer.say("DISCONNECT")
    peer.drop()
    assert not farm.peer("A", "K2").connected
    peer.connect()
    assert peer.ask("NOOP|ID|n") == ["OK|ID|n"]


@pytest.fixture
def unasked(farm: Mc0Farm) -> Mc0Farm:
    """A wire whose ROUTER does not ask for which key an identity is."""
    farm.router.claim = None
    return farm


@pytest.mark.parametrize(
    "line", ["PUT|TOPIC|t|ID|p||forged", "DISCONNECT|ID|d", "PING|ID|x", "UNSUB|ID|u||t", "NOOP|ID|n", "SUB|ID|s||t"]
)
def test_what_another_key_says_with_an_identity_is_dropped_and_ends_the_session(unasked: Mc0Farm, line: str) -> None:
    peer, listener = unasked.peer("A", "K1"), unasked.peer("L", "K3")
    peer.say("CONNECT|TTL|30000")
    peer.say("SUB||t")
    listener.say("SUB||t")
    peer.drop()
    thief = unasked.peer("A", "K2")
    assert thief.ask(line) == []
    assert listener.ask("PUT|TOPIC|t||secret") == ["MESSAGE|TOPIC|t||secret"]
    unasked.wait(60)
    assert thief.take() == []
    assert unasked.session(thief) is None
    assert unasked.counted("mc0_sessions.taken") == 1
    assert unasked.counted("mc0_refused.identity-taken") == 1


def test_the_owner_of_a_taken_identity_begins_a_new_session(unasked: Mc0Farm) -> None:
    peer = unasked.peer("A", "K1")
    peer.say("CONNECT|TTL|30000")
    peer.drop()
    thief = unasked.peer("A", "K2")
    thief.say("NOOP")
    thief.drop()
    peer.connect()
    assert peer.ask("NOOP") == []
    unasked.wait(40)
    assert peer.take() == [], "no NOOP comes, so it notices"
    assert peer.ask("CONNECT|ID|c|TTL|30000") == ["OK|ID|c"]


def test_one_key_may_have_many_identities(farm: Mc0Farm) -> None:
    peers = [farm.peer(f"P{number}", "K1") for number in range(10)]
    assert [peer.ask("NOOP|ID|n") for peer in peers] == [["OK|ID|n"]] * 10


@pytest.mark.parametrize(("address", "again"), [("192.0.2.7", "::ffff:192.0.2.7"), ("127.0.0.1", "::1")])
def test_without_keys_an_identity_belongs_to_its_host_while_the_session_lasts(address: str, again: str) -> None:
    farm = Mc0Farm()
    peer = farm.peer("A", address=address)
    peer.say("SUB||t")
    peer.drop()
    assert farm.peer("A", address="192.0.2.8").line is None
    back = farm.peer("A", address=again)
    assert back.ask("PUT|TOPIC|t|ID|p||x") == ["MESSAGE|TOPIC|t||x", "OK|ID|p"]
    back.drop()
    farm.wait(RECONNECT_WITHIN + 1)
    assert farm.peer("A", address="192.0.2.8").ask("PUT|TOPIC|t|ID|p||x") == ["OK|ID|p"]


def test_an_identity_belongs_to_a_user_by_all_keys_of_the_user() -> None:
    farm = Mc0Farm(keys={"OLD": "web1", "NEW": "web1", "K2": "web2"})
    peer = farm.peer("A", "OLD")
    peer.say("SUB||t")
    renewed = farm.peer("A", "NEW", "192.0.2.9")
    assert renewed.ask("PUT|TOPIC|t|ID|p||x") == ["MESSAGE|TOPIC|t||x", "OK|ID|p"]
    assert farm.peer("A", "K2", "192.0.2.9").line is None
    renewed.drop()
    assert farm.peer("A", "OLD").ask("PUT|TOPIC|t|ID|p||x") == ["MESSAGE|TOPIC|t||x", "OK|ID|p"]
    # The key that is revoked is not the one that the session has now.
    farm.revoke("NEW")
    assert farm.peer("A", "OLD").ask("NOOP|ID|n") == ["OK|ID|n"]


def test_a_session_has_the_address_of_its_present_connection(farm: Mc0Farm) -> None:
    farm.peer("A", "K1", "192.0.2.7").say("NOOP")
    moved = farm.peer("A", "K1", "192.0.2.8")
    moved.say("NOOP")
    session = farm.session(moved)
    assert session is not None
    assert session.address == "192.0.2.8"


# keys that are not allowed any more


def test_the_sessions_of_a_revoked_key_end_and_no_other(farm: Mc0Farm) -> None:
    peers = [farm.peer(f"P{number}", key) for number, key in enumerate(("K1", "K2", "K1"))]
    for peer in peers:
        peer.say("CONNECT|TTL|30000")
        peer.say("SUB||t")
    farm.revoke("K1")
    assert [farm.session(peer) is None for peer in peers] == [True, False, True]
    assert farm.subscribers() == {b"t": 1}
    assert farm.counted("mc0_sessions.revoked") == 2
    assert peers[1].ask("PUT|TOPIC|t||x") == ["MESSAGE|TOPIC|t||x"]
    farm.wait(20)
    assert peers[0].take() == []


@pytest.mark.parametrize(
    "line", ["PUT|TOPIC|t|ID|p||x", "NOOP|ID|n", "CONNECT|ID|c", "SUB|ID|s||t", "PING|ID|x", "NOOP"]
)
def test_a_revoked_key_that_is_still_connected_is_not_listened_to(farm: Mc0Farm, line: str) -> None:
    peer, listener = farm.peer("A", "K1"), farm.peer("L", "K2")
    peer.say("NOOP")
    listener.say("SUB||t")
    farm.revoke("K1")
    assert peer.ask(line) == []
    assert listener.take() == []
    assert farm.session(peer) is None
    assert farm.counted("mc0_refused.key-not-allowed") == 1


def test_a_key_that_is_allowed_again_begins_a_new_session(farm: Mc0Farm) -> None:
    peer = farm.peer("A", "K1")
    peer.say("SUB||t")
    farm.revoke("K1")
    farm.keys["K1"] = "one again"
    assert peer.ask("PUT|TOPIC|t|ID|p||x") == ["OK|ID|p"]
    session = farm.session(peer)
    assert session is not None
    assert session.key_name == "one again"


def test_the_identity_of_a_revoked_key_is_free(farm: Mc0Farm) -> None:
    farm.peer("A", "K1").say("NOOP")
    farm.revoke("K1")
    farm.router.close(b"A")
    heir = farm.peer("A", "K2")
    assert heir.ask("NOOP|ID|n") == ["OK|ID|n"]


def test_the_identities_of_other_keys_are_not(farm: Mc0Farm) -> None:
    peer = farm.peer("A", "K1")
    peer.say("DISCONNECT")
    peer.drop()
    farm.revoke("K2")
    assert not farm.peer("A", "K3").connected


# any key


@pytest.fixture
def public() -> Iterator[Mc0Farm]:
    """A wire that lets in any key."""
    with nothing_fails():
        yield Mc0Farm(any_key=True)


@pytest.mark.parametrize("claims", [False, True])
@pytest.mark.parametrize("end", ["DISCONNECT", "expired", "gone"])
def test_with_any_key_a_client_with_a_new_key_is_served_under_its_old_identity(
    public: Mc0Farm, end: str, claims: bool
) -> None:
    if not claims:
        public.router.claim = None
    public.peer("P", "K9").say("NOOP")
    old = public.peer("A", "K1")
    old.say("CONNECT|TTL|1000")
    old.say("SUB||t")
    if end == "DISCONNECT":
        old.say("DISCONNECT")
    old.drop()
    if end == "expired":
        public.wait(2)
    new = public.peer("A", "K2")
    assert new.ask("CONNECT|ID|c|TTL|1000") == ["OK|ID|c"]
    session = public.session(new)
    assert session is not None
    assert (session.key, list(session.topics)) == ("K2", [])
    assert public.counted("mc0_sessions.taken") == (end == "gone")


def test_with_any_key_another_key_gets_nothing_of_the_session_that_it_ends(public: Mc0Farm) -> None:
    peer, publisher = public.peer("A", "K1"), public.peer("P", "K3")
    peer.say("SUB||t")
    peer.drop()
    thief = public.peer("A", "K2")
    publisher.say("PUT|TOPIC|t||secret")
    assert thief.ask("NOOP|ID|n") == ["OK|ID|n"]
    publisher.say("PUT|TOPIC|t||secret")
    assert thief.take() == []
    assert public.subscribers() == {}


def test_with_any_key_a_name_cannot_be_reserved(public: Mc0Farm) -> None:
    squatter = public.peer("web1", "squatter")
    squatter.say("DISCONNECT")
    squatter.drop()
    assert public.peer("web1", "K1").ask("NOOP|ID|n") == ["OK|ID|n"]
    assert public.counted("mc0_refused.identity-taken") == 0


# the table of identities


@pytest.fixture
def admission() -> Admission:
    return Admission(KEYS.get, max_bound=1_000)


def test_an_identity_is_forgotten_when_many_others_have_come_since(admission: Admission) -> None:
    admission.admit(b"old", Sender("192.0.2.1", "K1"))
    admission.admit(b"kept", Sender("192.0.2.1", "K1"))
    for number in range(999):
        assert admission.admit(b"%d" % number, Sender("192.0.2.1", "K2")) == "two"
        assert admission.admit(b"kept", Sender("192.0.2.1", "K1")) == "one"
    assert admission.admit(b"old", Sender("192.0.2.1", "K2")) == "two"
    with pytest.raises(Refusal) as refused:
        admission.admit(b"kept", Sender("192.0.2.1", "K2"))
    assert refused.value.reason is Reason.IDENTITY_TAKEN


def test_what_is_refused_takes_no_place_in_the_table(admission: Admission) -> None:
    admission.admit(b"old", Sender("192.0.2.1", "K1"))
    for number in range(2_000):
        with pytest.raises(Refusal) as refused:
            admission.admit(b"%d" % number, Sender("192.0.2.1", "unknown"))
        assert refused.value.reason is Reason.KEY_NOT_ALLOWED
    with pytest.raises(Refusal):
        admission.admit(b"old", Sender("192.0.2.1", "K2"))


def test_who_only_tries_an_identity_does_not_keep_it_from_being_forgotten(admission: Admission) -> None:
    admission.admit(b"old", Sender("192.0.2.1", "K1"))
    for number in range(1_000):
        with pytest.raises(Refusal):
            admission.admit(b"old", Sender("192.0.2.1", "K3"))
        admission.admit(b"%d" % number, Sender("192.0.2.1", "K2"))
    assert admission.admit(b"old", Sender("192.0.2.1", "K3")) == "three"


def test_peers_without_keys_take_no_place_in_the_table(admission: Admission) -> None:
    admission.admit(b"old", Sender("192.0.2.1", "K1"))
    for number in range(2_000):
        assert admission.admit(b"%d" % number, Sender("192.0.2.1", "")) == ""
    with pytest.raises(Refusal):
        admission.admit(b"old", Sender("192.0.2.1", "K2"))
