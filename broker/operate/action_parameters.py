"""The parameters of operators' actions as types, one class for each; their docstrings are the texts about the actions.

This module imports attrs and msgspec only, so that brokerctl has it without the daemon.
"""

from __future__ import annotations

from typing import Annotated, Literal

import attrs
from msgspec import Meta

MAX_TEXT = 1_024
"""Characters of a text: those of the texts of the registry."""

MAX_NAME = 255
"""Characters of the name of a service: those of the registry."""

MAX_SAID = 10_000
"""Characters of a text to users: more than a page."""

MAX_BODY = 1_048_576
"""Characters of a message: as many as a request may have by default (`http.max_body`)."""

MAX_GOT = 100
"""Messages of a queue in one answer: a page."""

MAX_SECONDS = 3_600.0
"""Seconds for which a call waits: no caller waits longer for a reply."""

MAX_TTL = 864_000.0
"""Seconds of a time to live: ten days. Clients of MTL may give more."""

MAX_DELAY = 366 * 86_400.0
"""Seconds of a delay: a year."""

MAX_LEVELS = 100
"""Levels of modules in one action: more than the log keeps."""

Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
LINES = {"contentMediaType": "text/plain"}
"""Mark, in the JSON schema, of a text that is sent as it was typed: its spaces and line ends are part of it."""

Level = Literal["debug", "info", "warn", "error"]

DRAIN_SECONDS = 30.0
"""Seconds of a drain without a deadline: as long as a peer may leave output unread."""

TRACE_SECONDS = 60.0
"""Seconds of a trace without a time."""


CALL_SECONDS = 10.0
"""Seconds for which a call waits by default."""

IN_PLACE = {"place": True}
"""Metadata of a parameter that may be left out, and is typed as a word in its place, as required ones are."""


@attrs.frozen
class Reload:
    """Reads the configuration again, to apply the keys that a reload may change.

    The answer lists the changed keys, the refused ones, and those that need a restart. If the file has problems,
    none of it is applied.
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

    text: Annotated[str, Meta(min_length=1, max_length=MAX_SAID, extra_json_schema=LINES)]
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


Body = Annotated[str, Meta(max_length=MAX_BODY, extra_json_schema=LINES)]
Base64 = Annotated[bool, Meta(description="TEXT is the body in base64, for bytes that are no text.")]
Host = Annotated[Text | None, Meta(description="The virtual host of MTL; the first one without.")]
Ttl = Annotated[float, Meta(ge=0, le=MAX_TTL)]
Time = Annotated[str, Meta(max_length=40)]
Most = Annotated[int, Meta(ge=1, le=2**53)]
Count = Annotated[
    int, Meta(ge=1, le=MAX_GOT, description="Messages at most; fewer where their bodies have more than 1 MiB together.")
]


@attrs.frozen
class Publish:
    """Publishes a message to a topic.

    The answer has the number of subscribers to whom it was sent, those of other brokers not counted.
    """

    topic: Text
    text: Body
    base64: Base64 = False


@attrs.frozen
class CallService:
    """Sends a request to a service of MTL; the answer is the reply.

    One of the workers of the service gets the request. The errors of HTTP are 404 without a worker, 409 if the worker
    refuses it, 503 without a reply in time, 421 if the workers are at another broker.
    """

    service: Name
    text: Body = attrs.field(default="", metadata=IN_PLACE)
    base64: Base64 = False
    seconds: Annotated[float, Meta(gt=0, le=MAX_SECONDS, description="Seconds to wait.")] = CALL_SECONDS


@attrs.frozen
class QueuePut:
    """Puts a message into a work queue.

    A message of a durable queue is on the disk when the answer is sent.
    """

    queue: Name
    text: Body
    base64: Base64 = False
    ttl: Annotated[Ttl | None, Meta(description="Seconds after which it expires.")] = None
    delay: Annotated[float, Meta(ge=0, le=MAX_DELAY, description="Seconds before which it is not delivered.")] = 0.0
    at: Annotated[Time | None, Meta(description="Time of that instead, by RFC 3339.")] = None
    host: Host = None


@attrs.frozen
class QueueGet:
    """Takes messages out of a work queue.

    They are confirmed at once: if the answer is lost, so are they. Clients of MTL confirm each message after
    their work.
    """

    queue: Name
    count: Count = 1
    host: Host = None


@attrs.frozen
class QueuePeek:
    """Shows the first messages of a work queue, and leaves them there.

    Messages that a reader has are not shown. `due` is the seconds until a delayed one is delivered.
    """

    queue: Name
    count: Count = 10
    host: Host = None


@attrs.frozen
class QueuePurge:
    """Removes all messages from a work queue.

    Messages that a reader has stay with it.
    """

    queue: Name
    host: Host = None


@attrs.frozen
class QueueMove:
    """Moves messages from a work queue to the end of another one.

    Messages that a reader has stay with it. Where the target has no room, the others stay, with the reason as
    `stopped`; if nothing was moved, the answer is the error 429.
    """

    queue: Name
    target: Name
    count: Annotated[Most | None, Meta(description="Messages at most; all without.")] = None
    host: Host = None


@attrs.frozen
class RequeueDead:
    """Moves the dead letters of a work queue back to it, to be delivered again.

    QUEUE is the name of the queue itself: its dead letters are in QUEUE.dead. They go to the end of QUEUE, and
    their deliveries are counted from 0.
    """

    queue: Name
    count: Annotated[Most | None, Meta(description="Messages at most; all without.")] = None
    host: Host = None
