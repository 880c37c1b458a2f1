"""Endpoints that change something: each call is recorded in the audit log, with its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import attrs
from msgspec import Meta
from twisted.internet.defer import Deferred

from broker.access import principal as acts
from broker.access.principal import Act, Audit, Principal, Rejected
from broker.core.control import Drain, IOperations, KeyChange, KeyState, LevelName, LogLevels, ReloadResult, Trace
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IControl, ILaunchers, IRegistry
from broker.core.model import BROKER, MAX_NAME, MAX_TEXT
from broker.rest.http_endpoint import Call, Endpoint
from broker.rest.messages import Response, answer
from broker.rest.problem import Problem
from broker.wires.dialect import Dialect

# Orders in the dialects of wires: the commands of the console, carried out for an HTTP request.
#
# An order is a conversation of one message with a session of the wire, like that of the console. Its answers are
# written at once, or there are none.

MAX_ANSWER = 1024 * 1024
"""Bytes of the answers of one order: more than any has."""


class _Listener:
    """The peer of a conversation: it keeps the answers."""

    local = True
    behind = False
    vanished = False
    unacknowledged = False
    certificate: tuple[str, ...] = ()

    def __init__(self, address: str, request_id: str) -> None:
        self.address = f"http {address}"
        self.request_id = request_id
        self.answers = bytearray()
        self.refusal: Refusal | None = None
        self.write_first = self.write

    def write(self, data: bytes) -> None:
        """Keep an answer."""
        if len(self.answers) < MAX_ANSWER:
            self.answers += data

    def close(self) -> None:
        """Do nothing: the conversation ends with the order."""

    def refused(self, refusal: Refusal) -> bool:
        """Keep the first refusal."""
        self.refusal = self.refusal or refusal
        return True

    def debug(self, label: str, text: str) -> None:
        """Ignore a line for the log."""

    def hold(self, size: int) -> bool:
        """Do nothing: the session ends with the order."""
        return True

    def authenticated(self) -> None:
        """Do nothing: there is no deadline."""


class Orders:
    """Orders in the dialects that exist now. ``listener`` is the title in rights and in the audit log."""

    def __init__(self, dialects: Callable[[], Sequence[Dialect]], listener: str) -> None:
        self._dialects = dialects
        self._listener = listener

    def give(self, principal: Principal, prefix: str, op: str, parameters: Mapping[str, object]) -> str:
        """Carry out an op of the dialect with a prefix for a user, and return its answers.

        The session of the wire checks the user's rights, and records the act. Raises `Refusal`, or `Problem` 404.
        """
        dialect = next((each for each in self._dialects() if each.prefix == prefix and op in each.ops), None)
        if dialect is None:
            raise Problem(404, f"{f'{prefix} {op}'.strip()} is an order of a wire that is not open", Reason.UNKNOWN_OP)
        words = [f"{name}={value}" for name, value in parameters.items()]
        peer = _Listener(principal.address, principal.request_id)
        dialogue = dialect.converse(peer, principal, self._listener)
        try:
            dialogue.say(dialect.typed(op, words))
        finally:
            dialogue.session.lost()
        if peer.refusal is not None:
            raise peer.refusal
        return peer.answers.decode("utf-8", "replace").strip()


ORDERS = ("reinit", "say")
"""Actions that a session of a wire carries out, and records in the audit log."""

Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]

MAX_SAID = 10_000
"""Characters of a text to users."""


@attrs.frozen
class Shutdown:
    """The end of the process: in order, or at once with ``kill``."""

    kill: bool = False


@attrs.frozen
class Reinit:
    """Reinitializes the Elko servers with that label, hostport or id, or all."""

    server: Text = "all"


@attrs.frozen
class Say:
    """A text to a context or a user of the director, or to a user in that context; one of them is given."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_SAID)]
    context: Text | None = None
    user: Text | None = None


@attrs.frozen
class Launch:
    """The name of a program of the launcher table."""

    name: Text


@attrs.frozen
class Withdraw:
    """A provider, and the service name to withdraw; without a name, all of its services."""

    provider: Annotated[int, Meta(ge=1, le=2**53)]
    name: Name | None = None


@attrs.frozen
class Done:
    """Result of an action: ``text`` is a sentence, or the answer of the wire."""

    text: str


@attrs.frozen
class Withdrawn:
    """The number of services that were withdrawn."""

    services: int


def audited(endpoint: Endpoint, audit: Audit, listener: str) -> Endpoint:
    """Return an endpoint whose calls are recorded in the audit log, with their results."""
    handler, operation = endpoint.handler, endpoint.operation or endpoint.name

    def recorded(call: Call) -> Any:
        return acts.audited(audit, Act(call.principal, listener, operation, _object(call)), partial(handler, call))

    return attrs.evolve(endpoint, handler=recorded)


