"""The table of operators' actions: the parameters, right and text of each.

The words of the console, ``POST /v1/actions/NAME``, the commands of brokerctl, the buttons of the page and the API's
document are made of this table. The function of an action is the method of its name (with underscores) of
`broker.app.operations`, which takes the parameters by their names; the type that it returns is that of the answer.

Typed parameters, at the console and in brokerctl, are read by `Action.typed`:

- A word is the next parameter that is not given yet, or ``name=value``. A switch is given by its name alone: ``undo``.
- A mapping takes each ``name=value`` that names no parameter; the value ``default`` stands for null.

This module imports attrs, msgspec and plain modules only, so that brokerctl has it without the daemon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args, get_origin, get_type_hints

import attrs
import msgspec
from msgspec import Meta

from broker.operate.action_parameters import (
    MAX_NAME,
    CallService,
    Disconnect,
    DrainOrder,
    Launch,
    Levels,
    Move,
    Publish,
    QueueGet,
    QueueMove,
    QueuePeek,
    QueuePurge,
    QueuePut,
    Reinit,
    Reload,
    RequeueDead,
    Say,
    Shutdown,
    TraceOrder,
    Withdraw,
)
from broker.validation import sentence

# Answers that no other module has.


@attrs.frozen
class Moved:
    """The number of messages that were moved, and the reason for each queue that is left: ``refused``."""

    moved: int
    refused: Mapping[str, str]

    @property
    def text(self) -> str:
        """The result as a sentence, and a line for each queue that is left."""
        lines = [f"refused: {name}: {reason}" for name, reason in self.refused.items()]
        return "\n".join([f"moved: {self.moved} messages", *lines])


@attrs.frozen
class Done:
    """Result of an action: ``text`` is a sentence, or the answer of the wire."""

    text: str


@attrs.frozen
class Withdrawn:
    """The number of services that were withdrawn."""

    services: int

    @property
    def text(self) -> str:
        """The result as a sentence."""
        return f"withdrawn: {self.services}"


@attrs.frozen
class Route:
    """A further way over HTTP to an action: a method at a path, whose variables are parameters.

    ``name`` is its operationId; ``fixed`` are the parameters that the method stands for.
    """

    method: str
    path: str
    name: str
    fixed: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class State:
    """The state that an action changes: the path of its GET, and the method of the operations that returns it.

    It is shown in place of the action for the parameter ``word``, or without parameters if that is empty. ``name`` and
    ``help`` are the operationId and the summary of the GET.
    """

    path: str
    method: str
    name: str
    help: str
    word: str = ""


@attrs.frozen
class Action:
    """An action.

    - ``right``: the operation of `broker.access.principal` that it needs. ``by_name``: the right for some names
      suffices, and its function decides on names by the parameter ``may``.
    - ``confirm``: the question that brokerctl and the page ask before, with parameters in braces. None is asked to
      undo.
    - ``kind`` and ``names``: the kind of the names that the right concerns, and the parameters that are such names, for
      each of which it is needed. Without ``names``, it is needed for all names.
    - ``authored``: its function has a parameter ``principal``, the user.
    - ``on``: the place of its button on the page: ``broker``, ``provider``, ``service``, ``topic``, ``queue``, or
      ``session``, a row of a table of sessions. ``fills``: the columns of the row that give parameters; ``wire`` is the
      first word of the table.
    - ``status``: that of the answer over HTTP. ``routes``: further ways to it. ``state``: see `State`.
    - ``places`` and ``words``: the usage of typed words, and the function that makes them ``name=value``, if the order
      of the parameters does not suffice.
    """

    name: str
    right: str
    parameters: type[Any]
    confirm: str = ""
    on: str = "broker"
    fills: Mapping[str, str] = attrs.field(factory=dict)
    by_name: bool = False
    kind: str = "service"
    names: Sequence[str] = ()
    authored: bool = False
    status: int = 200
    routes: Sequence[Route] = ()
    state: State | None = None
    places: str = ""
    words: Callable[[Sequence[str]], Sequence[str]] | None = None

    @property
    def method(self) -> str:
        """The name of its function."""
        return self.name.replace("-", "_")

    @property
    def some(self) -> bool:
        """True if the right for some names suffices for a try."""
        return self.by_name or bool(self.names)

    @property
    def audited(self) -> bool:
        """True if the audit log has a line of it: an act of administration, and not one that every client may do."""
        return self.right.startswith("admin.")

    @property
    def text(self) -> str:
        """The whole text about it."""
        return _unwrapped(self.parameters.__doc__ or "")

    @property
    def summary(self) -> str:
        """The first paragraph of the text."""
        return self.text.partition("\n\n")[0]

    @property
    def fields(self) -> Mapping[str, Field]:
        """The parameters by name, in order."""
        return {each.name: each for each in _fields(self.parameters)}

    @property
    def placed(self) -> str:
        """The parameters that are typed as words, as a usage."""
        usage = self.places or " ".join(each.usage for each in self.fields.values() if each.placed)
        shows = self.state is not None and not self.state.word and usage[:1] != "["
        return f"[{usage}]" if shows else usage

    @property
    def usage(self) -> str:
        """The command, as an operator types it at the console."""
        named = [each.usage for each in self.fields.values() if not each.placed]
        usage = " ".join(each for each in (self.name, self.placed, *named) if each)
        return f"{usage} | {self.name} {self.state.word}" if self.state is not None and self.state.word else usage

    def shows(self, words: Sequence[str]) -> bool:
        """Return True if the words ask for the state, and for no action."""
        return self.state is not None and list(words) == ([self.state.word] if self.state.word else [])

    def typed(self, words: Sequence[str]) -> Any:
        """Parse words as the parameters. Raises ValueError, with a sentence for the operator."""
        fields = self.fields
        mapping = next((each.name for each in fields.values() if each.mapping), "")
        given: dict[str, Any] = {mapping: {}} if mapping else {}
        for word in words if self.words is None else self.words(words):
            name, equals, value = word.rpartition("=") if mapping else word.partition("=")
            into: dict[str, Any] = given
            filled: Any = value
            if not (equals and name in fields):
                if equals and mapping:
                    into, filled = given[mapping], None if value == "default" else value
                elif word in fields and fields[word].switch:
                    name, filled = word, True
                else:
                    name, filled = next((each for each, field in fields.items() if field.free(given)), ""), word
            if not name:
                raise ValueError(f"unexpected {word[:MAX_NAME]!r}")
            if name in into:
                raise ValueError(f"{name[:MAX_NAME]} is given twice")
            into[name] = filled
        return self.decoded(given, strict=False)

    def decoded(self, given: Mapping[str, Any], strict: bool = True) -> Any:
        """Return the parameters from values of JSON, or with ``strict`` off, from words. Raises ValueError."""
        try:
            found = msgspec.convert(given, self.parameters, strict=strict)
        except msgspec.ValidationError as error:
            raise ValueError(sentence(error)) from None
        for name in self.fields:
            value = getattr(found, name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number")
        return found

    def question(self, parameters: Any) -> str:
        """Return the question to ask before; empty if there is none."""
        if not self.confirm or getattr(parameters, "undo", False):
            return ""
        values = {name: getattr(parameters, name) for name in self.fields}
        return self.confirm.format_map({name: "everything" if each is None else each for name, each in values.items()})


@attrs.frozen
class Field:
    """A parameter: ``usage`` is its usage as a word; ``placed``: it is typed as a word in its place.

    ``option`` is its option in brokerctl, if that has another name. ``help`` is its meaning, with its unit.
    """

    name: str
    usage: str
    placed: bool
    switch: bool
    mapping: bool
    option: str
    help: str
    default: Any

    def free(self, given: Mapping[str, Any]) -> bool:
        """Return True if the next word in its place is this parameter."""
        return not (self.switch or self.mapping) and self.name not in given


def _fields(type_: type[Any]) -> Sequence[Field]:
    hints = get_type_hints(type_, include_extras=True)
    found = []
    for field in attrs.fields(type_):
        meta = [each for each in get_args(hints[field.name]) if isinstance(each, Meta)]
        hint = get_args(hints[field.name])[0] if meta else hints[field.name]
        required, switch, mapping = field.default is attrs.NOTHING, hint is bool, get_origin(hint) is dict
        placed = required or mapping or "place" in field.metadata
        usage = field.name.upper() if placed else field.name
        if mapping:
            usage = "[NAME=VALUE ...]"
        elif not required:
            usage = f"[{usage}]" if placed or switch else f"[{usage}={_shown(field.default)}]"
        option = field.metadata.get("option", f"--{field.name.replace('_', '-')}")
        text = next((each.description for each in meta if each.description), "")
        found.append(Field(field.name, usage, placed, switch, mapping, option, text, field.default))
    return found


def _shown(default: Any) -> str:
    return "..." if default is None else f"{default:g}" if isinstance(default, float) else str(default)


def _unwrapped(doc: str) -> str:
    """Return the paragraphs of a docstring, each in one line."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in doc.strip().split("\n\n"))


