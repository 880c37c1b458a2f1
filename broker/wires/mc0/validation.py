"""Validation of mc0's configuration values, and the effective values of keys that are not given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from broker.config import zmq_endpoint
from broker.config.checks import unless_said
from broker.config.endpoint import BadEndpoint
from broker.config.files import KEY_LENGTH, BadFile, has_public_keys, is_curve_key
from broker.config.problem import Problem, in_ranges
from broker.config.zmq_endpoint import ZEndpoint
from broker.net.interfaces.limits import ROUTER_RANGES
from broker.wires.mc0.config import Mc0, Mc0Rule

MC0_RANGES: dict[str, tuple[float, float]] = {
    **ROUTER_RANGES,
    # The range of connections, since most connections have a session.
    "sessions": (1, 1_000_000),
    "subscriptions": (0, 100_000),
    # Ordinary frames must fit, and the memory must hold a few of the largest.
    "max_message": (1_024, 1024 * 1024 * 1024),
}
"""Minimum and maximum of each limit of mc0, in the units of `Mc0`."""

OWN_TOPICS = "elkobroker."
"""Prefix of the broker's own topics, on which no peer may publish."""


def effective_mc0_auth(mc0: Mc0) -> Literal["open", "curve", "users"]:
    """Return the authentication of peers: the configured one, else CURVE if the broker has a secret key.

    `mc0_problems` refuses the default "open" at an endpoint that other machines can reach.
    """
    if mc0.auth is not None:
        return mc0.auth
    return "open" if mc0.secret_key is None and mc0.secret_key_file is None else "curve"


def mc0_place(mc0: Mc0) -> ZEndpoint | None:
    """Return the endpoint of mc0; None if the value is invalid."""
    try:
        return zmq_endpoint.parse(mc0.endpoint)
    except BadEndpoint:
        return None


def mc0_problems(mc0: Mc0) -> Iterator[Problem]:
    """Yield the problems of the values of mc0. Its only input/output is to list the directory of client keys."""
    try:
        zmq_endpoint.parse(mc0.endpoint)
    except BadEndpoint as error:
        yield Problem("mc0.endpoint", str(error))
    yield from in_ranges("mc0", mc0, MC0_RANGES)
    if mc0.secret_key is not None and not is_curve_key(mc0.secret_key):
        yield Problem("mc0.secret_key", f"is no CURVE key, which has {KEY_LENGTH} Z85 characters")
    if mc0.client_keys is not None:
        try:
            has_public_keys(mc0.client_keys)
        except BadFile as error:
            yield Problem("mc0.client_keys", str(error))
    yield from _open(mc0) if effective_mc0_auth(mc0) == "open" else _curve(mc0)
    for index, rule in enumerate(mc0.rules):
        yield from _rule(f"mc0.rules[{index}]", rule)


def _curve(mc0: Mc0) -> Iterator[Problem]:
    if mc0.secret_key is None:
        yield Problem("mc0.auth", f'"{effective_mc0_auth(mc0)}" needs a secret_key, or a secret_key_file')
    if mc0.auth == "users":
        if mc0.any_key:
            yield Problem("mc0.any_key", "lets in more than the users file does; give one of them", "mc0.auth")
        return
    if mc0.client_keys is None and not mc0.any_key:
        yield Problem(
            "mc0.client_keys",
            'is needed for "curve": the directory with the public keys of the allowed clients; '
            "or any_key = true, which admits any client with a key",
        )
    if mc0.client_keys is not None and mc0.any_key:
        yield Problem("mc0.any_key", "lets in more than client_keys does; give one of them", "mc0.client_keys")


def _open(mc0: Mc0) -> Iterator[Problem]:
    given = {
        "secret_key": mc0.secret_key is not None and mc0.secret_key_file is None,
        "secret_key_file": mc0.secret_key_file is not None,
        "client_keys": mc0.client_keys is not None,
        "any_key": mc0.any_key,
    }
    useless = [name for name, is_given in given.items() if is_given]
    why = "without a secret_key_file" if mc0.auth is None else 'with auth = "open"'
    for name in useless:
        yield Problem(f"mc0.{name}", f"has no effect {why}")
    if mc0.enabled and mc0.auth is None and not useless:
        yield from unless_said(
            "mc0.auth",
            mc0_place(mc0),
            ': "curve" with a secret_key_file, "users" with access.file, '
            'or "open", which admits any client that reaches it, without a key',
        )


def _rule(here: str, rule: Mc0Rule) -> Iterator[Problem]:
    if not rule.keys:
        yield Problem(f"{here}.keys", 'matches no client; "*" matches every client')
    for number, pattern in enumerate(rule.keys):
        if not pattern:
            yield Problem(f"{here}.keys[{number}]", 'is empty; "*" matches every client, also without a key')
    for number, pattern in enumerate(rule.publish):
        yield from _topic(f"{here}.publish[{number}]", pattern)
        if pattern.startswith(OWN_TOPICS):
            yield Problem(f"{here}.publish[{number}]", f"topics that begin with {OWN_TOPICS} are the broker's own")
    for number, pattern in enumerate(rule.subscribe):
        yield from _topic(f"{here}.subscribe[{number}]", pattern)


def _topic(key: str, pattern: str) -> Iterator[Problem]:
    if not pattern:
        yield Problem(key, 'is empty; "*" is every topic')
    elif "*" in pattern[:-1]:
        yield Problem(key, '"*" is any rest, and may only be the last character; nothing else but {key} is special')