def action_endpoints(
    registry: IRegistry, control: IControl, launchers: ILaunchers, orders: Orders, audit: Audit, listener: str
) -> list[Endpoint]:
    """Return the endpoints of the actions. ``listener`` is the title of the listener in the audit log."""

    def shut_down(call: Call) -> Response:
        control.shut_down(call.body.kill)
        return answer(Done("the broker ends"), 202)

    def reinit(call: Call) -> Response:
        return answer(Done(orders.give(call.principal, "", "reinit", {"server": call.body.server})))

    def say(call: Call) -> Response:
        about = {"text": call.body.text, "context": call.body.context, "user": call.body.user}
        given = {name: value for name, value in about.items() if value is not None}
        if len(given) == 1:
            raise Problem(400, "say needs a context or a user")
        return answer(Done(orders.give(call.principal, "director", "say", given)))

    def launch(call: Call) -> Response:
        name = call.body.name
        if all(each.name != name for each in launchers.describe()):
            raise Problem(404, f"there is no launcher {name[:80]!r}", Reason.UNKNOWN_TARGET)
        text = launchers.launch(name)
        if not text.startswith("start "):
            # The protocol's answer is "fail NAME REASON".
            raise Problem(409, f"the launcher {name!r} failed: {text.removeprefix(f'fail {name} ')}")
        return answer(Done(text))

    def withdraw(call: Call) -> Response:
        provider, name = call.body.provider, call.body.name
        if name is not None:
            _may_withdraw(call, name)
        found = None if provider == BROKER else registry.provider(provider)
        if found is None:
            raise Problem(404, "there is no such provider", Reason.UNKNOWN_TARGET)
        unwanted = [service for service in found.services if name is None or service.name == name]
        if not unwanted:
            raise Problem(404, "the provider offers no such service", Reason.NO_SUCH_SERVICE)
        names = {service.name for service in unwanted}
        for each in sorted(names):
            _may_withdraw(call, each)
        registry.withdraw(provider, names)
        return answer(Withdrawn(len(unwanted)))

    def action(
        name: str, operation: str, summary: str, handler: Callable[[Call], Response], body: type, **more: Any
    ) -> Endpoint:
        endpoint = Endpoint(
            "POST",
            f"/v1/actions/{name}",
            name,
            summary,
            handler,
            body=body,
            operation=operation,
            writes=True,
            tag="actions",
            **{"answer": Done, **more},
        )
        return endpoint if name in ORDERS else audited(endpoint, audit, listener)

    return [
        action("shutdown", "admin.shutdown", "Ends the process.", shut_down, Shutdown, status=202),
        action("reinit", "admin.reload", "Reinitializes Elko servers.", reinit, Reinit),
        action("say", "admin.say", "Sends a text to users or contexts of the director.", say, Say),
        action("launch", "admin.launch", "Starts a program of the launcher table.", launch, Launch),
        action(
            "withdraw",
            "admin.withdraw",
            "Withdraws services of a provider.",
            withdraw,
            Withdraw,
            answer=Withdrawn,
            by_name=True,
        ),
    ]


def _may_withdraw(call: Call, name: str) -> None:
    """Raise `Refusal` FORBIDDEN unless the user may withdraw services of that name."""
    if not call.grants.may("admin.withdraw", name):
        raise Refusal(Reason.FORBIDDEN, f"this user may not withdraw services called {name[:80]!r}")


def _object(call: Call) -> str:
    """Return the parameters of a call as they are recorded: names and values, without the text that is said."""
    about: Mapping[str, object] = {} if call.body is None else attrs.asdict(call.body)
    about = {**call.path, **{name: value for name, value in about.items() if value is not None and name != "text"}}
    return " ".join(f"{name}={value}" for name, value in about.items())


# Endpoints of control: configuration and reload, drain, disconnection, log levels, and traces of peers.

Seconds = Annotated[float, Meta(ge=0, le=86_400, description="seconds")]

DRAIN_SECONDS = 30.0
"""Seconds of a drain without a deadline: as long as a peer may leave output unread."""

TRACE_SECONDS = 60.0
"""Seconds of a trace without a time."""


@attrs.frozen
class Reload:
    """The request of a reload, which has no parameters."""


@attrs.frozen
class Reloaded:
    """The outcome of a reload; ``text`` has all of it as lines, as the log and the console show it."""

    changed: Sequence[KeyChange]
    refused: Sequence[KeyChange]
    restart: Sequence[KeyChange]
    problems: Sequence[str]
    warnings: Sequence[str]
    text: str


@attrs.frozen
class Configuration:
    """The keys of the running configuration; ``problems`` are the reasons for which the daemon is not ready."""

    keys: Sequence[KeyState]
    problems: Sequence[str]


@attrs.frozen
class DrainOrder:
    """Begins a drain, or ends it with ``undo``."""

    deadline: Seconds = DRAIN_SECONDS
    undo: bool = False


