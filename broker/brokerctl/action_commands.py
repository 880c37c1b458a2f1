"""The commands that change something, made of the table of actions; the broker records each in its audit log."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import attrs
import click

from broker.brokerctl.answers import Exit, Failure, mapping, rows, usage
from broker.brokerctl.command_session import Session, remote, session_of, sleep
from broker.brokerctl.output import Column, Format, Output, duration, text
from broker.brokerctl.plain_client import ApiClient, segment
from broker.operate.action_parameters import MAX_BODY
from broker.operate.actions import ACTIONS, BY_NAME, Action


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal; elsewhere ``--yes`` is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage("there is no terminal to ask for a confirmation: pass --yes")
    click.confirm(question, abort=True, err=True)


YES = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
HERE = {
    "drain": "The command waits until all have gone, or until the deadline, and shows the progress. The exit code is 1 "
    "if peers are left then. Ctrl-C ends the waiting, and not the drain; drain --undo does that.",
    "publish": "TEXT may be -: then the text is read from the standard input.",
    "call": "TEXT may be -: then the text is read from the standard input.",
    "queue-put": "TEXT may be -: then the text is read from the standard input.",
    "queue-get": "The exit code is 4 if there is no message.",
    "queue-peek": "The exit code is 4 if there is no message.",
    "reload": "The exit code is 1 if the file has problems or a change was refused.",
}
"""Additions to the help of an action: its behaviour in this program."""

NO_WAIT = click.option("--no-wait", is_flag=True, help="Return at once, and do not wait until all peers have left.")


SHORT = {"publish": "pub"}
"""Names of commands that differ from those of their actions."""

GROUP = "queue"
"""The group of commands of the actions whose names begin with it and a hyphen."""


def queue_group() -> click.Group:
    """Return the group of the actions on work queues."""
    group = click.Group(GROUP, help="Put messages into work queues, peek at them, and move or remove them.")
    for action in ACTIONS:
        _, is_one, short = action.name.partition(f"{GROUP}-")
        if is_one:
            group.add_command(command(action.name), short)
    return group


def command(name: str) -> click.Command:
    """Return the command of an action."""
    action = BY_NAME[name]

    @click.pass_context
    def run(context: click.Context, /, words: tuple[str, ...] = (), **given: Any) -> int:
        yes, state, no_wait = (given.pop(each, False) for each in ("yes", "state", "no_wait"))
        session = session_of(context)
        if state or (action.state is not None and not action.state.word and not words and not any(given.values())):
            return _show_state(session, action)
        named = [f"{each}={value}" for each, value in given.items() if value not in (None, False)]
        if words[1:] == ("-",) and "text" in action.fields:
            words = (words[0], f"text={_standard_input()}")
        try:
            parameters = action.typed([*named, *words])
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        question = action.question(parameters)
        if question:
            confirm(f"{question} ({session.chosen()[1].url})", yes)
        follow = action.name == "drain" and not no_wait and not parameters.undo
        return _act(session, action, parameters, follow)

    # In the reverse of their order in the help.
    run = remote(run)
    if action.confirm:
        run = YES(run)
    if action.name == "drain":
        run = NO_WAIT(run)
    if action.state is not None and action.state.word:
        run = click.option(f"--{action.state.word}", "state", is_flag=True, help="Show the state only.")(run)
    for field in reversed(list(action.fields.values())):
        if field.switch:
            run = click.option(field.option, field.name, is_flag=True, help=field.help)(run)
        elif not field.placed:
            default = "" if field.default is None else f" [default: {field.default:g}]"
            metavar = "SECONDS" if isinstance(field.default, float) else field.name.upper()
            run = click.option(field.option, field.name, metavar=metavar, help=f"{field.help}{default}")(run)
    if action.placed:
        run = click.argument("words", nargs=-1, metavar=action.placed)(run)
    return click.command(
        SHORT.get(name, name), help=_imperative("\n\n".join(filter(None, (action.text, HERE.get(name)))))
    )(run)


def _standard_input() -> str:
    """Return the text in the standard input, one character more than permitted at most. Raises `Failure`."""
    try:
        text = sys.stdin.read(MAX_BODY + 1)
        text.encode()  # some locales decode any byte
    except UnicodeError:
        raise usage("the standard input is no text in UTF-8") from None
    return text


def _imperative(text: str) -> str:
    """Return the text of an action as a command: "Ends the broker" as "End the broker"."""
    verb, space, rest = text.partition(" ")
    return f"{verb.removesuffix('es' if verb.endswith('shes') else 's')}{space}{rest}"


def _show_state(session: Session, action: Action) -> int:
    """Show the state that an action changes."""
    assert action.state is not None
    path = action.state.path
    answer = mapping(session.run(lambda client: client.get(path)))
    [(name, value), *others] = answer.items()
    output = session.output
    if not others and isinstance(value, list):
        columns = [Column(each, "seconds" if each == "seconds" else "") for each in (value[0] if value else ())]
        output.rows(value, columns, answer)
        if output.for_people and not value:
            output.note(f"there are no {name}")
    else:
        output.values(answer, [Column(each, "seconds") for each in answer if each == "seconds"])
    return Exit.OK


def _act(session: Session, action: Action, parameters: Any, follow: bool) -> int:
    """Carry out an action, and show its answer. The exit code is 1 if the answer has problems or refused changes."""
    # Only given parameters: the defaults are the broker's.
    body = attrs.asdict(parameters, recurse=False, filter=lambda field, value: value != field.default)

    async def work(client: ApiClient) -> object:
        # A call may take as long as it says; the broker answers all others at once.
        longer = getattr(parameters, "seconds", 0.0) if action.name == "call" else 0.0
        path = f"/v1/actions/{action.name}"
        found = (await client.request("POST", path, None, body, client.timeout + longer)).value()
        return await _followed(client, session.output, mapping(found)) if follow else found

    answer = session.run(work)
    output = session.output
    about: Mapping[str, Any] = answer if isinstance(answer, dict) else {}
    if isinstance(about.get("messages"), list):
        return _show_messages(output, action, about)
    if not output.for_people:
        output.values(about)
    elif follow:
        _show_end(output, about)
    elif isinstance(about.get("text"), str):
        for line in about["text"].splitlines():
            output.say(line, STYLES.get(line.partition(":")[0], ""))
    else:
        output.values(about)
    left = follow and remaining(about)
    return Exit.FAILED if left or about.get("problems") or about.get("refused") else Exit.OK


MESSAGES = [Column(each) for each in ("text", "size", "deliveries", "death", "user", "id", "expires", "base64")]


def _show_messages(output: Output, action: Action, answer: Mapping[str, Any]) -> int:
    """Show messages of a queue: taken ones as they are, a line each, unless there is another format; others as rows.
    The exit code is 4 for none."""
    found = rows(answer, "messages")
    plain = action.name == "queue-get" and output.format is Format.TABLE
    if not plain:
        output.rows(found, MESSAGES, answer)
    if not found:
        output.note("there are no messages")
        return Exit.NOT_FOUND
    for each in found if plain else ():
        body = each.get("text")
        output.say(body if isinstance(body, str) else f"base64:{each.get('base64')}")
    return Exit.OK


STYLES = {
    "error": "bold red",
    "refused": "bold red",
    "warning": "yellow",
    "restart needed": "yellow",
    "changed": "green",
}
"""Styles of the lines of an answer, by the word before the colon."""


# Several actions by the capacity plan.

MOST_ACTS = 5
"""Programs that one `scale` starts, or providers that it withdraws, by default: a limit to the harm of a wrong plan."""


@click.command()
@click.argument("service")
@click.option("--launcher", help="The program to start, by its name in the table of launchers; that of the service.")
@click.option("--act/--dry-run", default=False, help="Do it, or print what would be done (the default).")
@click.option("--scale-in", is_flag=True, help="Withdraw providers that the plan does without, the least loaded first.")
@click.option("--most", type=click.IntRange(1), default=MOST_ACTS, show_default=True, help="Most acts of this run.")
@remote
@click.pass_context
def scale(context: click.Context, service: str, launcher: str | None, act: bool, scale_in: bool, most: int) -> None:
    """Bring a service to the number of providers in the capacity plan: start programs of the launchers.

    The number is within the limits of the policy. Without --act nothing is done. Providers go only with --scale-in: the
    service is withdrawn, so no client finds it there any more, and the program ends when its operator ends it. Each
    act is in the audit log of the broker. A started program counts as soon as it offers the service: do not repeat the
    command before.
    """
    session = session_of(context)
    answer = session.run(lambda client: _scale(client, service, launcher or service, act, scale_in, most))
    output = session.output
    if not output.for_people:
        output.values(answer)
        return
    acts = [f"launch {launcher or service}"] * answer["launch"]
    acts += [f"withdraw {service} of provider {provider}" for provider in answer["withdraw"]]
    there = f"{answer['has']} provider" + ("" if answer["has"] == 1 else "s")
    output.say(f"{service}: {there}, {answer['replicas']} by the plan of {answer['made']}")
    for line in acts or ["nothing to do"]:
        output.say(line if act or not acts else f"would {line}")


async def _scale(
    client: ApiClient, service: str, launcher: str, act: bool, scale_in: bool, most: int
) -> dict[str, Any]:
    """Compare a service with the plan, and ``act``; return the plan's answer with the acts."""
    path = f"/v1/plan/{segment(service)}/replicas"
    told = mapping(await client.get(path, {"scale_in": "true"} if scale_in else None))
    try:
        has, wanted = int(told["has"]), int(told["replicas"])
    except (KeyError, TypeError, ValueError):
        raise Failure(f"the answer of the broker lacks the providers of {service}", Exit.UNINTELLIGIBLE) from None
    launches, withdrawn = min(max(0, wanted - has), most), list[int]()
    if has > wanted:
        answer = await client.get(f"/v1/services/{segment(service)}", {"near": "load", "limit": 1_000})
        # One from before a restart of the broker has no provider yet to withdraw it from.
        present = (row for row in rows(answer, "services") if not row.get("restored"))
        withdrawn = list(dict.fromkeys(int(row["provider"]) for row in present))[: min(has - wanted, most)]
    if act:
        for _ in range(launches):
            await client.post("/v1/actions/launch", {"name": launcher})
        for provider in withdrawn:
            await client.post("/v1/actions/withdraw", {"provider": provider, "name": service})
    return {**told, "launch": launches, "withdraw": withdrawn, "dry_run": not act}


