"""Rights that end while a peer stays connected: its standing finds and watches end with the refusal of the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.defer import maybeDeferred

from broker.core.director.farm_record import RecordedServer, encode
from broker.core.director.farm_tables import STEPS_PER_TURN
from broker.core.errors import Refusal
from broker.wires.elko.codec.blocks import BlockReader
from broker.wires.elko.codec.broker_messages import VOCABULARY
from broker.wires.elko.codec.director_messages import VOCABULARY as DIRECTOR
from broker.wires.elko.sessions.authentication import AccessControl, Policy
from broker.wires.elko.sessions.broker_session import BrokerSession
from broker.wires.elko.sessions.director_pages import READ_POLL_INTERVAL
from broker.wires.elko.sessions.director_session import DirectorSession
from tests.access.test_users_access import Rig
from tests.access.users import FILE
from tests.wires.elko.director_recording import DirectorFarm, opens, policy, reserve
from tests.wires.recording import Client, ElkoFarm, RecordingPeer, desc, told

BOB = {"mode": "password", "id": "bob", "code": "crayon"}
ANN = {"mode": "password", "id": "ann", "code": "pencil"}

NO_NAMES = FILE.replace('"{user}-*", ', "")
"""Bob may find and offer the name "shared" only."""
NO_VIEW = FILE.replace('users = ["ann"]\noperations = ["*"]', 'users = ["ann"]\noperations = ["admin.*"]')
"""Ann may administer, but not view."""


@attrs.define
class Scene:
    """A broker with a users file."""

    farm: ElkoFarm
    rig: Rig

    def login(self, to: str, auth: dict[str, str], access: AccessControl | None = None) -> Client:
        """Connect and authenticate, to a listener of its own if none is given."""
        access = access or self.access
        client = Client(
            lambda to: (BlockReader(VOCABULARY), BrokerSession(self.farm.wiring, access, to)), RecordingPeer()
        )
        client.say(to, "auth", auth=auth)
        assert client.take() == []
        return client

    @property
    def access(self) -> AccessControl:
        """The access control of a listener."""
        return access(self.rig, Policy())


def access(rig: Rig, policy: Policy) -> AccessControl:
    """Return the access control of a listener, which reviews its sessions when the users file changes."""
    control = AccessControl(policy, rig.access, "elko")
    rig.access.changed.append(control.review)
    return control


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(ElkoFarm(), Rig(tmp_path / "users.toml"))


def forbidden(name: str, **more: Any) -> dict[str, Any]:
    """The answer to a find that ends because the user lost the right to it."""
    failure = f"bob has no right to find {name!r} here"
    return {
        "to": "client",
        "op": "find",
        "desc": [{"type": "servicedesc", "service": name, "failure": failure}],
        **more,
    }


@pytest.mark.parametrize(
    "how", [{"wait": 60}, {"wait": -1}, {"wait": 60, "monitor": True}, {"wait": -1, "monitor": True}]
)
def test_a_standing_find_ends_with_the_right_to_the_name(scene: Scene, how: dict[str, Any]) -> None:
    bob = scene.login("client", BOB)
    assert bob.ask("client", "find", service="bob-1", tag="t", **how) == []
    assert bob.ask("client", "find", service="shared", **how) == []
    scene.rig.change(NO_NAMES)
    assert bob.take() == [forbidden("bob-1", tag="t")]
    assert bob.reasons == ["forbidden"]
    scene.farm.client().offer(desc("bob-1", "h:1"), desc("shared", "h:2"))
    [answer] = bob.take()
    assert answer["desc"][0]["service"] == "shared"
    assert not bob.closed


def test_a_monitor_that_was_answered_ends_with_the_right_to_the_name(scene: Scene) -> None:
    scene.farm.client().offer(desc("bob-1", "h:1"))
    bob = scene.login("client", BOB)
    [answer] = bob.ask("client", "find", service="bob-1", wait=-1, monitor=True)
    assert answer["desc"] == [told("bob-1", 1, "h:1")]
    scene.rig.change(NO_NAMES)
    assert bob.take() == [forbidden("bob-1")]
    scene.farm.client().offer(desc("bob-1", "h:2"))
    assert bob.take() == []


def test_a_half_closed_connection_closes_after_its_last_forbidden_find(scene: Scene) -> None:
    bob = scene.login("client", BOB)
    bob.say("client", "find", service="bob-1", wait=60)
    assert bob.session.input_ended()
    scene.rig.change(NO_NAMES)
    assert bob.take() == [forbidden("bob-1")]
    assert bob.closed


def test_a_session_whose_review_fails_leaves_no_other_one_its_rights(scene: Scene) -> None:
    def fail(refusal: Refusal) -> bool:
        raise RuntimeError("a defect")

    listener = scene.access
    *broken, bob = [scene.login("client", BOB, listener) for _ in range(10)]
    for each in broken:
        each.peer.refused = fail  # type: ignore[method-assign]
    scene.rig.change(FILE.replace('"bob"', '"rob"'))
    assert bob.closed


def test_the_watches_of_an_administrator_end_with_the_right_to_view(scene: Scene) -> None:
    ann = scene.login("admin", ANN)
    ann.say("admin", "watch", services=True, load=True)
    ann.take()
    scene.rig.change(NO_VIEW)
    [diagnostic] = ann.take()
    assert diagnostic["msg"] == "ann has no right to view here"
    provider = scene.farm.client()
    provider.offer(desc("bank", "h:1"))
    provider.say("client", "load", factor=0.5)
    assert ann.take() == []
    assert not ann.closed
    scene.rig.change(NO_VIEW + "# a comment\n")
    assert ann.take() == []


def watching(farm: DirectorFarm, control: AccessControl) -> Client:
    """An administrator of the director, with a watch of a context."""
    ann = Client(lambda to: (BlockReader(DIRECTOR), DirectorSession(farm.wiring, control, to)), RecordingPeer())
    ann.say("admin", "auth", auth=ANN)
    ann.say("admin", "watch", context="context-a")
    return ann


def test_the_watches_of_the_directors_administrator_end_with_the_right_to_view(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "users.toml")
    farm = DirectorFarm()
    control = access(rig, policy())
    ann = watching(farm, control)
    ann.say("admin", "watch", user="user-joe")
    ann.take()
    rig.change(NO_VIEW)
    [diagnostic] = ann.take()
    assert diagnostic["msg"] == "ann has no right to view here"
    opens(farm.server("one"), "context-a", "user-joe")
    farm.settle()
    assert ann.take() == []
    assert not ann.closed


@pytest.mark.parametrize("how", ["disconnect", "half-close"])
def test_the_right_to_view_ends_after_the_input_of_an_administrator(tmp_path: Path, how: str) -> None:
    rig = Rig(tmp_path / "users.toml")
    farm = DirectorFarm()
    control = access(rig, policy())
    ann = watching(farm, control)
    ann.take()
    ann.peer.behind = True
    ann.say("admin", "listproviders")
    if how == "disconnect":
        ann.say("admin", "disconnect")
    else:
        assert ann.session.input_ended()
    rig.change(NO_VIEW)
    control.review()  # all sessions of the listener, of which one that fails would leave out the others
    assert (ann.take(), ann.closed) == ([], False)
    ann.peer.behind = False
    farm.clock.advance(READ_POLL_INTERVAL)
    assert ([answer["op"] for answer in ann.take()], ann.closed) == (["listproviders"], True)


def test_a_reservation_that_waits_is_denied_with_the_right_to_the_context(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "users.toml")
    farm = DirectorFarm()
    recorded = RecordedServer("one", {"tcp": "one:9000"}, {"bob": False, "shared": False}, ("bob-1", "shared"))
    path = tmp_path / "director.json"
    path.write_bytes(encode([recorded], farm.clock.seconds()))
    farm.director.keep_record(farm.clock, maybeDeferred, str(path), 20.0)
    control = access(rig, policy())
    bob = Client(lambda to: (BlockReader(DIRECTOR), DirectorSession(farm.wiring, control, to)), RecordingPeer())
    bob.say("director", "auth", auth=BOB)
    for context in ("bob-1", "shared"):
        assert bob.ask("director", "reserve", protocol="tcp", context=context, tag=context) == []
    rig.change(NO_NAMES)
    denied = {"to": "director", "op": "reserve", "context": "bob-1", "tag": "bob-1"}
    assert bob.take() == [{**denied, "deny": "bob has no right to find 'bob-1' here"}]
    assert bob.reasons == ["forbidden"]
    one = farm.server("one", family="shared")
    one.say("provider", "willserve", context="bob")
    opens(one, "bob-1")
    opens(one, "shared")
    farm.clock.pump([0.1] * 20)
    [granted] = bob.take()
    assert (granted["context"], granted["hostport"]) == ("shared", "one:9000")
    assert [message["context"] for message in one.take()] == ["shared"]
    assert not bob.closed


def test_a_context_server_loses_the_families_and_contexts_that_its_user_may_not_offer(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "users.toml")
    rig.change(FILE.replace('"{user}-*"', '"room*"'))
    farm = DirectorFarm()
    control = access(rig, policy())
    bob = Client(lambda to: (BlockReader(DIRECTOR), DirectorSession(farm.wiring, control, to)), RecordingPeer())
    bob.say("provider", "auth", auth=BOB)
    bob.say("provider", "address", protocol="tcp", hostport="bob:9000")
    for family in ("room", "shared"):
        bob.say("provider", "willserve", context=family)
    opens(bob, "room-1", "user-joe")
    opens(bob, "shared", "user-joe")
    admin = farm.admin()
    admin.ask("admin", "watch", context="room-1")
    rig.change(NO_NAMES)
    assert [(notice["context"], notice["open"]) for notice in admin.take()] == [("room-1", False)]
    assert (farm.director.contexts(), farm.director.find_user("user-joe").contexts) == (["shared"], ("shared",))
    gatekeeper = farm.user()
    assert "deny" in reserve(gatekeeper, "room-1")
    assert "deny" in reserve(gatekeeper, "room-2")
    assert reserve(gatekeeper, "shared")["hostport"] == "bob:9000"
    assert not bob.closed


def test_large_contexts_that_a_server_may_not_offer_close_over_several_turns(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "users.toml")
    farm = DirectorFarm()
    control = access(rig, policy())
    bob = Client(lambda to: (BlockReader(DIRECTOR), DirectorSession(farm.wiring, control, to)), RecordingPeer())
    bob.say("provider", "auth", auth=BOB)
    users = [f"user-{number}" for number in range(STEPS_PER_TURN)]
    for context in ("bob-1", "bob-2", "bob-3"):
        opens(bob, context, *users)
    rig.change(NO_NAMES)
    assert farm.director.contexts() == ["bob-1", "bob-2", "bob-3"]
    bob.say("provider", "user", context="bob-2", user=users[0], on=False)
    farm.settle()
    assert (farm.director.contexts(), farm.director.users()) == ([], [])
    bob.drop()
    farm.settle()
    assert not farm.director.counts()["providers"]
