"""Console commands for the ops of the Elko protocols; see `broker.wires.tables`.

A command is converted to a message of the protocol, and executed by a session like that of any administrator.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import get_args

import attrs
import msgspec
from msgspec.structs import FieldInfo

from broker.access.principal import Access, Audit, NoAudit, Principal
from broker.access.rights import AnonymousAccess
from broker.core.errors import Malformed, Reason
from broker.net.peer_interfaces import Peer
from broker.wires.elko.codec import broker_messages, director_messages, lenient
from broker.wires.elko.codec.blocks import COMMON, Auth, Message, Vocabulary
from broker.wires.elko.codec.broker_messages import LoadReport, WillServe, WontServe
from broker.wires.elko.sessions.authentication import AccessControl, Policy
from broker.wires.elko.sessions.broker_session import BrokerSession, BrokerWiring
from broker.wires.elko.sessions.director_session import DirectorSession, DirectorWiring
from broker.wires.tables import Dialogue

WIDTH = 100
"""Characters of a line of help."""

POLICY = Policy(diagnostics=False, orders_must_reach=True, log_debug=True)
"""The policy of an operator's session: the console itself prints the reasons of refusals."""

CONSOLE = "console"
"""Title of the listener in rights and in the audit log."""

PROVIDING = (WillServe, WontServe, LoadReport)
"""The ops of providers: the first of them makes an operator's session a provider."""


@cache
def _parameters(message: type[Message]) -> Mapping[str, FieldInfo]:
    """Return the parameters of a message, by name. To find them takes as long as several commands."""
    return {f.encode_name: f for f in msgspec.structs.fields(message) if f.name != "to"}