@attrs.frozen
class Disconnect:
    """A wire, and the key of a session in its view of sessions."""

    wire: Text
    session: Text


@attrs.frozen
class Disconnected:
    """The session was closed."""

    text: str


@attrs.frozen
class Levels:
    """Changes of log levels. null removes the exception of a module or wire."""

    level: LevelName | None = None
    modules: Annotated[dict[str, LevelName | None], Meta(max_length=100)] = attrs.field(factory=dict)


@attrs.frozen
class TraceTime:
    """The time of a trace."""

    seconds: Annotated[float, Meta(gt=0, le=3_600, description="seconds")] = TRACE_SECONDS


@attrs.frozen
class Traces:
    """The traces under way."""

    traces: Sequence[Trace]


def reloaded(result: ReloadResult) -> Reloaded:
    """Return the outcome of a reload as it is answered."""
    text = result.text
    return Reloaded(result.changed, result.refused, result.restart, result.problems, result.warnings, text)


def control_endpoints(control: IOperations, audit: Audit, listener: str) -> list[Endpoint]:
    """Return the endpoints. ``listener`` is the title of the listener in the audit log."""

    def reload(call: Call) -> Deferred[Any]:
        def answered(result: ReloadResult) -> Any:
            shown = answer(reloaded(result))
            return Rejected(shown, Reason.PARAMETER) if result.problems else shown

        return control.reload().addCallback(answered)

    def config(call: Call) -> Response:
        reasons = [*control.not_ready(), *control.degraded()]
        problems = [f"{each.what}: {each.reason}" for each in reasons]
        return answer(Configuration(control.settings(), problems))

    def drain(call: Call) -> Response:
        return answer(control.undrain() if call.body.undo else control.drain(call.body.deadline))

    def drained(call: Call) -> Response:
        return answer(control.drained())

    def disconnect(call: Call) -> Response:
        if not control.disconnect(call.body.wire, call.body.session):
            raise Problem(404, "there is no such session", Reason.UNKNOWN_TARGET)
        return answer(Disconnected("the session was closed"))

    def levels(call: Call) -> Response:
        return answer(control.log_levels())

    def set_levels(call: Call) -> Response:
        modules: Mapping[str, LevelName | None] = call.body.modules
        return answer(control.set_log_levels(call.body.level, modules))

    def traces(call: Call) -> Response:
        return answer(Traces(control.traces()))

    def trace(call: Call) -> Response:
        return answer(control.trace(call.path["address"], call.body.seconds))

    def untrace(call: Call) -> Response:
        if not control.untrace(call.path["address"]):
            raise Problem(404, "there is no trace of this address", Reason.UNKNOWN_TARGET)
        return Response(204)

    reads = [
        Endpoint(
            "GET", "/v1/config", "config", "Returns all keys with their values; secrets are hidden.", config,
            answer=Configuration, tag="control",
        ),
        Endpoint("GET", "/v1/drain", "drained", "Returns the state of the drain.", drained, answer=Drain,
                 tag="control"),
        Endpoint("GET", "/v1/log", "log", "Returns the log levels.", levels, answer=LogLevels, tag="control"),
        Endpoint("GET", "/v1/trace", "traces", "Returns the traces under way.", traces, answer=Traces, tag="control"),
    ]  # fmt: skip
    writes = [
        Endpoint(
            "POST", "/v1/actions/reload", "reload",
            "Reads the configuration again, and applies the keys that a reload may change.", reload, body=Reload,
            answer=Reloaded, operation="admin.reload", writes=True, tag="control",
        ),
        Endpoint(
            "POST", "/v1/actions/drain", "drain",
            "Refuses new peers and sends the present ones away, or undoes that.", drain, body=DrainOrder,
            answer=Drain, operation="admin.drain", writes=True, tag="control",
        ),
        Endpoint(
            "POST", "/v1/actions/disconnect", "disconnect", "Closes a session of a wire.", disconnect,
            body=Disconnect, answer=Disconnected, operation="admin.disconnect", writes=True, tag="control",
        ),
        Endpoint(
            "PUT", "/v1/log", "set_log", "Changes log levels, until the next reload.", set_levels, body=Levels,
            answer=LogLevels, operation="admin.log", writes=True, tag="control",
        ),
        Endpoint(
            "PUT", "/v1/trace/{address}", "trace", "Logs the messages of a peer for some time.", trace,
            body=TraceTime, answer=Trace, operation="admin.log", writes=True, tag="control",
        ),
        Endpoint(
            "DELETE", "/v1/trace/{address}", "untrace", "Ends a trace.", untrace, operation="admin.log", writes=True,
            status=204, tag="control",
        ),
    ]  # fmt: skip
    return [*reads, *(audited(each, audit, listener) for each in writes)]
