"""The console: commands of an operator, over telnet or not, and their output.

The file is longer than others: it has all tests of `broker.operate.console`.
"""

from __future__ import annotations

import gc
import json
import unicodedata
from collections.abc import Callable
from typing import Any
from weakref import ref

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import FieldInfo

from broker.core.errors import Malformed, Reason
from broker.core.model import Launcher
from broker.net.refusal_log import Counters
from broker.operate.console import ConsoleSession, Shown
from broker.operate.console_input import MAX_LINE, ConsoleReader, Line
from broker.wires.elko.codec.broker_messages import VOCABULARY
from broker.wires.elko.console_commands import WIDTH, broker_dialect
from broker.wires.tables import Column, Counter, Documentation, View
from tests.access.memory import MemoryAccess
from tests.garbage import no_collection
from tests.wires.recording import Client, ElkoFarm, RecordingPeer, desc, found, nothing, remembered, told

IAC, DONT, DO, WONT, WILL, SB, SE = 255, 254, 253, 252, 251, 250, 240
NOP, ARE_YOU_THERE, INTERRUPT, TIMING_MARK, NAWS, ECHO = 241, 246, 244, 6, 31, 1

OPS = sorted({str(message.__struct_config__.tag) for message in VOCABULARY.messages} - {"auth"})


class Operator(Client):
    """A user of the console."""

    def type(self, *lines: str) -> str:
        """Type lines, and read what comes, as text with plain newlines."""
        self.send("".join(f"{line}\r\n" for line in lines).encode())
        return self.read()

    def read(self) -> str:
        text = b"".join(self.peer.written).decode()
        self.peer.written.clear()
        assert text.count("\n") == text.count("\r\n") == text.count("\r"), "every line ends as telnet wants it"
        return text.replace("\r\n", "\n")

    def get(self, *lines: str) -> list[Any]:
        """The same, as JSON; errors stay text."""
        return parsed(self.type(*lines))


def parsed(text: str) -> list[Any]:
    values: list[Any] = []
    while text := text.lstrip():
        if text.startswith("{"):
            value, end = json.JSONDecoder().raw_decode(text)
        else:
            end = len(text.partition("\n")[0])
            value = text[:end]
        values.append(value)
        text = text[end:]
    return values


USERS = MemoryAccess(tokens={"figleaf": "operator"})
"""An operator who has a token; peers without a user may do nothing."""


@pytest.fixture
def farm() -> ElkoFarm:
    return ElkoFarm(launchers=[Launcher("web", "run web")])


def enter(
    farm: ElkoFarm,
    users: bool = False,
    address: str = "127.0.0.1:7",
    patience: int = 1_000_000,
    **shown: Any,
) -> Operator:
    return Operator(
        lambda to: (
            ConsoleReader(),
            ConsoleSession([broker_dialect(farm.wiring)], Shown(**shown), to, USERS if users else None),
        ),
        RecordingPeer(True, address, patience),
    )


def listed(names: Callable[[], list[str]]) -> View[str]:
    """A view of names."""
    return View(
        "farm names",
        "Shows names.",
        [Column("name", "Name of a thing")],
        names,
        lambda name: {"name": name},
        lambda name: (name,),
    )


@pytest.fixture
def operator(farm: ElkoFarm) -> Operator:
    operator = enter(farm)
    assert "help" in operator.read()
    return operator


# messages


def services(*descriptors: dict[str, Any], on: bool = True) -> dict[str, Any]:
    return {"to": "admin", "op": "servicedesc", "desc": list(descriptors), "on": on}


@pytest.mark.parametrize(
    "line",
    [
        '{op:"servicedesc"}',
        '{"op":"servicedesc"}',
        '{"to":"admin","op":"servicedesc"}',
        "{to:'admin', op:'servicedesc',}",
        "  {op:'servicedesc'}  ",
        "servicedesc",
        "  servicedesc\t",
    ],
)
def test_one_line_is_answered_at_once(farm: ElkoFarm, operator: Operator, line: str) -> None:
    secret = {"type": "auth", "mode": "password", "code": "sesame"}
    farm.client().offer(desc("bank", auth=secret))
    assert operator.get(line) == [services(told("bank", 1, auth=secret))]


def test_answers_are_printed_for_people(operator: Operator) -> None:
    assert operator.type('{op:"servicedesc"}') == (
        '{\n  "to": "admin",\n  "op": "servicedesc",\n  "desc": [],\n  "on": true\n}\n'
    )


