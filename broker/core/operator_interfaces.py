"""The actions of operators on the daemon, as an interface, and their results: a reload, messages of queues, traces."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Literal

import attrs

from broker.core.drain import Drain
from broker.core.interfaces import IControl
from broker.core.model import NotReady

LevelName = Literal["debug", "info", "warn", "error"]
"""Name of a log level."""


@attrs.frozen
class KeyState:
    """A key of the running configuration, as operators see it.

    ``value`` is written as in the file; ``(hidden)`` stands for a secret, ``(not set)`` for a key without a value.
    ``reloadable``: a reload applies a new value; otherwise it needs a restart.
    """

    key: str
    value: str
    reloadable: bool


@attrs.frozen
class KeyChange:
    """A key that differs between the running configuration and the file.

    ``old`` and ``new`` are the values, in the form of `KeyState.value`. ``(absent)`` stands for an entry that one of
    the two does not have. ``why`` is the reason why this change of a reloadable key needs a restart, empty otherwise.
    """

    key: str
    old: str
    new: str
    why: str = ""

    @property
    def text(self) -> str:
        """The change as a line of text."""
        return f"{self.key}: {self.old} -> {self.new}{f' ({self.why})' if self.why else ''}"


@attrs.frozen
class Reloaded:
    """Diagnostics of a reload.

    - ``changed``: keys whose new values are in use now.
    - ``refused``: reloadable keys whose new values are not applied, because of ``problems``.
    - ``restart``: keys that keep their running values until the next start.
    - ``problems``: errors, a line each. With any, nothing was changed.
    - ``warnings``: surprising combinations in the file, a line each.
    - ``text``: all of it as lines, as the log and the console show it.
    """

    changed: tuple[KeyChange, ...] = ()
    refused: tuple[KeyChange, ...] = ()
    restart: tuple[KeyChange, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    text: str = attrs.field(init=False, eq=False, default="")

    def __attrs_post_init__(self) -> None:
        # A field and no property: it is a part of the answer over HTTP.
        object.__setattr__(self, "text", "\n".join(self.lines))

    @property
    def lines(self) -> Sequence[str]:
        """The result as lines of text: the form that all interfaces for operators print."""
        lines = list(self.problems)
        lines += [f"warning: {each}" for each in self.warnings]
        for word, changes in (("changed", self.changed), ("refused", self.refused), ("restart needed", self.restart)):
            lines += [f"{word}: {each.text}" for each in changes]
        if self.problems:
            lines.append("nothing was changed")
        elif not self.changed and not self.restart:
            lines.append("no key differs from the running configuration")
        return lines


@attrs.frozen
class Published:
    """Result of a publication: the number of subscribers to whom this broker has sent it."""

    subscribers: int

    @property
    def text(self) -> str:
        """The result as a sentence."""
        return f"published to {self.subscribers} subscribers"


@attrs.frozen(kw_only=True)
class QueueMessage:
    """A message of a queue. ``text`` is its body as UTF-8, or ``base64`` that of other bytes; ``size`` in bytes.

    ``deliveries`` is the number of its deliveries, ``due`` the seconds until it may be delivered, ``expires`` the rest
    of its time to live in seconds, ``death`` the reason for which it is a dead letter, ``user`` its author, and ``id``
    the id that the author gave it.
    """

    size: int
    deliveries: int
    text: str | None = None
    base64: str | None = None
    due: float | None = None
    expires: float | None = None
    death: str | None = None
    user: str | None = None
    id: str | None = None


@attrs.frozen
class QueueMessages:
    """Messages of a queue, the oldest first."""

    messages: Sequence[QueueMessage]

    @property
    def text(self) -> str:
        """The bodies, a line each."""
        return "\n".join(each.text if each.text is not None else f"base64:{each.base64}" for each in self.messages)


@attrs.frozen
class Purged:
    """Result of a purge: the number of messages that were removed."""

    messages: int

    @property
    def text(self) -> str:
        """The result as a sentence."""
        return f"purged: {self.messages} messages"


@attrs.frozen
class MovedMessages:
    """Result of a move: the number of messages that were moved, and the reason why no more were, empty if all were."""

    messages: int
    stopped: str = ""

    @property
    def text(self) -> str:
        """The result as a sentence."""
        return f"moved: {self.messages} messages{self.stopped and f'; stopped, since {self.stopped}'}"


@attrs.frozen(kw_only=True)
class Reply:
    """Reply of a service to a request. ``text`` is its body as UTF-8, or ``base64`` that of other bytes."""

    text: str | None = None
    base64: str | None = None


def as_text(body: bytes) -> tuple[str | None, str | None]:
    """Return a body as text, or else in base64."""
    text = _decoded(body)
    return (text, None) if text is not None else (None, b64encode(body).decode())


def _decoded(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def topic_message(topic: bytes, headers: Sequence[bytes], body: bytes) -> dict[str, object]:
    """Return a message of a topic for JSON: ``text``, or ``base64`` where that is not UTF-8, and the headers that are
    text."""
    text = _decoded(body)
    message: dict[str, object] = {"topic": topic.decode(errors="replace")}
    message |= {"text": text} if text is not None else {"base64": body}  # JSON has bytes in base64
    pairs = zip(headers[::2], headers[1::2], strict=False)
    shown = {_decoded(bytes(name)): _decoded(bytes(value)) for name, value in pairs}
    found = {name: value for name, value in shown.items() if name is not None and value is not None}
    return {**message, "headers": found} if found else message


@attrs.frozen
class LogLevels:
    """Log levels: ``level`` is the lowest one that is written, ``modules`` the exceptions.

    A key of ``modules`` is the name of a wire, or a module with all modules below it, such as ``broker.net``. The
    longest module that matches applies, and a wire before all modules.
    """

    level: LevelName = "info"
    modules: Mapping[str, LevelName] = attrs.field(factory=dict)

    @property
    def text(self) -> str:
        """The levels, one on each line."""
        return "\n".join([f"level {self.level}", *(f"{name}={level}" for name, level in self.modules.items())])


@attrs.frozen
class Trace:
    """A trace of one peer: its messages are logged.

    ``address`` is its host, with or without a port. ``seconds`` is the time until it ends by itself, 0.0 for a trace
    that has ended. ``lines`` is the number of lines logged so far, ``dropped`` that of lines beyond the rate limit.
    """

    address: str
    seconds: float
    lines: int = 0
    dropped: int = 0

    @property
    def text(self) -> str:
        """The trace as a line of text."""
        if not self.seconds:
            return f"the trace of {self.address} has ended"
        return f"trace of {self.address}: {self.seconds:.0f} s left, {self.lines} lines, {self.dropped} left out"


@attrs.frozen
class Traces:
    """The traces under way."""

    traces: Sequence[Trace]

    @property
    def text(self) -> str:
        """The traces, a line each."""
        return "\n".join(each.text for each in self.traces) or "no peer is traced"


class IOperations(IControl):
    """The actions of operators, and the state that they change. All methods return at once.

    `broker.operate.actions` has the actions; each is a method of its name, with the parameters by their names. It
    returns the answer, or a Deferred of it, and raises `Refusal`.
    """

    def settings() -> Sequence[KeyState]:
        """Return all keys of the running configuration with their values, in the order of the configuration."""

    def not_ready() -> Sequence[NotReady]:
        """Return the reasons for which the daemon is not ready; none if it is."""

    def degraded() -> Sequence[NotReady]:
        """Return the reasons for which the daemon is degraded although it serves, such as an etcd that is away."""

    def drained() -> Drain:
        """Return the state of the drain."""

    def log_levels() -> LogLevels:
        """Return the log levels in use."""

    def traces() -> Traces:
        """Return the traces under way."""
