"""The commands of a client: offer a service, find one, wait for one, and read a topic."""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import click

from broker.brokerctl.answers import Exit, Failure, Interrupted, mapping, rows, usage
from broker.brokerctl.command_session import Number, color, connection, remote, session_of, sleep
from broker.brokerctl.list_commands import MATCHING
from broker.brokerctl.output import Column, Format, Output
from broker.brokerctl.plain_client import ApiClient, segment

FOUND = [
    *(Column(each) for each in ("hostport", "protocol", "provider", "load", "label", "zone", "tags", "restored")),
    *(Column(each, wide=True) for each in ("meta", "check", "info", "auth")),
]
"""The columns of found services."""

RENEWALS = 3
"""Renewals in one time to live: two may be lost."""

PATIENCE = 60.0
"""Seconds of one request that waits for a service."""

_TOKEN = re.compile(r"[!-~]+")
"""An owner token as a header may have it."""

PAUSE = 1.0
"""Seconds between attempts to reach a broker that is awaited."""


_HOSTPORT = re.compile(r"(.*):([0-9]+)", re.DOTALL)


def _variables(name: str, hostport: str) -> dict[str, str]:
    """Return the environment variables of an address: NAME_ADDRESS, NAME_HOST, NAME_PORT. One without a port, such as
    the path of a socket, has an empty NAME_PORT."""
    prefix = re.sub(r"[^A-Z0-9]", "_", name.upper())
    if prefix[:1].isdigit():
        prefix = f"_{prefix}"
    match = _HOSTPORT.fullmatch(hostport)
    host, port = (hostport, "") if match is None else (match[1], match[2])
    return {f"{prefix}_ADDRESS": hostport, f"{prefix}_HOST": host.strip("[]"), f"{prefix}_PORT": port}


def _hostports(found: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(each.get("hostport")) for each in found]


SHAPES = ("host", "env")
"""Formats of addresses alone: the addresses, a line each; or variables of the first one for a shell."""