def test_several_messages_may_stand_in_a_line(operator: Operator) -> None:
    replies = operator.get('{op:"ping",tag:"1"} {op:"ping",tag:"2"}')
    assert [reply["tag"] for reply in replies] == ["1", "2"]


def test_the_object_is_the_right_one_for_the_op_and_may_be_said(farm: ElkoFarm, operator: Operator) -> None:
    farm.client().offer(desc("bank"))
    assert operator.get('{op:"find", service:"bank"}') == [found(told("bank", 1), to="client")]
    assert operator.get('{to:"broker", op:"find", service:"none"}') == [nothing("none")]
    assert operator.get('{op:"ping"}') == [{"to": "admin", "op": "pong"}]
    assert operator.get('{to:"error", op:"ping"}') == [{"to": "error", "op": "pong"}]


def test_an_operator_is_no_provider(farm: ElkoFarm, operator: Operator) -> None:
    assert farm.registry.providers() == []
    assert operator.get("loaddesc") == [{"to": "admin", "op": "loaddesc", "desc": []}]


def test_finds_may_wait(farm: ElkoFarm, operator: Operator) -> None:
    assert operator.get('{op:"find", service:"bank", wait:5, tag:"a"}', "find bank wait=-1 monitor=true tag=b") == []
    farm.client().offer(desc("bank"), desc("bank", "h:2"))
    replies = operator.get()
    assert [(reply["tag"], reply["desc"][0]["hostport"]) for reply in replies] == [
        ("a", "h:1"),
        ("b", "h:1"),
        ("b", "h:2"),
    ]


def test_what_is_remembered_is_marked() -> None:
    operator = enter(ElkoFarm([remembered(3, ("bank", "h:1"))]))
    operator.read()
    [reply] = operator.get("find bank")
    assert reply["desc"][0]["restored"] is True


@pytest.mark.parametrize("control", ["\x9b2J", "\x7f", "\x85", "\x90q"])
def test_what_peers_say_gives_no_commands_to_the_terminal(farm: ElkoFarm, operator: Operator, control: str) -> None:
    farm.client().offer(desc("bank", label=f"a{control}b"))
    text = operator.type("servicedesc")
    assert [character for character in text if unicodedata.category(character) == "Cc"] == ["\n"] * text.count("\n")
    assert parsed(text)[0]["desc"][0]["label"] == f"a{control}b"


def test_nor_do_the_commands_of_old_terminals(farm: ElkoFarm, operator: Operator) -> None:
    farm.client().offer(desc("bank", label="\x1b[2J\x07\0\b"))
    text = operator.type("servicedesc")
    assert [character for character in text if unicodedata.category(character) == "Cc"] == ["\n"] * text.count("\n")


# commands


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("find bank", '{op:"find", service:"bank"}'),
        ("find service=bank", '{op:"find", service:"bank"}'),
        ("find bank protocol=http tag=t", '{op:"find", service:"bank", protocol:"http", tag:"t"}'),
        ('find "two words"', '{op:"find", service:"two words"}'),
        ("find tag='a b' bank", '{op:"find", service:"bank", tag:"a b"}'),
        ("shutdown one cluster=true", '{op:"shutdown", server:"one", cluster:true}'),
        ("servicedesc bank", '{op:"servicedesc", service:"bank"}'),
        ("servicedesc service=bank protocol=http", '{op:"servicedesc", service:"bank", protocol:"http"}'),
        ("loaddesc", '{op:"loaddesc"}'),
        ("loaddesc bank", '{op:"loaddesc", service:"bank"}'),
        ("loaddesc server=one", '{op:"loaddesc", server:"one"}'),
        ("launcherdesc", '{op:"launcherdesc"}'),
        ("launch web", '{op:"launch", name:"web"}'),
        ("launch name=none", '{op:"launch", name:"none"}'),
        ("ping", '{op:"ping"}'),
        ("ping hello", '{op:"ping", tag:"hello"}'),
        ("ping to=error", '{to:"error", op:"ping"}'),
        ("reinit server=none", '{op:"reinit", server:"none"}'),
    ],
)
def test_a_command_is_its_message(farm: ElkoFarm, operator: Operator, line: str, same: str) -> None:
    client = farm.client("one")
    client.offer(desc("bank"), desc("bank", protocol="http"))
    answer = operator.type(line)
    assert answer == operator.type(same)


