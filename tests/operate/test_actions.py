"""The table of actions: typed parameters, what is made of the table, and the functions behind it."""

from __future__ import annotations

import inspect
import json
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

from broker.access.principal import OPERATIONS, Access, Principal
from broker.access.rights import EVERYTHING, Right, grants_of
from broker.app.operations import Operations
from broker.core import model
from broker.core.errors import Reason, Refusal
from broker.core.operator_interfaces import IOperations, Reply
from broker.operate import action_parameters, actions
from broker.operate.action_endpoints import Actions, action_endpoints
from broker.operate.actions import ACTIONS, BY_NAME, Action
from broker.operate.console import ConsoleSession, Shown
from broker.operate.console_input import ConsoleReader
from broker.rest import openapi
from broker.rest.messages import PIECE, Response
from broker.wires.elko.console_commands import broker_dialect
from tests.operate.calls import BOB, Log, Site, content
from tests.operate.test_console import Operator
from tests.recording.operations import operations
from tests.wires.recording import ElkoFarm, RecordingPeer

TYPED = [
    ("reload", "", {}),
    ("drain", "", {"deadline": 30.0, "undo": False}),
    ("drain", "60", {"deadline": 60.0, "undo": False}),
    ("drain", "deadline=5", {"deadline": 5.0, "undo": False}),
    ("drain", "undo", {"deadline": 30.0, "undo": True}),
    ("drain", "undo=false 5", {"deadline": 5.0, "undo": False}),
    ("say", "context-inn Hello there", {"context": "context-inn", "user": None, "text": "Hello there"}),
    ("say", "user-joe Hi context=inn", {"context": "inn", "user": "user-joe", "text": "Hi"}),
    ("say", "inn a=b c", {"context": "inn", "user": None, "text": "a=b c"}),
    ("say", "text=Hi user=joe", {"context": None, "user": "joe", "text": "Hi"}),
    ("launch", "web", {"name": "web"}),
    ("reinit", "", {"server": "all"}),
    ("reinit", "server=web1", {"server": "web1"}),
    ("disconnect", "elko 10.0.0.7:51234", {"wire": "elko", "session": "10.0.0.7:51234"}),
    ("withdraw", "7", {"provider": 7, "name": None}),
    ("withdraw", "7 bank", {"provider": 7, "name": "bank"}),
    ("withdraw", "name=bank 7", {"provider": 7, "name": "bank"}),
    ("log", "mtl=debug", {"level": None, "modules": {"mtl": "debug"}}),
    ("log", "warn broker.net=default", {"level": "warn", "modules": {"broker.net": None}}),
    ("trace", "10.0.0.7", {"address": "10.0.0.7", "seconds": 60.0, "off": False}),
    ("trace", "peer 10.0.0.7 600", {"address": "10.0.0.7", "seconds": 600.0, "off": False}),
    ("trace", "peer 10.0.0.7 off", {"address": "10.0.0.7", "seconds": 60.0, "off": True}),
    ("publish", "news base64=true YQ==", {"topic": "news", "text": "YQ==", "base64": True}),
    ("publish", "topic=news a=b topic=c base64=d", {"topic": "news", "text": "a=b topic=c base64=d", "base64": False}),
    (
        "queue-put",
        "jobs ttl=5 one two",
        {"queue": "jobs", "text": "one two", "base64": False, "ttl": 5.0, "delay": 0.0, "at": None, "host": None},
    ),
    ("queue-move", "jobs other count=5", {"queue": "jobs", "target": "other", "count": 5, "host": None}),
    ("shutdown", "kill", {"kill": True}),
]


@pytest.mark.parametrize(("name", "words", "given"), TYPED)
def test_words_are_parameters_by_place_or_by_name(name: str, words: str, given: dict[str, Any]) -> None:
    assert attrs.asdict(BY_NAME[name].typed(words.split()), recurse=False) == given