def _without_peer(words: Sequence[str]) -> Sequence[str]:
    """Return the words of a trace without a leading ``peer``, which may be typed before the address."""
    return words[1:] if words[:1] == ["peer"] else words


def _target_first(words: Sequence[str]) -> list[str]:
    """Return the words of `Say`: the target, then the text, in which only ``context=`` is a parameter."""
    given = [word for word in words if word.startswith(("text=", "context=", "user="))]
    target, *text = [word for word in words if word not in given] or [""]
    if target:
        given.append(f"{'user' if target.startswith('user-') else 'context'}={target}")
    return [*given, *([f"text={' '.join(text)}"] if text else [])]


def _text_last(type_: type[Any]) -> Callable[[Sequence[str]], list[str]]:
    """Return the function that makes words ``name=value`` of an action whose last words are a text.

    Before the text come the required parameters by their places, and others by their names.
    """
    fields = [each for each in _fields(type_) if each.name != "text"]
    named = ("text=", *(f"{each.name}=" for each in fields))

    def words(given: Sequence[str]) -> list[str]:
        places = [each.name for each in fields if each.placed]
        found, rest = [], list(given)
        while rest and (places or rest[0].startswith(named)):
            word = rest.pop(0)
            found.append(word if word.startswith(named) else f"{places[0]}={word}")
            places = [each for each in places if each != found[-1].partition("=")[0]]
        return [*found, *([f"text={' '.join(rest)}"] if rest else [])]

    return words