def test_commands_do_something(farm: ElkoFarm, operator: Operator) -> None:
    client = farm.client("one")
    operator.type("reinit server=one", "shutdown server=all kill=true")
    assert [message["op"] for message in client.take()] == ["reinit", "shutdown"]
    operator.type("reinit self=true", "shutdown self=true")
    assert farm.control.calls == [("reload", None), ("shutdown", False)]
    assert operator.get("launch web") == [{"to": "admin", "op": "launch", "status": "start web"}]
    operator.type('debug msg="a line"')
    assert operator.peer.debugs == [("console", "a line")]


@pytest.mark.parametrize("line", ["loaddesc server=1", "loaddesc server=true", "ping tag=1", "find service=5"])
def test_digits_are_a_text_where_a_text_is_wanted(farm: ElkoFarm, operator: Operator, line: str) -> None:
    farm.client("true").offer(desc("5"))
    [reply] = operator.get(line)
    assert isinstance(reply, dict), reply


def test_the_counters_are_told(farm: ElkoFarm) -> None:
    counters = Counters()
    operator = enter(farm, counts=counters.all)
    operator.read()
    assert operator.type("counters") == "nothing was counted yet\n"
    counters.count("elko_refused", "syntax", 3)
    counters.count("elko_accept", "paused")
    assert operator.type("counters") == "elko_accept.paused 1\nelko_refused.syntax 3\n"


@pytest.mark.parametrize("word", ["quit", "exit", "disconnect"])
def test_one_may_leave(operator: Operator, word: str) -> None:
    operator.type(word)
    assert operator.closed


def test_a_line_ends_with_the_session(farm: ElkoFarm, operator: Operator) -> None:
    replies = operator.get('{op:"ping"} {op:"disconnect"} {op:"launch", name:"web"}')
    assert (replies, operator.closed) == ([{"to": "admin", "op": "pong"}], True)
    assert farm.spawned == []


def test_a_line_that_is_wrong_too_often_is_carried_out_no_further(farm: ElkoFarm) -> None:
    operator = enter(farm, patience=3)
    operator.type('{op:"launch", name:"web"} ' + '{to:"nobody", op:"ping"} ' * 5 + '{op:"launch", name:"web"}')
    assert (operator.closed, len(farm.spawned)) == (True, 1)
    assert [refusal.reason for refusal in operator.peer.refusals] == [Reason.UNKNOWN_TARGET] * 4


def test_empty_lines_are_nothing(operator: Operator) -> None:
    assert operator.type("", "   ", "\t") == ""
    assert operator.peer.refusals == []


# help


def test_help_names_every_op_and_its_parameters(operator: Operator) -> None:
    lines = operator.type("help").splitlines()
    for op in OPS:
        [line] = [line for line in lines if line.split()[:1] == [op]]
        [fields] = [
            message.__struct_encode_fields__ for message in VOCABULARY.messages if message.__struct_config__.tag == op
        ]
        assert all(f"{field}=" in line for field in fields if field != "to"), line
    assert any("quit" in line for line in lines)


@pytest.mark.parametrize("op", OPS)
def test_help_for_each_op(operator: Operator, op: str) -> None:
    text = operator.type(f"help {op}")
    assert text.startswith(op)
    assert len(text.splitlines()) >= 2
    assert all(line.startswith("  ") and len(line) <= WIDTH for line in text.splitlines()[1:])


@pytest.mark.parametrize("op", OPS)
def test_the_help_of_an_op_says_what_it_does(operator: Operator, op: str) -> None:
    about = operator.type(f"help {op}").partition("\n")[2].strip()
    assert about[0].isupper()
    assert about.endswith(".")
    assert len(about.split()) >= 2
    assert '"' not in about.split()[0], "no reference to a document"


@pytest.mark.parametrize("words", ["dance", "watch me", "auth", "director", "director find", "farm", "farm sizes"])
def test_help_for_what_there_is_not_is_an_error(farm: ElkoFarm, words: str) -> None:
    operator = enter(farm, views={"farm names": listed(lambda: ["bank"])})
    operator.read()
    assert operator.type(f"help {words}") == f"error: there is no command {words!r}; help alone shows all\n"
    assert operator.reasons == ["unknown-op"]


@pytest.mark.parametrize("word", ["counters", "help", "quit", "status", "version"])
def test_help_for_the_other_commands(operator: Operator, word: str) -> None:
    assert word in operator.type("help")
    name, about = operator.type(f"help {word}").splitlines()
    assert name == word
    assert about.endswith(".")