@pytest.mark.parametrize(
    ("name", "words", "error"),
    [
        ("reload", "now", "unexpected 'now'"),
        ("drain", "soon", "deadline"),
        ("drain", "nan", "deadline"),
        ("drain", "5 deadline=6", "deadline is given twice"),
        ("drain", "5 6", "unexpected '6'"),
        ("drain", "90000", "deadline"),
        ("say", "", "text"),
        ("say", "context-inn", "text"),
        ("launch", "", "name"),
        ("launch", "x" * 1_025, "name"),
        ("disconnect", "elko", "session"),
        ("withdraw", "bank", "provider"),
        ("withdraw", "0", "provider"),
        ("log", "loud", "level"),
        ("log", "info warn", "unexpected 'warn'"),
        ("log", "mtl=loud", "modules"),
        ("log", "mtl=info mtl=warn", "mtl is given twice"),
        ("trace", "", "address"),
        ("trace", "10.0.0.7 0", "seconds"),
    ],
)
def test_wrong_words_are_an_error_with_the_name_of_the_parameter(name: str, words: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        BY_NAME[name].typed(words.split())


def test_the_question_has_the_parameters_and_is_not_asked_to_undo() -> None:
    def question(name: str, words: str) -> str:
        return BY_NAME[name].question(BY_NAME[name].typed(words.split()))

    assert question("withdraw", "7 bank") == "Withdraw bank of provider 7?"
    assert question("withdraw", "7") == "Withdraw everything of provider 7?"
    assert (question("drain", "5"), question("drain", "undo")) == ("Drain the broker?", "")
    assert question("launch", "web") == ""


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.name)
def test_each_action_has_a_right_a_text_and_a_method_with_its_parameters(action: Action) -> None:
    assert action.right in OPERATIONS
    assert action.summary.endswith(".")
    parameters = list(inspect.signature(getattr(Operations, action.method)).parameters)[1:]
    besides = [*(["may"] if action.by_name else []), *(["principal"] if action.authored else [])]
    assert sorted(parameters) == sorted([*action.fields, *besides])
    assert set(action.names) <= set(action.fields)
    assert set(action.fills) <= set(action.fields)
    if action.state is not None:
        assert action.state.method in IOperations.names(all=True)


def test_the_limits_are_those_of_the_registry() -> None:
    assert (action_parameters.MAX_TEXT, action_parameters.MAX_NAME) == (model.MAX_TEXT, model.MAX_NAME)


def test_the_table_shows_the_actions_that_the_user_may_do() -> None:
    site = Site(action_endpoints(Actions(operations(), Log(), "http")))
    assert [row["name"] for row in site.get("/v1/actions")["actions"]] == [each.name for each in ACTIONS]
    rights = [Right(("bob",), ("admin.drain",)), Right(("bob",), ("admin.withdraw",), names=("shop-*",))]
    answer = site.call("GET", "/v1/actions", grants=grants_of("bob", "http", rights))
    assert isinstance(answer, Response)
    rows = json.loads(content(answer))["actions"]
    assert [row["name"] for row in rows] == ["drain", "move", "withdraw"], "withdraw: for some names"
    assert rows[0]["schema"]["properties"]["deadline"]["maximum"] == 86_400
    assert rows[2]["schema"]["required"] == ["provider"]


def test_the_document_of_the_api_has_each_action_once() -> None:
    endpoints = action_endpoints(Actions(operations(), Log(), "http"))
    names = [each.name for each in endpoints]
    assert len(names) == len(set(names))
    paths = openapi.document(endpoints, "t", "1")["paths"]
    assert {f"/v1/actions/{each.name}" for each in ACTIONS} < paths.keys()
    assert paths["/v1/actions/reload"]["post"]["description"] == "Needs the right `admin.reload`."


@attrs.frozen
class Wink:
    """Winks."""

    times: int = 1


class Winking:
    """The operations with one action more."""

    def wink(self, times: int) -> actions.Done:
        return actions.Done("wink " * times)


def test_the_one_function_checks_the_right_and_records_the_result() -> None:
    log = Log()
    one: Any = Winking()
    run = Actions(one, log, "console")
    action = Action("wink", "admin.say", Wink)
    assert run.typed(action, ["2"], BOB, EVERYTHING).text == "wink wink "
    with pytest.raises(Refusal, match=r"bob has no right to admin\.say here") as refused:
        run.perform(action, Wink(), BOB, grants_of("bob", "console", []))
    assert refused.value.reason is Reason.FORBIDDEN
    with pytest.raises(Refusal, match=r"wink: .*times"):
        run.typed(action, ["often"], BOB, EVERYTHING)
    assert log.lines == [
        ("console", "admin.say", "times=2", "done"),
        ("console", "admin.say", "times=1", "refused: forbidden"),
        ("console", "admin.say", "", "refused: parameter"),
    ]