_on_queue = partial(Action, on="queue", fills={"queue": "queue", "host": "host"}, kind="queue", names=("queue",))
"""An action on a queue: its parameters are columns of the table of queues, and its right is for the queue's name."""

ACTIONS = (
    Action("reload", "admin.reload", Reload),
    Action(
        "drain",
        "admin.drain",
        DrainOrder,
        confirm="Drain the broker?",
        state=State("/v1/drain", "drained", "drained", "Returns the state of the drain.", word="state"),
    ),
    Action("say", "admin.say", Say, places="TARGET TEXT...", words=_target_first),
    Action("launch", "admin.launch", Launch),
    Action("reinit", "admin.reload", Reinit),
    Action("move", "admin.drain", Move),
    Action("disconnect", "admin.disconnect", Disconnect, on="session", fills={"wire": "wire", "session": "address"}),
    Action(
        "withdraw",
        "admin.withdraw",
        Withdraw,
        confirm="Withdraw {name} of provider {provider}?",
        on="provider",
        fills={"provider": "provider"},
        by_name=True,
    ),
    Action(
        "log",
        "admin.log",
        Levels,
        routes=(Route("PUT", "/v1/log", "set_log"),),
        state=State("/v1/log", "log_levels", "log", "Returns the log levels."),
    ),
    Action(
        "trace",
        "admin.log",
        TraceOrder,
        on="session",
        fills={"address": "address"},
        routes=(
            Route("PUT", "/v1/trace/{address}", "trace", {"off": False}),
            Route("DELETE", "/v1/trace/{address}", "untrace", {"off": True}),
        ),
        state=State("/v1/trace", "traces", "traces", "Returns the traces under way."),
        words=_without_peer,
    ),
    Action(
        "publish",
        "publish",
        Publish,
        on="topic",
        fills={"topic": "topic"},
        kind="topic",
        names=("topic",),
        authored=True,
        places="TOPIC TEXT...",
        words=_text_last(Publish),
    ),
    Action(
        "call",
        "find",
        CallService,
        on="service",
        fills={"service": "service"},
        names=("service",),
        authored=True,
        places="SERVICE [TEXT...]",
        words=_text_last(CallService),
    ),
    _on_queue(
        "queue-put",
        "publish",
        QueuePut,
        authored=True,
        places="QUEUE TEXT...",
        words=_text_last(QueuePut),
    ),
    _on_queue("queue-get", "subscribe", QueueGet, authored=True),
    _on_queue("queue-peek", "subscribe", QueuePeek, authored=True),
    _on_queue(
        "queue-purge",
        "admin.queues",
        QueuePurge,
        confirm="Remove all messages of the queue {queue} for good, except those that readers have?",
    ),
    _on_queue(
        "queue-move",
        "admin.queues",
        QueueMove,
        confirm="Move the messages of the queue {queue} to {target}, whose readers get them then?",
        names=("queue", "target"),
    ),
    _on_queue(
        "queue-requeue-dead",
        "admin.queues",
        RequeueDead,
        confirm="Put all dead letters of the queue {queue} back into it, to be delivered again?",
    ),
    Action("shutdown", "admin.shutdown", Shutdown, confirm="End the broker?", status=202),
)
"""All actions, in the order in which they are listed."""

BY_NAME = {each.name: each for each in ACTIONS}


@attrs.frozen
class ActionRow:
    """An action that the user may do. ``schema`` is the JSON schema of its parameters; the others as in the table."""

    name: str
    help: str
    right: str
    confirm: str
    on: str
    fills: Mapping[str, str]
    schema: Mapping[str, Any]


def rows(may: Callable[[Action], bool]) -> list[ActionRow]:
    """Return the actions for which ``may`` returns True, as the page gets them."""
    return [
        ActionRow(each.name, each.text, each.right, each.confirm, each.on, each.fills, _schema(each.parameters))
        for each in ACTIONS
        if may(each)
    ]


def _schema(type_: type[Any]) -> Mapping[str, Any]:
    _, components = msgspec.json.schema_components((type_,))
    schema: Mapping[str, Any] = components[type_.__name__]
    return schema