@attrs.frozen(eq=False)
class Commands:
    """The commands of one protocol.

    ``prefix`` is the word before them, or empty. ``to`` is the object of a message by its op, if it is not ``admin``.
    ``argument`` is the parameter of a word without ``=``; ``named`` another one for words with a certain prefix, if the
    op has it. ``alone`` are the parameters of an op without any words; those in ``never_alone`` are then refused.
    ``about`` is the help text of each op.
    """

    prefix: str
    vocabulary: Vocabulary
    to: Mapping[str, str]
    argument: Mapping[str, str]
    named: Mapping[str, str]
    alone: Mapping[str, Mapping[str, object]]
    never_alone: Collection[str]
    messages_by_op: Mapping[str, type[Message]]
    about: Mapping[str, str]

    @property
    def ops(self) -> Collection[str]:
        """The names of the ops."""
        return self.messages_by_op.keys()

    def parsed(self, text: str) -> list[Message]:
        """Parse a line of JSON to messages. Raises `Malformed`."""
        found = lenient.objects(text)
        # `objects` ignores an incomplete token at the end of a block; the console reports it instead.
        if not found or not lenient.BracketBalance().feed(text):
            raise Malformed(Reason.SYNTAX, "the line is not one complete message {...}")
        return [self.message(members) for members in found]

    def message(self, members: dict[str, object]) -> Message:
        """Convert a JSON object to a message; ``to`` is optional. Raises `Malformed`."""
        op = members.get("op")
        members.setdefault("to", self.to.get(op, "admin") if isinstance(op, str) else "admin")
        return self.vocabulary.message(members)

    def typed(self, op: str, words: Sequence[str]) -> Message:
        """Convert an op and its words to a message. Raises `Malformed`."""
        if op not in self.messages_by_op:
            raise Malformed(Reason.UNKNOWN_OP, f"there is no command {self.name(op)[:40]!r}; try help")
        parameters: dict[str, object] = {}
        for word in words:
            name, value = self._parameter(op, word)
            if name in parameters:
                raise Malformed(Reason.PARAMETER, f"{op}: {name} is given twice, the second time by {word[:40]!r}")
            parameters[name] = value
        parameters = parameters or dict(self.alone.get(op, {}))
        missing = [f.encode_name for f in self._fields(op).values() if f.required and f.encode_name not in parameters]
        if missing or (op in self.never_alone and not parameters):
            what = f"{missing[0]} is missing" if missing else "a parameter is missing"
            raise Malformed(Reason.PARAMETER, f"{op}: {what}; try help {self.name(op)}")
        return self.message({"op": op, **parameters})

    def name(self, op: str) -> str:
        """Return the command of an op."""
        return f"{self.prefix} {op}".strip()

    def list(self) -> list[str]:
        """Return the usage of all ops."""
        return [self._usage(op) for op in sorted(self.messages_by_op)]

    def help(self, op: str) -> str:
        """Return the usage of one op, and its description."""
        about = self.about[op]
        if op in self.argument:
            about += f" A word without = is the {self.argument[op]}."
        text = textwrap.fill(about, WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
        return f"{self._usage(op)}\n{text}"

    def _usage(self, op: str) -> str:
        shown = [f"{name}=..." if f.required else f"[{name}=...]" for name, f in self._fields(op).items()]
        return " ".join((self.name(op), *shown))

    def _fields(self, op: str) -> Mapping[str, FieldInfo]:
        """Return the parameters of an op, by name."""
        return _parameters(self.messages_by_op[op])

    def _parameter(self, op: str, word: str) -> tuple[str, object]:
        """Parse ``name=value``; the value is a string, or JSON if the parameter has another type."""
        fields = self._fields(op)
        name, equals, value = word.partition("=")
        if not equals:
            if op not in self.argument:
                raise Malformed(Reason.PARAMETER, f"{op}: {word[:40]!r} is not NAME=VALUE")
            other = (field for start, field in self.named.items() if word.startswith(start) and field in fields)
            name, value = next(other, self.argument[op]), word
        if name == "to":
            return name, value
        if name not in fields:
            raise Malformed(Reason.PARAMETER, f"{op}: there is no parameter {name[:40]!r}; try help {self.name(op)}")
        type_ = fields[name].type
        if type_ in (str, str | None):
            return name, value
        try:
            decoded: object = msgspec.json.decode(value)
            msgspec.convert(decoded, type_)
        except (msgspec.MsgspecError, RecursionError):
            raise Malformed(Reason.PARAMETER, f"{op}: {name} must be {_kind(type_)}, not {value[:40]!r}") from None
        return name, decoded


def _kind(type_: object) -> str:
    """Describe the values of a type."""
    types = set(get_args(type_) or (type_,))
    if bool in types:
        return "true or false"
    return "a number" if float in types else "JSON of the protocol's form"


def _by_op(*messages: type[Message]) -> dict[str, type[Message]]:
    return {str(message.__struct_config__.tag): message for message in messages}


def _without_auth(*messages: type[Message]) -> dict[str, type[Message]]:
    """Return all messages except `auth`: the console has authenticated already, and a second one closes the session."""
    return _by_op(*(message for message in messages if message is not Auth))


_COMMON = {
    "debug": "Writes a line to the broker's log.",
    "disconnect": "Ends the session.",
    "ping": "The answer is pong, with the same tag.",
    "pong": "Does nothing.",
}

BROKER = Commands(
    prefix="",
    vocabulary=broker_messages.VOCABULARY,
    to=dict.fromkeys(_by_op(*broker_messages.CLIENT), "client"),
    argument={
        **dict.fromkeys(("servicedesc", "loaddesc", "find"), "service"),
        **dict.fromkeys(("reinit", "shutdown"), "server"),
        "launch": "name",
        "load": "factor",
        "ping": "tag",
    },
    named={},
    alone={"watch": {"services": True, "load": True}},
    never_alone=("reinit", "shutdown"),
    messages_by_op=_without_auth(*broker_messages.VOCABULARY.messages),
    about={
        **_COMMON,
        "find": "Shows the services of a name, of another protocol than tcp by protocol=http. wait=5: waits up to 5 "
        "seconds for one, -1 without a limit. monitor=true: shows each further one.",
        "launch": "Starts a program of the launcher table, and switches its launcher on.",
        "launcherdesc": "Shows the launcher table.",
        "load": "Reports the load of the services that the console offers.",
        "loaddesc": "Shows the loads of all providers, of those of a service, or of those that server names.",
        "reinit": "Reinitializes Elko servers: those that have the label, hostport or id server, or all. "
        "self=true: the broker reads its configuration again.",
        "servicedesc": "Shows all services, or those of a name (and protocol, by default tcp).",
        "shutdown": "Shuts down Elko servers: those that have the label, hostport or id server, or all; with "
        "kill=true at once. Their launchers are switched off, except with cluster=true. self=true: ends the "
        "broker itself.",
        "watch": "Shows all services and loads, and then each change of them. services=true or load=true: only "
        "these; services=false or load=false: shows no more of them.",
        "willserve": "Offers services, which makes the console a provider: "
        """willserve 'services=[{"service":"bank","hostport":"h:1"}]'.""",
        "wontserve": """Withdraws services that the console offered: wontserve 'services=["bank"]'.""",
    },
)
"""The commands of the Elko Broker."""

DIRECTOR = Commands(
    prefix="director",
    vocabulary=director_messages.VOCABULARY,
    to={"reserve": "director"},
    argument={
        **dict.fromkeys(("find", "watch", "unwatch", "close", "say", "relay", "reserve"), "context"),
        **dict.fromkeys(("reinit", "shutdown"), "provider"),
        "dump": "depth",
        "ping": "tag",
    },
    named={"user-": "user"},
    alone={"dump": {"depth": 1}},
    never_alone=("reinit", "shutdown"),
    messages_by_op=_without_auth(*COMMON, director_messages.Reserve, director_messages.Relay, *director_messages.ADMIN),
    about={
        **_COMMON,
        "close": "Closes a context, or disconnects a user.",
        "dump": "Shows the farm. depth: 0 for numbers only, 1 with providers, 2 with their contexts, 3 with the users.",
        "find": "Shows the place of a context or a user.",
        "listcontexts": "Shows the open contexts.",
        "listproviders": "Shows the Context Servers, by their labels.",
        "listusers": "Shows the users that are in some context.",
        "reinit": "Reinitializes Context Servers: those that have the label or hostport provider, or all. "
        "director=true: the director is announced again.",
        "relay": "Sends a message to the servers of a context or user: director relay context-a 'msg={...}'.",
        "reserve": "Requests a reservation, as a user does.",
        "say": "Sends a text to a context, or to a user: director say context-a text='Hello there'.",
        "shutdown": "Shuts down Context Servers: those that have the label or hostport provider, or all; with "
        "kill=true at once. director=true: ends the director.",
        "unwatch": "Ends one watch.",
        "watch": "Shows the place of a context or a user, and then each change of it.",
    },
)
"""The commands of the Elko Director, without the messages of Context Servers. A word such as user-joe is a user."""


OperatorSession = BrokerSession | DirectorSession


@attrs.frozen(eq=False)
class ElkoTypist:
    """An operator's session of one protocol."""

    session: OperatorSession

    def review(self) -> None:
        """Take the rights of the operator again."""
        self.session.review()

    def say(self, message: Message) -> None:
        """Execute a message. Before the first message of a provider, the session authenticates as a client."""
        session = self.session
        providing = isinstance(message, PROVIDING) and message.to != "admin"
        if providing and isinstance(session, BrokerSession) and not session.is_client:
            session.receive(Auth("client", label="console"))
            if not session.is_client:
                return  # the operator has no right to offer, which was answered
        self.session.receive(message)


@attrs.frozen(eq=False)
class ElkoDialect:
    """The commands of one protocol, with the sessions that execute them; see `broker.wires.tables.Dialect`."""

    commands: Commands
    session: Callable[[AccessControl, Peer], OperatorSession]
    access: Access = attrs.field(factory=AnonymousAccess)
    audit: Audit = attrs.field(factory=NoAudit)
    _control: AccessControl = attrs.field(init=False)
    """The access of operators. All share it: its tables would be most of the cost of a connection to the console."""

    @_control.default
    def _own_control(self) -> AccessControl:
        return AccessControl(POLICY, self.access, CONSOLE, self.audit)

    @property
    def prefix(self) -> str:
        """The word before each command."""
        return self.commands.prefix

    @property
    def ops(self) -> Collection[str]:
        """The commands, without the prefix."""
        return self.commands.ops

    def messages(self, text: str) -> Sequence[Message]:
        """Parse a line of JSON to messages. Raises `Malformed`."""
        return self.commands.parsed(text)

    def typed(self, op: str, words: Sequence[str]) -> Message:
        """Convert an op and its words to a message. Raises `Malformed`."""
        return self.commands.typed(op, words)

    def list(self) -> Sequence[str]:
        """Return the usage of all commands."""
        return self.commands.list()

    def help(self, op: str) -> str:
        """Return the usage of a command, and its description."""
        return self.commands.help(op)

    def converse(self, peer: Peer, principal: Principal) -> Dialogue:
        """Create the session of an operator."""
        session = self.session(self._control, peer)
        session.become(principal)
        session.receive(Auth("admin", label="console"))
        return ElkoTypist(session)


def broker_dialect(wiring: BrokerWiring, access: Access | None = None, audit: Audit | None = None) -> ElkoDialect:
    """Return the commands of the Elko Broker, for the operators of that access."""
    return ElkoDialect(
        BROKER,
        lambda control, peer: BrokerSession(wiring, control, peer),
        AnonymousAccess() if access is None else access,
        NoAudit() if audit is None else audit,
    )


def director_dialect(wiring: DirectorWiring, access: Access | None = None, audit: Audit | None = None) -> ElkoDialect:
    """Return the commands of the Elko Director, for the operators of that access."""
    return ElkoDialect(
        DIRECTOR,
        lambda control, peer: DirectorSession(wiring, control, peer),
        AnonymousAccess() if access is None else access,
        NoAudit() if audit is None else audit,
    )