def test_a_user_withdraws_services_of_names_with_a_right() -> None:
    seen: list[Any] = []

    class Withdrawing:
        def withdraw(self, provider: int, name: str | None, may: Any) -> actions.Withdrawn:
            seen.append((provider, name, may("shop-1"), may("bank")))
            return actions.Withdrawn(1)

    one: Any = Withdrawing()
    grants = grants_of("bob", "http", [Right(("bob",), ("admin.withdraw",), names=("shop-*",))])
    run = Actions(one, Log(), "http")
    run.perform(BY_NAME["withdraw"], action_parameters.Withdraw(7), Principal("bob"), grants)
    assert seen == [(7, None, True, False)]


# at the console


def at_the_console(control: Any, log: Log, access: Access | None = None, **more: Any) -> Operator:
    shown = Shown(actions=Actions(control, log, "console"), **more)
    operator = Operator(
        lambda to: (ConsoleReader(), ConsoleSession([broker_dialect(ElkoFarm().wiring)], shown, to, access)),
        RecordingPeer(True, "127.0.0.1:7"),
    )
    operator.read()
    return operator


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("drain state", "drain: off"),
        ("drain 5", "drain: drained"),
        ("log", "level info"),
        ("log warn mtl=debug", "level warn\nmtl=debug"),
        ("trace", "no peer is traced"),
        ("trace peer 10.0.0.7 60", "trace of 10.0.0.7: 60 s left, 0 lines, 0 left out"),
        ("trace 10.0.0.7 off", "error: there is no trace of this address"),
        ("say context-inn Hello", "error: say is an action of the wire director, which is not open"),
        ("say Hello", "error: say: text is missing; usage: say TARGET TEXT... [context=...]"),
        ("disconnect elko 10.0.0.7:1", "error: there is no wire 'elko', but none"),
        ("withdraw 7", "error: there is no such provider"),
        ("reload now", "error: reload: unexpected 'now'; usage: reload"),
        ("help withdraw", "withdraw PROVIDER [NAME]\n"
         "  Withdraws a service of a provider, or without NAME all of its services."),
    ],
)  # fmt: skip
def test_an_action_is_typed_and_its_answer_printed(line: str, printed: str) -> None:
    operator = at_the_console(operations(registry=ElkoFarm().registry), Log())
    assert operator.type(line) == f"{printed}\n"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(text="long \u00e9 line\n" * 2 * PIECE),
        Reply(base64="YWJj" * 2 * PIECE),
        Reply(text="\x1b[2Jsent to the terminal\x9b\n" * 2 * PIECE),
    ],
)
def test_a_long_answer_is_printed_after_many_short_turns(reply: Reply) -> None:
    class Calling:
        def call(self, **given: object) -> Reply:
            return reply

    steps: deque[Callable[[], None]] = deque()
    operator = at_the_console(Calling(), Log(), later=steps.append, version="1.2")
    assert operator.type("call jobs body", "version") == ""
    turns = 0
    while steps:
        steps.popleft()()
        turns += 1
    assert turns > 4
    printed = operator.read()
    answer, _, last = printed.removesuffix("\n").rpartition("\n")
    assert last == "elkobroker 1.2"
    if reply.text is None:
        assert json.loads(answer) == attrs.asdict(reply)
    else:
        assert answer == reply.text.replace("\x1b", "\\u001b").replace("\x9b", "\\u009b")


@pytest.mark.parametrize(
    ("error", "printed"),
    [
        (Refusal(Reason.UNAVAILABLE, "no reply in 10 s"), "error: no reply in 10 s"),
        (ValueError("broken"), "error: the broker failed on this command; its log has the reason"),
    ],
)
def test_an_action_that_fails_later_is_an_error_and_the_console_goes_on(error: Exception, printed: str) -> None:
    replies: list[Deferred[Reply]] = []

    class Calling:
        def call(self, **given: object) -> Deferred[Reply]:
            replies.append(Deferred())
            return replies[-1]

    operator = at_the_console(Calling(), Log(), version="1.2")
    assert operator.type("call jobs body", "version") == ""
    with capturedLogs() as events:
        replies[0].errback(error)
    assert operator.read() == f"{printed}\nelkobroker 1.2\n"
    assert len(events) == (not isinstance(error, Refusal))


def test_the_help_lists_each_action_once() -> None:
    lines = at_the_console(operations(), Log()).type("help").splitlines()
    for action in ACTIONS:
        ops = [line for line in lines if line.split()[0] == action.name and line != "  disconnect"]
        assert len(ops) == 1, action.name


def test_words_of_ops_of_the_broker_are_those_ops() -> None:
    ended: list[bool] = []
    operator = at_the_console(operations(shut=ended.append), Log())
    assert operator.type("shutdown all") == ""
    assert "reinit: no server is called" in operator.type("reinit nobody")
    assert ended == []