def test_help_for_counters_says_what_each_counts(farm: ElkoFarm) -> None:
    documentation = Documentation(
        [Counter("a", "All of a", "things"), Counter("a.x", "One of a", "things", gauge=True), Counter("b", "All of b")]
    )
    counts = {"a.x": 1, "a.y": 2, "b.z": 3, "unknown": 4}
    operator = enter(farm, counts=lambda: counts, documentation=documentation)
    operator.read()
    assert operator.type("help counters").split("\n")[2:] == [
        "  a.x: One of a (things, now).",
        "  a.y: All of a (things).",
        "  b.z: All of b.",
        "",
    ]


def test_help_for_a_view(farm: ElkoFarm) -> None:
    operator = enter(farm, views={"farm names": listed(lambda: ["bank"])})
    operator.read()
    assert operator.type("help farm names").startswith("farm names [PATTERN]\n  Shows")


def test_a_word_alone_in_an_order_is_the_server(farm: ElkoFarm, operator: Operator) -> None:
    one, other = farm.client("one"), farm.client("context1")
    assert operator.type("reinit context1", "shutdown context1 kill=true") == ""
    assert [(message["op"], message.get("kill")) for message in other.take()] == [("reinit", None), ("shutdown", True)]
    assert one.take() == []
    assert farm.control.calls == []


@pytest.mark.parametrize(
    "line",
    [
        "reinit nobody",
        "reinit server=nobody",
        "shutdown nobody",
        "shutdown nobody self=true",
        "reinit self",
        '{op:"reinit", server:"nobody", self:true}',
    ],
)
def test_an_order_to_nobody_is_an_error_and_does_nothing(farm: ElkoFarm, operator: Operator, line: str) -> None:
    client = farm.client("one")
    text = operator.type(line)
    assert text.startswith("error: ")
    assert "no server is called" in text
    assert client.take() == []
    assert farm.control.calls == []
    assert operator.get("ping") == [{"to": "admin", "op": "pong"}]


@pytest.mark.parametrize("line", ["reinit all", "shutdown all", "reinit server=all"])
def test_an_order_to_all_may_reach_none(operator: Operator, line: str) -> None:
    assert operator.type(line) == ""


def test_status_and_version(farm: ElkoFarm) -> None:
    operator = enter(farm, status=lambda: {"uptime": 5}, version="1.2.3")
    operator.read()
    assert operator.get("status") == [{"uptime": 5}]
    assert operator.type("version") == "elkobroker 1.2.3\n"


@pytest.mark.parametrize("word", ["status", "version", "counters", "quit", "exit"])
def test_commands_without_parameters_take_none(operator: Operator, word: str) -> None:
    assert operator.type(f"{word} x") == f"error: {word} takes no parameters\n"
    assert not operator.closed


@pytest.mark.parametrize("op", OPS)
def test_no_op_without_parameters_harms(operator: Operator, op: str) -> None:
    text = operator.type(op)
    assert operator.closed or text.startswith(("error: ", "{")) or text == ""
    assert all(refusal.reason is not Reason.INTERNAL for refusal in operator.peer.refusals)


# views


def test_a_view_is_shown_by_its_two_words_and_given_the_pattern(farm: ElkoFarm) -> None:
    shown = ["a b", "abc", "", "my service 1", "bank"]
    operator = enter(farm, views={"farm names": listed(lambda: shown), "farm size": listed(lambda: ["5"])})
    operator.read()

    def names(line: str) -> list[str]:
        return [each["name"] for each in json.loads(operator.type(line))]

    assert operator.type("farm size") == '[\n  {\n    "name": "5"\n  }\n]\n'
    assert names("farm names") == shown
    assert names("farm names a*") == ["a b", "abc"]
    assert names("farm  names 'a b'") == ["a b"]
    assert names('farm names ""') == [""]
    assert names("farm names my  service*") == ["my service 1"]
    assert operator.peer.refusals == []


def test_a_view_is_found_by_both_words_only(farm: ElkoFarm) -> None:
    operator = enter(farm, views={"farm names": listed(lambda: ["bank"])})
    operator.read()
    for line in ("farm", "farm name", "names", "names farm", "Farm names"):
        assert operator.type(line).startswith("error: there is no command")


def test_a_view_that_is_half_typed_is_suggested(farm: ElkoFarm) -> None:
    operator = enter(farm, views={"farm size": str, "farm names": str})
    operator.read()
    assert operator.type("farm name") == "error: there is no command 'farm name', but farm names and farm size\n"
    assert operator.type("names") == "error: there is no command 'names', but farm names\n"
    assert operator.type("names b*") == "error: there is no command 'names b*', but farm names\n"


