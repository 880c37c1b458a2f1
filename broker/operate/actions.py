"""The table of operators' actions: the parameters, right and text of each.

The words of the console, ``POST /v1/actions/NAME``, the commands of brokerctl, the buttons of the page and the API's
document are made of this table. The function of an action is the method of its name of `broker.app.operations`, which
takes the parameters by their names; the type that it returns is that of the answer.

Typed parameters, at the console and in brokerctl, are read by `Action.typed`:

- A word is the next parameter that is not given yet, or ``name=value``. A switch is given by its name alone: ``undo``.
- A mapping takes each ``name=value`` that names no parameter; the value ``default`` stands for null.

This module imports attrs and msgspec only, so that brokerctl has it without the daemon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import attrs
import msgspec
from msgspec import Meta

MAX_TEXT = 1_024
"""Characters of a text: those of the texts of the registry."""

MAX_NAME = 255
"""Characters of the name of a service: those of the registry."""

MAX_SAID = 10_000
"""Characters of a text to users: more than a page."""

MAX_LEVELS = 100
"""Levels of modules in one action: more than the log keeps."""

Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Level = Literal["debug", "info", "warn", "error"]

DRAIN_SECONDS = 30.0
"""Seconds of a drain without a deadline: as long as a peer may leave output unread."""

TRACE_SECONDS = 60.0
"""Seconds of a trace without a time."""


IN_PLACE = {"place": True}
"""Metadata of a parameter that may be left out, and is typed as a word in its place, as required ones are."""


@attrs.frozen
class Reload:
    """Reads the configuration again, to apply the keys that a reload may change.

    The answer has the changed keys, the refused ones, and those that need a restart. If the file has problems, nothing
    of it is applied.
    """


@attrs.frozen
class DrainOrder:
    """Drains the broker: new peers are refused, and present ones are sent away, each by the means of its wire."""

    deadline: Annotated[float, Meta(ge=0, le=86_400, description="Seconds for the peers to leave.")] = DRAIN_SECONDS
    undo: Annotated[bool, Meta(description="End the drain: accept peers again.")] = False


@attrs.frozen
class Say:
    """Sends a text to a context or a user of the director, or to a user in a context.

    A target that begins with user- is a user: say context-inn We restart at noon.
    """

    text: Annotated[str, Meta(min_length=1, max_length=MAX_SAID)]
    context: Annotated[Text | None, Meta(description="The context of a user: only there.")] = attrs.field(
        default=None, metadata={"option": "--in"}
    )
    user: Text | None = attrs.field(default=None, metadata=IN_PLACE)


@attrs.frozen
class Launch:
    """Starts a program of the launcher table."""

    name: Text


@attrs.frozen
class Reinit:
    """Sends the order to reinitialize to Elko servers: those with that label, hostport or id, or all."""

    server: Text = attrs.field(default="all", metadata=IN_PLACE)


@attrs.frozen
class Move:
    """Moves the durable messages that are left on the broker's disk into the present store of queues.

    They are from before `mtl.queue_store`. Each stays on the disk until the present store has it. A queue that belongs
    to another broker stays as it is: drain that one, and repeat.
    """


@attrs.frozen
class Disconnect:
    """Closes a session of a wire.

    SESSION is its key in the wire's table of sessions: the identity (mc0), the number of the connection (mtl), the name
    of the service (dbp), or the address of the connection: disconnect elko 10.0.0.7:51234.
    """

    wire: Text
    session: Text


@attrs.frozen
class Withdraw:
    """Withdraws a service of a provider, or without NAME all of its services."""

    provider: Annotated[int, Meta(ge=1, le=2**53)]
    name: Name | None = attrs.field(default=None, metadata=IN_PLACE)


@attrs.frozen
class Levels:
    """Changes log levels until the next reload.

    The levels are debug, info, warn and error. NAME is a wire or a module: log info mtl=debug. NAME=default removes its
    level. Without parameters, the levels are shown.
    """

    level: Level | None = attrs.field(default=None, metadata=IN_PLACE)
    modules: Annotated[dict[str, Level | None], Meta(max_length=MAX_LEVELS)] = attrs.field(factory=dict)


@attrs.frozen
class TraceOrder:
    """Logs the messages of a peer, HOST or HOST:PORT, for some time.

    Without ADDRESS, the traces are shown.
    """

    address: Text
    seconds: Annotated[float, Meta(gt=0, le=3_600, description="Seconds.")] = TRACE_SECONDS
    off: Annotated[bool, Meta(description="End the trace.")] = False


@attrs.frozen
class Shutdown:
    """Ends the broker."""

    kill: Annotated[bool, Meta(description="End at once, without closing connections in order.")] = False


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
    - ``on``: the place of its button on the page: ``broker``, ``provider`` or ``session``, a row of a table of
      sessions. ``fills``: the columns of the row that give parameters; ``wire`` is the first word of the table.
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
    status: int = 200
    routes: Sequence[Route] = ()
    state: State | None = None
    places: str = ""
    words: Callable[[Sequence[str]], Sequence[str]] | None = None

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
        """The command as it is typed at the console."""
        named = [each.usage for each in self.fields.values() if not each.placed]
        usage = " ".join(each for each in (self.name, self.placed, *named) if each)
        return f"{usage} | {self.name} {self.state.word}" if self.state is not None and self.state.word else usage

    def shows(self, words: Sequence[str]) -> bool:
        """Return True if the words ask for the state, and for no action."""
        return self.state is not None and list(words) == ([self.state.word] if self.state.word else [])

    def typed(self, words: Sequence[str]) -> Any:
        """Return the parameters from words. Raises ValueError with a sentence."""
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
                raise ValueError(f"not so, but: {self.usage}")
            if name in into:
                raise ValueError(f"{name[:MAX_NAME]} is given twice")
            into[name] = filled
        return self.decoded(given, strict=False)

    def decoded(self, given: Mapping[str, Any], strict: bool = True) -> Any:
        """Return the parameters from values of JSON, or with ``strict`` off, from words. Raises ValueError."""
        try:
            found = msgspec.convert(given, self.parameters, strict=strict)
        except msgspec.ValidationError as error:
            reason = str(error).replace("`", "").replace("$.", "")
            raise ValueError(f"{reason}; not so, but: {self.usage}") from None
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