# The waiting for a drain.

POLL = 0.5
"""Seconds between questions about the state of the drain."""


def _show_end(output: Output, found: Mapping[str, Any]) -> None:
    """Show the last state of a drain."""
    left = remaining(found)
    if left:
        output.say(f"{found.get('state')}: {left} peers are left: {text(found.get('remaining'))}", "bold red")
    else:
        output.say("drained: all peers have left", "green")


async def _followed(client: ApiClient, output: Output, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Show the progress until the drain ends. Returns its last state."""
    from rich.progress import BarColumn, Progress, TextColumn

    first = remaining(found)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[left]}"),
        console=output.errors,
        transient=True,
        auto_refresh=False,
        disable=not (output.for_people and output.errors.is_terminal),
    ) as progress:
        task = progress.add_task("draining", total=max(first, 1), left="")
        while True:
            left = remaining(found)
            first = max(first, left)
            time = found.get("seconds")
            until = f", {duration(time)} to the deadline" if isinstance(time, int | float) else ""
            shown = f"{left} peers left{until}"
            progress.update(task, total=max(first, 1), completed=first - left, left=shown)
            progress.refresh()
            if found.get("state") != "draining":
                return found
            await sleep(client.reactor, POLL)
            try:
                found = mapping(await client.get("/v1/drain"))
            except Failure as failure:
                # The broker may end once it is empty.
                if failure.code is Exit.UNREACHABLE:
                    raise Failure(f"the state of the drain is unknown: {failure}", Exit.UNREACHABLE) from None
                raise


def remaining(state: Mapping[str, Any]) -> int:
    """Return the number of peers that are still connected."""
    found = state.get("remaining")
    return sum(count for count in found.values() if isinstance(count, int)) if isinstance(found, dict) else 0