def test_a_command_is_no_half_typed_view(farm: ElkoFarm) -> None:
    operator = enter(farm, views={"farm find": str, "farm status": str, "farm exit": str})
    operator.read()
    assert "there is no command" not in operator.type("find bank")
    assert operator.type("status").startswith("{")
    operator.type("exit")
    assert operator.peer.closed


def test_views_are_in_the_help_and_cost_no_op_its_place(farm: ElkoFarm) -> None:
    operator = enter(farm, views={"farm names": lambda pattern: pattern, "farm size": len})
    text = operator.read() + operator.type("help")
    assert text.index("farm names [PATTERN]") < text.index("farm size [PATTERN]") < text.index("quit")
    assert operator.get("ping") == [{"to": "admin", "op": "pong"}]


def test_a_view_is_for_those_who_logged_in(farm: ElkoFarm) -> None:
    operator = enter(farm, True, views={"farm names": lambda pattern: {"secret": pattern}})
    assert "secret" not in operator.type("farm names")


def test_a_terminal_is_shown_nothing_that_it_takes_for_a_command(farm: ElkoFarm) -> None:
    operator = enter(farm, views={"farm names": listed(lambda: ["\x1b[2J\x9b1m\x7f"])})
    operator.read()
    text = operator.type("farm names")
    assert all(line.isprintable() for line in text.split("\n"))
    assert json.loads(text) == [{"name": "\x1b[2J\x9b1m\x7f"}]


# what is wrong


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{op:"servicedesc"', "position 17"),
        ("{op:}", "position 4"),
        ('{"op" "x"}', "position 6"),
        ("{op:servicedesc}", "position 4"),
        ("{", "position 1"),
        ("{}", "no op"),
        ("{op:5}", "no op"),
        ('{op:"dance"}', "'dance'"),
        ('{op:"servicedesc"} junk', "one complete message"),
        ('{op:"servicedesc"} {', "position 20"),
        ('{op:"find"}', "service"),
        ('{op:"find", service:5}', "service"),
        ('{to:"nobody", op:"ping"}', "'nobody'"),
        ('{to:null, op:"ping"}', "to (a string)"),
        ("dance", "'dance'"),
        ("[1,2]", "'[1,2]'"),
        ('"ping"x', "'pingx'"),
        ("find", "service"),
        ("find bank wait=soon", "wait"),
        ("find bank wait=", "find: wait must be a number, not ''"),
        ("find bank wait=true", "find: wait must be a number, not 'true'"),
        ("find bank monitor=1", "find: monitor must be true or false, not '1'"),
        ("willserve services=bank", "willserve: services must be JSON of the protocol's form, not 'bank'"),
        ("find wait=5", "find: service is missing; try help find"),
        ("reinit", "reinit: a parameter is missing; try help reinit"),
        ("shutdown", "shutdown: a parameter is missing"),
        ("load", "load: factor is missing"),
        ("ping to=nobody", "'nobody'"),
        ("find bank wait=" + "[" * 3_000, "wait"),
        ("[" * 3_000, "there is no command"),
        ("find bank 5", "service is given twice"),
        ("find bank tag=a tag=b", "tag is given twice"),
        ("find bank wiat=5", "no parameter 'wiat'"),
        ("find a=b", "no parameter 'a'"),
        ("willserve", "services is missing"),
        ("willserve service=bank", "no parameter 'service'"),
        ("auth", "'auth'"),
        ("find bank monitor=1", "monitor"),
        ("watch services", "'services'"),
        ("reinit bank", "'bank'"),
        ('find "bank', "quotation"),
        ("find bank's", "quotation"),
        ("launch", "name"),
    ],
)
def test_what_is_wrong_is_said_and_the_rest_works(farm: ElkoFarm, operator: Operator, line: str, error: str) -> None:
    text = operator.type(line)
    assert text.startswith("error: ")
    assert error in text.lower() or error in text
    assert len(text.splitlines()) == 1
    assert len(operator.peer.refusals) == 1
    assert not operator.closed
    assert operator.get("ping") == [{"to": "admin", "op": "pong"}]


def test_a_wrong_line_does_nothing_of_it(farm: ElkoFarm, operator: Operator) -> None:
    client = farm.client("one")
    for rest in ("{", "}", "junk", "// rest"):
        operator.type('{op:"reinit", server:"one"} ' + rest)
    assert client.take() == []


