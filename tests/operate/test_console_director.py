"""The director's commands in the console."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import pytest

from broker.access.principal import Access, Principal
from broker.operate.console import PRETTY, ConsoleSession, Shown
from broker.operate.console_input import ConsoleReader, Line
from broker.wires.elko.codec.director_messages import ADMIN
from broker.wires.elko.console_commands import DIRECTOR, WIDTH, broker_dialect, director_dialect
from broker.wires.elko.sessions.authentication import AccessControl
from broker.wires.tables import Dialect
from tests.access.memory import MemoryAccess
from tests.garbage import no_collection
from tests.operate.test_console import Operator, enter
from tests.wires.elko.director_recording import DirectorFarm, opens, reserve
from tests.wires.recording import ElkoFarm, RecordingPeer


@pytest.fixture
def farm() -> DirectorFarm:
    return DirectorFarm()


@pytest.fixture
def operator(farm: DirectorFarm) -> Operator:
    return at_the_console(farm)


def both(broker: ElkoFarm, farm: DirectorFarm) -> list[Dialect]:
    return [broker_dialect(broker.wiring), director_dialect(farm.wiring)]


def at_the_console(farm: DirectorFarm, access: Access | None = None) -> Operator:
    """An operator of a broker that has this director."""
    broker = ElkoFarm()
    operator = Operator(
        lambda to: (ConsoleReader(), ConsoleSession(both(broker, farm), Shown(), to, access)),
        RecordingPeer(True, "127.0.0.1:7"),
    )
    operator.read()
    return operator


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("director listusers", 'director {op:"listusers"}'),
        ("director  listproviders", 'director  {"to":"admin","op":"listproviders"}'),
        ("director find context-a", 'director {op:"find", context:"context-a"}'),
        ("director find user=user-x", 'director {op:"find", user:"user-x"}'),
        ("director dump", 'director {op:"dump", depth:1}'),
        ("director dump 3", 'director {op:"dump", depth:3}'),
        ("director dump depth=2 provider=cs1", 'director {op:"dump", depth:2, provider:"cs1"}'),
        ("director ping x", 'director {op:"ping", tag:"x"}'),
        ("director ping to=director", 'director {to:"director", op:"ping"}'),
        ("director find", 'director {op:"find"}'),
        ("director find user-x", 'director {op:"find", user:"user-x"}'),
        ("director watch user-joe", 'director {op:"watch", user:"user-joe"}'),
        ("director find context=user-x", 'director {op:"find", context:"user-x"}'),
    ],
)
def test_a_command_is_its_message(farm: DirectorFarm, operator: Operator, line: str, same: str) -> None:
    opens(farm.server("cs1"), "context-a", "user-x")
    answer = operator.type(line)
    assert answer
    assert answer == operator.type(same)


def test_operators_steer_the_servers(farm: DirectorFarm, operator: Operator) -> None:
    server = farm.server("cs1")
    opens(server, "context-a")
    text = operator.type(
        "director say context-a text='hello there'",
        """director relay context-a 'msg={"op":"bell"}'""",
        "director close context-a",
        "director reinit all",
        "director shutdown cs1 kill=true",
    )
    assert text == ""
    assert [(message["op"], message.get("text"), message.get("kill")) for message in server.take()] == [
        ("say", "hello there", None),
        ("relay", None, None),
        ("close", None, None),
        ("reinit", None, None),
        ("shutdown", None, True),
    ]
    operator.type("director reinit director=true", "director shutdown director=true")
    assert farm.control.calls == ["reinitialize", "shut_down"]


def test_operators_watch(farm: DirectorFarm, operator: Operator) -> None:
    [found] = operator.get("director watch user=user-x")
    assert found["on"] is False
    server = farm.server("cs1")
    opens(server, "context-a", "user-x")
    [found] = operator.get()
    assert found["contexts"] == ["context-a"]
    operator.drop()
    server.drop()
    assert operator.read() == ""


def test_operators_may_reserve(farm: DirectorFarm, operator: Operator) -> None:
    farm.server("cs1")
    [answer] = operator.get("director reserve context-a protocol=tcp")
    assert (answer["to"], answer["hostport"]) == ("director", "cs1:9000")
    assert "hostport" in reserve(farm.user(), "context-a")


def test_a_message_without_the_word_is_for_the_broker(operator: Operator) -> None:
    assert operator.get('{op:"ping"}') == operator.get("ping") == [{"to": "admin", "op": "pong"}]
    assert "no op 'listusers'" in operator.type('{op:"listusers"}')


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("director", "try help director"),
        ("director dance", "there is no command 'director dance'"),
        ("director willserve context=c", "there is no command 'director willserve'"),
        ("director listusers x", "'x' is not NAME=VALUE"),
        ("director find a user=b", "mutually exclusive"),
        ("director find user joe", "context is given twice"),
        ("director find a b=c", "no parameter 'b'"),
        ("director dump depth=deep", "depth"),
        ('director {op:"dump"', "position"),
        ('director {op:"dump"} {', "position"),
        ('director {op:"servicedesc"}', "no op 'servicedesc'"),
        ("director close user-none", "not found"),
    ],
)
def test_what_is_wrong_is_said_once(operator: Operator, line: str, error: str) -> None:
    text = operator.type(line)
    assert text.startswith("error: ")
    assert error in text
    assert text.count("\n") == 1
    assert len(operator.peer.refusals) == 1
    assert not operator.closed


def test_an_error_has_no_commands_for_the_terminal(operator: Operator) -> None:
    text = operator.type(r'director {op:"say", context:"\u001b[2J\n", text:"x"}')
    assert text == "error: context \\u001b[2J\n not found\n"


def test_without_a_director_there_are_no_such_commands() -> None:
    operator = enter(ElkoFarm())
    operator.read()
    assert operator.type("director dump") == "error: there is no command 'director'; try help\n"
    assert "director" not in operator.type("help")


def test_help_names_what_operators_can_say(operator: Operator) -> None:
    lines = [line.strip() for line in operator.type("help").splitlines()]
    for message in ADMIN:
        op = str(message.__struct_config__.tag)
        [line] = [line for line in lines if line.split()[:2] == ["director", op]]
        fields = [field for field in message.__struct_encode_fields__ if field != "to"]
        assert all(f"{field}=" in line for field in fields)
    assert not any(line.startswith("director willserve") for line in lines)


@pytest.mark.parametrize("op", DIRECTOR.ops)
def test_help_for_each_op(operator: Operator, op: str) -> None:
    text = operator.type(f"help director {op}")
    assert text.startswith(f"director {op}")
    assert len(text.splitlines()) >= 2
    assert all(line.startswith("  ") and len(line) <= WIDTH for line in text.splitlines()[1:])


@pytest.mark.parametrize("op", DIRECTOR.ops)
def test_the_help_of_an_op_says_what_it_does(operator: Operator, op: str) -> None:
    about = operator.type(f"help director {op}").partition("\n")[2].strip()
    assert about[0].isupper()
    assert about.endswith(".")


def test_help_for_the_director_is_its_part_of_the_help(operator: Operator) -> None:
    lines = operator.type("help director").splitlines()
    assert [line.split()[:2] for line in lines] == [["director", op] for op in sorted(DIRECTOR.ops)]
    assert "\n  ".join(lines) in operator.type("help")


@pytest.mark.parametrize("line", ["director reinit nobody", "director shutdown nobody director=true"])
def test_an_order_to_nobody_is_an_error_and_does_nothing(farm: DirectorFarm, operator: Operator, line: str) -> None:
    server = farm.server("cs1")
    assert "no server is called 'nobody'" in operator.type(line)
    assert (server.take(), farm.control.calls) == ([], [])
    assert operator.type("director reinit all") == ""
    server.drop()
    assert operator.type("director reinit all") == ""


def test_on_the_wire_an_order_to_nobody_has_no_answer(farm: DirectorFarm) -> None:
    admin = farm.admin()
    assert admin.ask("admin", "reinit", provider="nobody") == admin.ask("admin", "shutdown", provider="nobody") == []
    assert admin.reasons == []


def test_it_is_for_those_who_logged_in(farm: DirectorFarm) -> None:
    opens(farm.server("cs1"), "context-a")
    operator = at_the_console(farm, MemoryAccess())
    assert "context-a" not in operator.type("director listcontexts")


def crowded(farm: DirectorFarm) -> None:
    """Have so much in the farm that a dump takes its time."""
    server = farm.server("cs1")
    for number in range(1_000):
        opens(server, f"context-{number}", *(f"user-{number}-{user}-{'x' * 200}" for user in range(6)))


def test_the_last_answers_come_after_the_last_line(farm: DirectorFarm, operator: Operator) -> None:
    crowded(farm)
    operator.type("director dump 3", "find bank wait=-1")
    assert operator.session.input_ended() is True
    assert not operator.closed
    farm.settle()
    text = operator.read()
    assert text.startswith('{"to":"admin","op":"dump"')
    assert operator.closed


def test_a_large_dump_is_shown_as_it_is(farm: DirectorFarm, operator: Operator) -> None:
    crowded(farm)
    operator.type("director dump 3")
    farm.settle()
    text = operator.read()
    assert len(text) > PRETTY
    assert text.count("\n") == 1


@pytest.mark.parametrize("waiting", ["director dump 3", "find bank wait=5"])
def test_either_of_the_sessions_may_be_the_last_to_answer(waiting: str) -> None:
    farm, broker = DirectorFarm(), ElkoFarm()
    operator: Any = Operator(
        lambda to: (ConsoleReader(), ConsoleSession(both(broker, farm), Shown(), to)),
        RecordingPeer(True, "127.0.0.1:7"),
    )
    crowded(farm)
    operator.read()
    operator.type("director dump 3", "find bank wait=5")
    assert operator.session.input_ended() is True
    if waiting.startswith("find"):
        farm.settle()
        assert '"op":"dump"' in operator.read()
        assert not operator.closed
        broker.clock.advance(5)
        assert "no such service" in operator.read()
    else:
        broker.clock.advance(5)
        assert "no such service" in operator.read()
        assert not operator.closed
        farm.settle()
        assert '"op":"dump"' in operator.read()
    assert operator.closed


def test_an_operator_who_has_gone_needs_no_garbage_collection(farm: DirectorFarm) -> None:
    broker = ElkoFarm()
    peer = RecordingPeer(True, "127.0.0.1:7")
    session = ConsoleSession(both(broker, farm), Shown(), peer)
    session.begin()
    for command in ("director listusers", "director watch user-joe"):
        session.receive(Line(command))
    farm.clock.advance(1)
    gone = ref(session)
    gc.collect()
    with no_collection():
        session.lost()
        del session
        assert gone() is None


def test_operators_share_the_access_of_their_dialect(farm: DirectorFarm) -> None:
    gates = {id(each) for each in gc.get_objects() if isinstance(each, AccessControl)}
    dialects = both(ElkoFarm(), farm)
    made = []
    for _ in range(3):
        made += [dialect.converse(RecordingPeer(True, "127.0.0.1:7"), Principal()) for dialect in dialects]
    new = [each for each in gc.get_objects() if isinstance(each, AccessControl) and id(each) not in gates]
    assert len(new) == len(dialects)