def _shape(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and value not in SHAPES:
        session_of(context).format = Format(value)
    return value


@click.command()
@click.argument("name")
@click.option("-p", "--protocol", help="Only services of this protocol.")
@MATCHING
@click.option("--near", type=click.Choice(["load", "zone"]), help="First the least loaded provider, or one of --zone.")
@click.option("--zone", help="The zone that --near zone prefers.")
@click.option("-n", "--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Services.")
@click.option(
    "-o",
    "--output",
    "shape",
    type=click.Choice([*(each.value for each in Format), *SHAPES]),
    callback=_shape,
    help="table, wide, json, csv; host: only the addresses; env: variables for eval of a shell.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@connection
@color
@click.pass_context
def find(
    context: click.Context,
    name: str,
    protocol: str | None,
    filter: str | None,
    near: str | None,
    zone: str | None,
    limit: int,
    shape: str | None,
    as_json: bool,
) -> int:
    """Find the instances of a service, the best one first.

    The exit code is 4 if there is none.
    """
    if near == "zone" and zone is None:
        raise click.UsageError("--near zone needs --zone")
    session = session_of(context)
    if as_json:
        session.format = Format.JSON
    given = {"protocol": protocol, "filter": filter, "near": near, "zone": zone}
    query = {key: value for key, value in given.items() if value is not None}
    path = f"/v1/services/{segment(name)}"
    answer = mapping(session.run(lambda client: client.get(path, {**query, "limit": limit})))
    found = rows(answer, "services")
    output = session.output
    if shape == "host":
        for each in _hostports(found):
            output.say(each)
    elif shape == "env":
        for each in _hostports(found)[:1]:
            for variable, value in _variables(name, each).items():
                output.say(f"{variable}={shlex.quote(value)}")
    else:
        output.rows(found, FOUND, answer)
    if found:
        return Exit.OK
    more = (f"the protocol {protocol}" if protocol else "", f"filter {filter}" if filter else "")
    output.note(" ".join((f"no service is called {name}", *(each for each in more if each))))
    return Exit.NOT_FOUND


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("-p", "--protocol", help="Only a service of this protocol.")
@click.option("--within", type=Number(0), metavar="SECONDS", help="The longest wait. [default: none]")
@remote
@click.pass_context
def wait(
    context: click.Context, name: str, command: tuple[str, ...], protocol: str | None, within: float | None
) -> int:
    """Wait until a service is there, then start COMMAND, or print the address.

    \b
    brokerctl wait bank --within 60 -- ./shop --port 8080

    COMMAND has the address in its environment, as find -o env prints it: BANK_ADDRESS, BANK_HOST, BANK_PORT. A broker
    that cannot be reached is awaited as well. The exit code is 4 at the end of the time.
    """
    session = session_of(context)
    found = session.run(lambda client: _awaited(client, session.output, name, protocol, within))
    [address, *_] = _hostports(found)
    if not command:
        if session.output.for_people:
            session.output.say(address)
        else:
            session.output.rows(found, FOUND)
        return Exit.OK
    # Python ignores these, and the program would go on ignoring them.
    ignored = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    try:
        os.execvpe(command[0], command, {**os.environ, **_variables(name, address)})
    except OSError as error:
        for number, handler in ignored.items():
            signal.signal(number, handler)
        raise usage(f"{command[0]}: {(error.strerror or str(error)).lower()}") from None


async def _awaited(
    client: ApiClient, output: Output, name: str, protocol: str | None, within: float | None
) -> Sequence[Mapping[str, Any]]:
    """Return the services of a name as soon as there are any. Raises `Failure` at the end of the time."""
    end = None if within is None else time.monotonic() + within
    path, noted = f"/v1/services/{segment(name)}", False
    while True:
        left = PATIENCE if end is None else end - time.monotonic()
        query: dict[str, Any] = {"wait": max(0.0, min(left, PATIENCE))} | ({"protocol": protocol} if protocol else {})
        try:
            answer = await client.request("GET", path, query, timeout=min(max(left, 0.0), PATIENCE) + client.timeout)
            # Another 404 is of a server that has no such path: it answers so at once, each time.
            none = answer.status == 404 and answer.failure().code is Exit.NOT_FOUND
            if not none and (found := rows(answer.value(), "services")):
                return found
        except Failure as failure:
            if failure.code is not Exit.UNREACHABLE or left <= 0:
                raise
            if not noted:
                output.note(f"{failure}; waiting for the broker", "yellow")
                noted = True
            await sleep(client.reactor, min(PAUSE, max(left, 0.0)))
        if left <= 0:
            raise Failure(f"no service is called {name} after {within:g} s", Exit.NOT_FOUND)


@click.command()
@click.argument("name")
@click.argument("address", metavar="HOST:PORT")
@click.option("--instance", help="Name of the instance. [default: HOST:PORT]")
@click.option("-p", "--protocol", default="tcp", show_default=True, help="Its protocol.")
@click.option("--label", help="A name of the provider, for people.")
@click.option("--zone", help="The zone in which it runs.")
@click.option("--tag", "tags", multiple=True, metavar="TEXT", help="A tag; repeatable.")
@click.option("--meta", "pairs", multiple=True, metavar="NAME=TEXT", help="A further text by a name; repeatable.")
@click.option("--load", type=Number(0), help="Its load.")
@click.option("--ttl", type=Number(1, 86_400), default=30.0, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Do not renew it: the broker forgets it after the TTL.")
@remote
@click.pass_context
def offer(
    context: click.Context,
    /,
    name: str,
    address: str,
    instance: str | None,
    once: bool,
    pairs: tuple[str, ...],
    **given: Any,
) -> None:
    """Offer a service at HOST:PORT until Ctrl-C, then withdraw it.

    The registration is renewed three times in each TTL. If this command is killed, the service ends after the TTL.
    """
    session = session_of(context)
    path = f"/v1/services/{segment(name)}/{segment(instance or address)}"
    if wrong := [each for each in pairs if "=" not in each]:
        raise click.UsageError(f"--meta needs NAME=TEXT, and {wrong[0]!r} has no '='")
    given["meta"] = {name: value for name, _, value in (each.partition("=") for each in pairs)} or None
    body = {"hostport": address, **{key: value for key, value in given.items() if value not in (None, ())}}
    output = session.output
    token: dict[str, str] = {}
    registered = False

    def show(answer: Mapping[str, Any]) -> None:
        if not output.for_people:
            output.values(answer)
            return
        until = f"for {given['ttl']:g} s" if once else "until Ctrl-C"
        output.say(f"{name} is offered at {address} {until}, as provider {answer.get('provider')}", "green")
        warnings = answer.get("warnings")
        for each in warnings if isinstance(warnings, list) else ():
            output.note(f"warning: {each}", "yellow")

    async def offered(client: ApiClient) -> None:
        nonlocal registered
        answer = await _registered(client, path, body, token)
        registered = not once
        show(answer)
        if not once:
            await _renewed(client, output, path, body, token, given["ttl"] / RENEWALS)

    try:
        session.run(offered)
    except (Interrupted, KeyboardInterrupt):
        if not registered:
            raise
        session.run(lambda client: _withdrawn(client, path, token))
        output.note(f"{name} is withdrawn")


async def _registered(client: ApiClient, path: str, body: object, token: dict[str, str]) -> Mapping[str, Any]:
    """Register a service. Returns the answer. ``token`` gets the header with the owner token: the address of this host
    may change."""
    answer = mapping((await client.request("PUT", path, None, body, headers=token)).value())
    if isinstance(given := answer.get("owner_token"), str) and _TOKEN.fullmatch(given):
        token["Owner-Token"] = given
    return answer


async def _withdrawn(client: ApiClient, path: str, token: Mapping[str, str]) -> None:
    answer = await client.request("DELETE", path, headers=token)
    if answer.status != 404:
        answer.value()


async def _renewed(
    client: ApiClient, output: Output, path: str, body: object, token: dict[str, str], pause: float
) -> None:
    """Renew a registration for ever. It is repeated if the broker has forgotten it."""
    lost = False
    while True:
        await sleep(client.reactor, pause)
        try:
            answer = await client.request("POST", f"{path}/renew", None, {}, headers=token)
            if answer.status == 404:
                await _registered(client, path, body, token)
            else:
                answer.value()
        except Failure as failure:
            if failure.code is not Exit.UNREACHABLE:
                raise
            if not lost:
                output.note(f"{failure}; it is offered again when the broker is back", "yellow")
            lost = True
        else:
            if lost:
                output.note("the broker is back, and the service is offered", "green")
            lost = False


MESSAGES = [Column("topic"), Column("text"), Column("base64"), Column("headers"), Column("retained")]


@click.command()
@click.argument("topic")
@click.option("-n", "--count", type=click.IntRange(1), help="End after that many messages.")
@remote
@click.pass_context
def sub(context: click.Context, topic: str, count: int | None) -> None:
    """Print the messages of a topic as they are published, until Ctrl-C.

    With --json, each message is one line of JSON, with its headers. Messages that are published during an interruption
    are not sent later.
    """
    from broker.brokerctl.follow_commands import Finished, follow

    session = session_of(context)
    show = session.output.stream(MESSAGES, partial(_say, session.output))
    left = count

    def receive(kind: str, message: Mapping[str, Any]) -> None:
        nonlocal left
        if kind == "problem":
            raise Failure(str(message.get("detail")), Exit.FAILED)
        _print(session.output, show, message)
        if left is not None:
            left -= 1
            if left == 0:
                raise Finished

    def notify(sentence: str) -> None:
        session.output.note(sentence, "yellow")

    path = f"/v1/topics/{segment(topic)}/messages"
    session.run_many(lambda _, connect: follow(connect(), path, {}, receive, notify))


def _print(output: Output, show: Callable[[Mapping[str, Any]], None], message: Mapping[str, Any]) -> None:
    if isinstance(message.get("missed"), int):
        output.note(f"{message['missed']} messages were left out here: this command read too slowly", "yellow")
    show(message)
    output.console.file.flush()


def _say(output: Output, message: Mapping[str, Any]) -> None:
    text = message.get("text")
    output.say(text if isinstance(text, str) else f"base64:{message.get('base64')}")