def test_who_goes_on_being_wrong_is_closed(farm: ElkoFarm) -> None:
    operator = enter(farm, patience=3)
    operator.type("a", "b", "c", "d", "e")
    assert operator.closed
    assert [refusal.reason for refusal in operator.peer.refusals] == [Reason.UNKNOWN_OP] * 4


@pytest.mark.parametrize("line", ["load factor=1", "wontserve services=[]", "willserve services=[]"])
def test_what_help_offers_does_not_close(operator: Operator, line: str) -> None:
    assert operator.type(line) == ""
    assert not operator.closed
    assert operator.peer.refusals == []
    assert operator.get("ping") == [{"to": "admin", "op": "pong"}]


def test_an_operator_may_offer_a_service_and_then_is_a_provider(farm: ElkoFarm, operator: Operator) -> None:
    assert operator.get('{op:"willserve", services:[{service:"bank", hostport:"h:1"}]}', "load factor=2") == []
    assert [(load.label, load.load) for load in farm.registry.loads()] == [("console", 2.0)]
    assert operator.get("find bank") == [found(told("bank", 1), to="client")]
    operator.type("quit")
    assert farm.registry.providers() == []


def test_a_line_that_is_too_long_closes(farm: ElkoFarm, operator: Operator) -> None:
    operator.send(b"x" * MAX_LINE)
    assert not operator.closed
    operator.send(b"x")
    assert operator.closed
    assert str(MAX_LINE) in operator.read()


# the login


def test_a_user_is_asked_for_first(farm: ElkoFarm) -> None:
    operator = enter(farm, True)
    assert operator.read() == "login NAME, or token TOKEN:\n"
    assert "help" in operator.type("token figleaf")
    assert operator.get("ping") == [{"to": "admin", "op": "pong"}]


@pytest.mark.parametrize("line", ["wrong", "Figleaf", "figleaf2", "\u00e9"])
def test_anything_else_closes_and_does_nothing(farm: ElkoFarm, line: str) -> None:
    operator = enter(farm, True)
    text = operator.type(f"token {line}", "token figleaf", "shutdown self=true")
    assert operator.closed
    assert "the token is wrong" in text
    assert "figleaf" not in text
    assert farm.control.calls == []
    assert [refusal.reason for refusal in operator.peer.refusals] == [Reason.WRONG_CREDENTIALS]


@pytest.mark.parametrize("line", ["help", '{op:"shutdown", self:true}', "figleaf"])
def test_nothing_is_done_before_the_login(farm: ElkoFarm, line: str) -> None:
    operator = enter(farm, True)
    operator.read()
    assert operator.type(line) == "error: type login NAME, or token TOKEN\n"
    assert not operator.closed
    assert farm.control.calls == []


def test_without_a_login_nothing_is_told(farm: ElkoFarm) -> None:
    operator = enter(farm, True)
    operator.read()
    farm.client().offer(desc("bank"))
    assert operator.read() == ""
    operator.session.input_ended()
    operator.drop()


# watching


def test_notices_come_between_the_answers_while_one_types(farm: ElkoFarm, operator: Operator) -> None:
    client = farm.client("one")
    assert [reply["op"] for reply in operator.get("watch")] == ["servicedesc", "loaddesc"]
    operator.send(b"pi")
    client.offer(desc("bank"))
    client.say("broker", "load", factor=0.5)
    [offered, load] = operator.get()
    assert offered == services(told("bank", 1))
    assert load["desc"][0]["load"] == 0.5
    assert operator.get("ng") == [{"to": "admin", "op": "pong"}]
    client.drop()
    assert operator.get() == [services(told("bank", 1), on=False)]


def test_one_may_watch_one_kind_and_cease(farm: ElkoFarm, operator: Operator) -> None:
    client = farm.client("one")
    assert len(operator.get("watch load=true")) == 1
    client.offer(desc("bank"))
    assert operator.get() == []
    assert operator.get("watch load=false") == []
    client.say("broker", "load", factor=1)
    assert operator.get() == []


def test_who_leaves_watches_no_more(farm: ElkoFarm, operator: Operator) -> None:
    operator.get("watch", "quit")
    operator.peer.closed = False
    farm.client().offer(desc("bank"))
    assert operator.read() == ""


# the lines


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r", b"\r\0", b"\n\r"])
def test_lines_end_as_any_telnet_ends_them(operator: Operator, ending: bytes) -> None:
    operator.send(b"ping a" + ending + b"ping b" + ending)
    assert [reply["tag"] for reply in parsed(operator.read())] == ["a", "b"]


