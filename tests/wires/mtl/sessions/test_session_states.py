"""States of control sessions: each transition of the table, and no other."""

import pytest

from broker.net.peer_interfaces import Sender
from broker.wires.mtl.sessions.control_sessions import (
    ControlSession,
    IllegalTransition,
    SessionEvent,
    SessionState,
)
from broker.wires.mtl.sessions.sasl import SCRAM
from tests.wires.mtl.control_recording import HERE, ControlFarm, Users

NEW, REFUSED, OPENED = SessionState.NEW, SessionState.REFUSED, SessionState.OPENED
AUTHENTICATING, AUTHORIZED = SessionState.AUTHENTICATING, SessionState.AUTHORIZED
REAUTHENTICATING = SessionState.REAUTHENTICATING

TABLE = {
    NEW: {"opened": OPENED},
    REFUSED: {"opened": OPENED, "lost": REFUSED},
    OPENED: {
        "opened": OPENED,
        "refused": REFUSED,
        "begun": AUTHENTICATING,
        "admitted": AUTHORIZED,
        "lost": OPENED,
    },
    AUTHENTICATING: {"ended": OPENED, "lost": OPENED},
    AUTHORIZED: {"opened": OPENED, "begun": REAUTHENTICATING, "admitted": AUTHORIZED, "lost": OPENED},
    REAUTHENTICATING: {"ended": AUTHORIZED, "lost": OPENED},
}


@pytest.mark.parametrize("event", SessionEvent, ids=lambda event: event.value)
@pytest.mark.parametrize("state", SessionState, ids=lambda state: state.value)
def test_an_event_leads_to_the_state_of_the_table_or_is_illegal(state: SessionState, event: SessionEvent) -> None:
    session = ControlSession(b"key", 1, Sender(HERE, "", "DEALER"))
    session.state = state
    following = TABLE[state].get(event.value)
    if following is None:
        with pytest.raises(IllegalTransition):
            session.on(event)
        following = state
    else:
        session.on(event)
    assert session.state is following
    assert session.ready is (following in (AUTHORIZED, REAUTHENTICATING))


def test_a_session_passes_through_all_states() -> None:
    farm = ControlFarm(Users(alice="pencil"))
    peer = farm.peer(HERE)
    peer.open()
    session = farm.session()
    assert session.state is OPENED
    assert peer.authorize(SCRAM, b"n,,n=alice,r=nonce")[0] == 402
    assert session.state is AUTHENTICATING
    peer.open()
    assert session.state is OPENED
    assert peer.plain("alice", "pencil")[0] == 201
    assert session.state is AUTHORIZED
    assert peer.authorize(SCRAM, b"n,,n=alice,r=nonce")[0] == 402
    assert session.state is REAUTHENTICATING
    assert peer.profile("test")[0] == 401
    assert peer.plain("alice", "wrong")[0] == 401
    assert session.state is OPENED


def test_a_further_open_of_a_forbidden_host_refuses_the_session() -> None:
    farm = ControlFarm()
    peer = farm.peer(HERE)
    assert peer.open()[0] == 201
    session = farm.session()
    assert peer.open("nowhere")[0] == 403
    assert session.state is REFUSED
    assert peer.profile("test")[0] == 400
    assert peer.open()[0] == 201
    assert session.state is AUTHORIZED
