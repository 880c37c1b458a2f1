"""Endpoints of control: configuration and reload, drain, disconnection, log levels, and traces of peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import attrs
from msgspec import Meta
from twisted.internet.defer import Deferred

from broker.access.acts import Audit, Rejected
from broker.admin.api.actions import Text, audited
from broker.admin.api.pieces import answer
from broker.core.control import Drain, IOperations, KeyChange, KeyState, LogLevels, ReloadResult, Trace
from broker.core.errors import Reason
from broker.web.http_endpoint import Call, Endpoint
from broker.web.messages import Response
from broker.web.problem import Problem

Level = Literal["debug", "info", "warn", "error"]
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

    level: Level | None = None
    modules: Annotated[dict[str, Level | None], Meta(max_length=100)] = attrs.field(factory=dict)


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


def endpoints(control: IOperations, audit: Audit, listener: str) -> list[Endpoint]:
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
        modules: Mapping[str, Level | None] = call.body.modules
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
