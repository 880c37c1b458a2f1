"""The section ``[notify]``: webhooks and commands that are called on events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import attrs

from broker.config.checks import printable, secret
from broker.config.files import Named as Files
from broker.config.problem import Problem, in_ranges
from broker.config.section import Section

EventName = Literal[
    "service-gone",
    "service-back",
    "service-doubtful",
    "service-failing",
    "service-passing",
    "short-of-capacity",
    "listener-not-ready",
    "listener-ready",
    "listener-full",
    "listener-has-room",
    "store-degraded",
    "store-restored",
    "state-damaged",
    "member-gone",
    "member-back",
]
"""Events; `broker.core.model.EVENTS` has their meaning."""

MAX_RULES = 100
"""Rules. Each event is compared with all of them."""

MAX_URL = 2_000
"""Characters of a URL, as browsers and proxies take them."""

RANGES: dict[str, tuple[float, float]] = {
    # A webhook that answers later than a minute holds up the next notification of its rule for too long.
    "timeout": (0.1, 60),
    # 0 would send nothing.
    "per_minute": (1, 6_000),
    "attempts": (1, 100),
}
"""Minimum and maximum of each number of a rule."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@attrs.frozen
class NotifyRule:
    """A webhook or a command, and the events for which it is called. Times in seconds."""

    name: str
    events: tuple[EventName, ...] = (
        "service-gone",
        "service-doubtful",
        "service-failing",
        "short-of-capacity",
        "listener-not-ready",
        "listener-full",
        "store-degraded",
        "state-damaged",
        "member-gone",
    )
    pattern: str = "*"
    """Shell pattern of the subject of an event: the name of a service, of a listener or of a broker."""
    url: str | None = attrs.field(default=None, repr=False)
    """URL to which the event is sent by POST, as JSON. Its path often is a secret, so that it is not shown."""
    secret: str | None = attrs.field(default=None, repr=False)
    """Secret with which requests are signed (HMAC)."""
    secret_file: str | None = None
    """A file that has ``secret`` on its only line, relative to the configuration file."""
    command: tuple[str, ...] = attrs.field(default=(), repr=False)
    """Program and arguments; it gets the event as JSON on its standard input. Arguments often are secrets, so that they
    are not shown."""
    timeout: float = 10.0
    """Time for one attempt."""
    attempts: int = 8
    """Attempts, with growing pauses between them; then the notification is dropped."""
    per_minute: float = 30.0
    """Notifications a minute, and at once; further ones are dropped and counted."""


@attrs.frozen
class Notify:
    """Notifications of operators. Times in seconds."""

    settle: float = 5.0
    """Time for which a service must be gone before that is an event: a server that reconnects is not gone."""
    rules: tuple[NotifyRule, ...] = ()


def _problems(notify: Notify) -> Iterator[Problem]:
    yield from in_ranges("notify", notify, {"settle": (0, 3_600)})
    if len(notify.rules) > MAX_RULES:
        yield Problem("notify.rules", f"has more than {MAX_RULES} rules")
    names: set[str] = set()
    for index, rule in enumerate(notify.rules):
        key = f"notify.rules[{index}]"
        if _NAME.fullmatch(rule.name) is None:
            yield Problem(f"{key}.name", "must have 1 to 64 letters, digits, dots, hyphens and underscores")
        elif rule.name in names:
            yield Problem(f"{key}.name", f'the name "{rule.name}" is that of another rule too')
        names.add(rule.name)
        yield from in_ranges(key, rule, RANGES)
        yield from printable(f"{key}.pattern", rule.pattern, 1_024)
        if not rule.events:
            yield Problem(f"{key}.events", "is empty")
        if (rule.url is None) == (not rule.command):
            yield Problem(key, "needs url or command, one of them")
        if rule.url is not None:
            yield from _url(f"{key}.url", rule.url)
        if rule.secret is not None:
            yield from secret(f"{key}.secret", rule.secret)
        if any("\0" in word for word in rule.command) or (rule.command and not rule.command[0]):
            yield Problem(f"{key}.command", "names no program")


def _url(key: str, url: str) -> Iterator[Problem]:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url or len(url) > MAX_URL:
        yield Problem(key, "is no URL: http://HOST[:PORT]/PATH or https://...")


def _summary(notify: Notify) -> Iterator[str]:
    ways = ", ".join(f"{rule.name} ({'webhook' if rule.url else 'command'})" for rule in notify.rules)
    if ways:
        yield f"notify: {ways}"


def _read(notify: Notify, files: Files) -> Notify:
    rules = [
        attrs.evolve(rule, secret=files.secret(f"notify.rules[{index}].secret_file", rule.secret, rule.secret_file))
        for index, rule in enumerate(notify.rules)
    ]
    return attrs.evolve(notify, rules=tuple(rules))


NOTIFY = Section(
    "notify",
    Notify,
    Notify(),
    _problems,
    summary=_summary,
    reloadable=("*",),
    named=("rules",),
    read=_read,
    example=(Path(__file__).with_name("notify.toml")).read_text,
)
"""The section ``[notify]``."""