def test_a_line_cut_by_reads_is_one(operator: Operator) -> None:
    for byte in b'{op:"ping", tag:"\xf0\x9f\x98\x80"}\r\n':
        operator.send(bytes([byte]))
    [reply] = parsed(operator.read())
    assert reply["tag"] == "\U0001f600"


def test_bytes_that_are_no_utf_8_do_no_harm(operator: Operator) -> None:
    operator.send(b'{op:"ping", tag:"\xe9\xf0"}\n')
    [reply] = parsed(operator.read())
    assert reply["tag"] == "\ufffd\ufffd"


# web pages

STRAYS = [
    b"FOO / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"patch /x HTTP/1.1\r\n",
    b"shutdown /self=true HTTP/1.1\r\n",
    b"FOO / http/1.1 \t\n",
    b"FOO / HTTP/1.1\r",
    b"\r\n\r\nFOO / HTTP/1.1\r\n",
    b"  FOO / HTTP/1.1\r\n",
    b"\xef\xbb\xbfFOO / HTTP/1.1\r\n",
    b"GET /\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    bytes([IAC, NOP]) + b"FOO / HTTP/1.1\r\n",
    b"FO" + bytes([IAC, WONT, NAWS]) + b"O / HTTP/1.1\r\n",
    b"\x16\x03\x01\x00\x05hello\r\n",
    b"\x00\x03\x00\x08\r\n",
    b"\x00\r\n",
    b"\x1b[A\r\n",
]


@pytest.mark.parametrize("users", [False, True])
@pytest.mark.parametrize("stray", STRAYS)
def test_nothing_is_executed_of_what_a_page_makes_a_browser_send(farm: ElkoFarm, stray: bytes, users: bool) -> None:
    data = stray + b"token figleaf\r\nshutdown self=true\r\ntoken figlea"
    for size in (len(data), 1, 2, 7):
        operator = enter(farm, users)
        operator.read()
        for at in range(0, len(data), size):
            operator.send(data[at : at + size])
        assert operator.closed
        assert operator.read().startswith("error: ")
        assert operator.reasons == ["unexpected"]
    assert farm.control.calls == []


@pytest.mark.parametrize("lead", [b"", b"help\r\n"])
def test_a_command_in_one_read_with_bytes_that_are_no_text_is_not_executed(farm: ElkoFarm, lead: bytes) -> None:
    operator = enter(farm)
    operator.send(lead)
    operator.read()
    operator.send(b"shutdown self=true\r\n\x16\x03\r\n")
    assert operator.closed
    assert farm.control.calls == []
    assert operator.read() == "error: control characters, as arrow keys send them: closing\n"


def test_a_later_line_may_speak_of_http(operator: Operator) -> None:
    operator.type("ping")
    assert operator.get("ping tag='GET / HTTP/1.1'", "find HTTP/1.1 HTTP/1.1")[0]["tag"] == "GET / HTTP/1.1"
    assert not operator.closed


def test_the_reader_holds_no_more_of_a_first_line_than_of_others() -> None:
    reader = ConsoleReader()
    assert list(reader.feed(b"\r\n " * 50_000)) == []
    assert reader.pending == 0
    assert list(reader.feed(b"FOO /" + b"x" * (MAX_LINE - 5))) == []
    [malformed] = reader.feed(b"x")
    assert isinstance(malformed, Malformed)
    assert malformed.reason is Reason.TOO_LARGE
    assert reader.pending == 0
    assert list(reader.feed(b" HTTP/1.1\r\nhelp\r\n")) == []


# telnet


NEGOTIATIONS = [
    bytes([IAC, WILL, NAWS]),
    bytes([IAC, WONT, ECHO]),
    bytes([IAC, DO, TIMING_MARK]),
    bytes([IAC, DONT, ECHO]),
    bytes([IAC, DO, IAC]),
    bytes([IAC, WILL, 10]),
    bytes([IAC, WILL, 13]),
    bytes([IAC, SB, NAWS, 0, 80, 0, 24, IAC, SE]),
    bytes([IAC, SB, 24, 0, *b"xterm\n{}", IAC, IAC, *b"more\r\n", IAC, SE]),
    bytes([IAC, SB, IAC, SE]),
    bytes([IAC, SB, 1, IAC, IAC, IAC, IAC, IAC, SE]),
    bytes([IAC, NOP]),
    bytes([IAC, ARE_YOU_THERE]),
    bytes([IAC, INTERRUPT]),
]

LINE = b'{op:"ping", tag:"t"}\r\n'


def lines(*pieces: bytes) -> list[object]:
    reader = ConsoleReader()
    return [
        item.text if isinstance(item, Line) else item.reason
        for piece in pieces
        for item in reader.feed(piece)
        if isinstance(item, Line | Malformed)
    ]


@pytest.mark.parametrize("negotiation", NEGOTIATIONS, ids=[each.hex() for each in NEGOTIATIONS])
def test_negotiations_do_no_harm_anywhere(negotiation: bytes) -> None:
    expected = [LINE.decode().strip()] * 2
    for at in range(len(LINE) + 1):
        data = LINE[:at] + negotiation + LINE[at:] + LINE
        assert lines(data) == expected
        assert lines(*(data[place : place + 1] for place in range(len(data)))) == expected


def test_a_doubled_one_is_a_byte_of_the_text() -> None:
    assert lines(b"a\xff\xffb\n") == ["a\ufffdb"]


@given(
    st.lists(st.one_of(st.sampled_from([*NEGOTIATIONS, LINE, b"help\n", b"\xff"]), st.binary(max_size=4))), st.data()
)
def test_the_cuts_between_reads_mean_nothing(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    whole = lines(stream)
    cut = data.draw(st.integers(0, len(stream)))
    for pieces in ([stream[:cut], stream[cut:]], [stream[at : at + 1] for at in range(len(stream))]):
        cut_up = lines(*pieces)
        if Reason.UNEXPECTED in whole:
            # Nothing is taken of a read in which there is no text, so more of it comes in pieces.
            assert cut_up[: len(whole) - 1] == whole[:-1]
            assert cut_up.count(Reason.UNEXPECTED) == 1
            assert cut_up[-1] is Reason.UNEXPECTED
        else:
            assert cut_up == whole


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ([IAC, DO, TIMING_MARK], [IAC, WONT, TIMING_MARK]),
        ([IAC, WILL, NAWS], [IAC, DONT, NAWS]),
        ([IAC, DO, IAC], [IAC, WONT, IAC]),
        ([IAC, WONT, ECHO], []),
        ([IAC, DONT, ECHO], []),
        ([IAC, INTERRUPT, IAC, DO, TIMING_MARK], [IAC, WONT, TIMING_MARK]),
        ([IAC, SB, NAWS, 0, 80, 0, 24, IAC, SE], []),
        ([IAC, SB, 1, IAC, DO, 1, IAC, IAC, IAC, SE], None),
        ([IAC, DO, 1, IAC, WILL, 2], [IAC, WONT, 1, IAC, DONT, 2]),
        ([IAC, NOP, IAC, ARE_YOU_THERE], []),
    ],
)
@pytest.mark.parametrize("users", [False, True])
def test_whatever_a_telnet_asks_for_is_answered_no(
    farm: ElkoFarm, asked: list[int], answer: list[int] | None, users: bool
) -> None:
    whole, bytewise = enter(farm, users), enter(farm, users)
    whole.peer.written.clear()
    bytewise.peer.written.clear()
    whole.send(bytes(asked))
    for byte in asked:
        bytewise.send(bytes([byte]))
    written = b"".join(whole.peer.written)
    assert b"".join(bytewise.peer.written) == written
    if answer is not None:
        assert written == bytes(answer)
    whole.peer.written.clear()
    assert "error" not in whole.type("token figleaf" if users else "ping"), "it goes on line by line"


@pytest.mark.parametrize("users", [False, True])
def test_an_operator_who_has_gone_needs_no_garbage_collection(farm: ElkoFarm, users: bool) -> None:
    peer = RecordingPeer(True, "127.0.0.1:7", 1_000_000)
    session = ConsoleSession([broker_dialect(farm.wiring)], Shown(), peer, USERS if users else None)
    session.begin()
    if users:
        session.receive(Line("token figleaf"))
    session.receive(Line("servicedesc"))
    gone = ref(session)
    gc.collect()
    with no_collection():
        session.lost()
        session.receive(Line("servicedesc"))
        del session
        assert gone() is None


def test_a_command_that_was_typed_before_takes_no_look_at_the_types_of_its_message(
    farm: ElkoFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = enter(farm)
    operator.read()
    first = operator.type("find bank", "help find")
    looks: list[type] = []

    def fields(message: type[msgspec.Struct]) -> tuple[FieldInfo, ...]:
        looks.append(message)
        return found_fields(message)

    found_fields = msgspec.structs.fields
    monkeypatch.setattr(msgspec.structs, "fields", fields)
    assert operator.type("find bank", "help find") == first
    assert looks == []
