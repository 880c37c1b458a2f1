"""One command: its group, the options that all share, its state, and the reactor that runs it."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
import msgspec
import msgspec.structs

from broker.brokerctl.answers import Exit, Failure, Interrupted
from broker.brokerctl.contexts import BUILT_IN, Context, Given, authorization, chosen, path_of, read_contexts
from broker.brokerctl.output import (
    Color,
    Format,
    Output,
    clean,
    prepare_streams,
    readable_arguments,
)
from broker.brokerctl.plain_client import TIMEOUT, ApiClient, PlainClient
from broker.standard_streams import discard_failing, output_sentence, stream_failure

# Types only: Twisted is imported by the commands that need it.
if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from broker.brokerctl.http_client import Client

# The outermost command: sections of help, and failures as sentences and exit codes.


class _ClosedPipe(Exception):
    """The reader of the output is gone."""


class Commands(click.Group):
    """A group whose ``main`` ends the process with the exit codes of `Exit`."""

    def __init__(self, *arguments: Any, **about: Any) -> None:
        super().__init__(*arguments, **about)
        self.sections: dict[str, list[str]] = {}
        self._makers: dict[str, Callable[[], click.Command]] = {}
        self._rest: dict[str, Callable[[], Iterable[tuple[str, Callable[[], click.Command]]]]] = {}

    def add(self, section: str, name: str, make: Callable[[], click.Command]) -> None:
        """Add a command to a section of the help. ``make`` imports it when it is needed: most invocations need one."""
        self._makers[name] = make
        self.sections.setdefault(section, []).append(name)

    def complete(self, section: str, made: Callable[[], Iterable[tuple[str, Callable[[], click.Command]]]]) -> None:
        """Add commands to a section by ``made``, which is called when a command is not found, or all are needed."""
        self.sections.setdefault(section, [])
        self._rest[section] = made

    def all(self) -> Mapping[str, Sequence[str]]:
        """Return the names of all commands by section."""
        rest, self._rest = self._rest, {}
        for section, made in rest.items():
            for name, make in made():
                self.add(section, name, make)
        return self.sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        self.all()
        return sorted({*self.commands, *self._makers})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name, None if there is none."""
        if cmd_name not in self._makers and cmd_name not in self.commands:
            self.all()
        make = self._makers.get(cmd_name)
        if make is not None and cmd_name not in self.commands:
            self.add_command(make(), cmd_name)
        return super().get_command(ctx, cmd_name)

    def of(self, name: str) -> click.Command:
        """Return a command that was added."""
        return self._makers[name]()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section."""
        sections = self.all()
        widest = max(map(len, self._makers))
        for section, names in sections.items():
            with formatter.section(section):
                limit = formatter.width - 6 - widest
                found = [(name.ljust(widest), self.of(name).get_short_help_str(limit)) for name in names]
                formatter.write_dl(found)

    def make_context(self, *arguments: Any, **about: Any) -> click.Context:
        """Parse a command line, and print the help. A closed pipe is hidden from click, which would exit with 1."""
        try:
            return super().make_context(*arguments, **about)
        except BrokenPipeError:
            raise _ClosedPipe from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. A closed pipe is hidden as above."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ClosedPipe from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run a command line, and end the process."""
        prepare_streams()
        try:
            given = readable_arguments(sys.argv[1:] if args is None else args)
            with _ended_in_order():
                result = super().main(given, prog_name, complete_var, standalone_mode=False, **extra)
            code = result if isinstance(result, int) else Exit.OK
        except Failure as failure:
            code = _reported(str(failure), failure.code)
        except click.ClickException as error:
            code = _shown(error)
        except (click.Abort, KeyboardInterrupt):
            code = _reported("interrupted", Exit.INTERRUPTED)
        except Interrupted as interrupted:
            code = 128 + interrupted.number
        except (_ClosedPipe, BrokenPipeError):
            code = Exit.BROKEN_PIPE
        except OSError as error:
            code = _reported(_sentence(error), Exit.FAILED)
        unwritten = stream_failure("stdout")
        if code == Exit.BROKEN_PIPE or isinstance(unwritten, BrokenPipeError):
            code = Exit.BROKEN_PIPE
        elif unwritten is not None and code == Exit.OK:
            code = _reported(_sentence(unwritten), Exit.FAILED)
        discard_failing()
        sys.exit(int(code))


ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end any command in order, as SIGINT does."""


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let the first SIGTERM or SIGHUP raise `Interrupted`, so that a command removes its temporary files.

    Later ones do not disturb that: `timeout` sends two. A signal that is ignored, as under `nohup`, stays so. Python
    raises KeyboardInterrupt at SIGINT.
    """

    def on_signal(number: int, frame: object) -> None:
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    with _handled(on_signal, *_ending()):
        yield


def _ending() -> list[signal.Signals]:
    """Return those of `ENDING` that are not ignored."""
    return [each for each in ENDING if signal.getsignal(each) != signal.SIG_IGN]


@contextmanager
def _handled(on_signal: Callable[[int, object], None], *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals, which only the main thread can, until the end of the block."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sentence(error: OSError) -> str:
    """Return an error as a sentence. One without a file is that of the output."""
    if error.filename is None:
        return output_sentence(error)
    return f"{error.filename}: {(error.strerror or str(error)).lower()}"


def _reported(sentence: str, code: int) -> int:
    try:
        click.echo(f"brokerctl: {clean(sentence)}", err=True)
    except BrokenPipeError:
        return Exit.BROKEN_PIPE
    except OSError:
        pass  # the exit code is all that is left
    return code


def _shown(error: click.ClickException) -> int:
    with suppress(OSError):
        error.show()
    return error.exit_code


# The reactor: it runs a coroutine to its end, and stops at a signal.

Result = TypeVar("Result")


def run(main: Callable[[Any], Coroutine[Any, Any, Result]]) -> Result:
    """Return the result of ``main(reactor)``, or raise its exception.

    A signal cancels the coroutine, and raises `Interrupted` once it has cleaned up. The reactor is a new one each time,
    and is not installed as the global one.
    """
    from twisted.internet.defer import Deferred
    from twisted.internet.pollreactor import PollReactor
    from twisted.python.failure import Failure as TwistedFailure

    from broker.brokerctl.http_client import DaemonResolver

    reactor = PollReactor()
    reactor.installNameResolver(DaemonResolver(reactor))
    received: list[int] = []
    outcome: list[Any] = []
    running: Deferred[Any]

    def begin() -> None:
        nonlocal running
        running = Deferred.fromCoroutine(main(reactor))
        running.addBoth(finish)

    def finish(result: Any) -> None:
        outcome.append(result)
        # A turn later: connections that were aborted in this one are closed in the next.
        reactor.callLater(0, reactor.stop)

    def on_signal(number: int, frame: object) -> None:
        received.append(number)
        reactor.callFromThread(lambda: running.cancel())

    reactor.callWhenRunning(begin)
    try:
        with _handled(on_signal, signal.SIGINT, *_ending()):
            reactor.run(installSignalHandlers=False)
    finally:
        # Its two descriptors would stay open.
        reactor.waker.connectionLost(None)
    [result] = outcome
    if isinstance(result, TwistedFailure):
        if received:
            raise Interrupted(received[0])
        result.raiseException()
    return result  # type: ignore[no-any-return]


def run_plainly(main: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine that waits for nothing: its requests block. A signal raises `Interrupted`."""

    def on_signal(number: int, frame: object) -> None:
        raise Interrupted(number)

    try:
        # The others end any command: see `_ended_in_order`.
        with _handled(on_signal, signal.SIGINT):
            main.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        main.close()
    raise RuntimeError("a request waits for a reactor")


async def _nothing() -> None:
    """Return at once."""


def sleep(reactor: Any, seconds: float) -> Awaitable[None]:
    """Wait for some seconds: by a Deferred, or without a reactor by blocking."""
    if reactor is None:
        time.sleep(seconds)
        return _nothing()
    from twisted.internet.defer import Deferred

    delayed: Deferred[None] = Deferred(lambda _: call.cancel())
    call = reactor.callLater(seconds, delayed.callback, None)
    return delayed


# The state: the given options, and the way to the broker.


class Session(msgspec.Struct):
    """The shared options."""

    given: Given = Given()
    format: Format = Format.TABLE
    color: Color = Color.AUTO
    timeout: float = TIMEOUT
    password: str | None = None
    """The password that was typed: a command asks for it once, however often it connects."""

    @property
    def output(self) -> Output:
        """The output of this process in the chosen format."""
        return Output.standard(self.format, self.color)

    def chosen(self) -> tuple[str, Context]:
        """Return the name and the context of the chosen broker. Raises `Failure`."""
        return chosen(self.given, os.environ)

    def run(self, work: Callable[[ApiClient], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of a conversation with the chosen broker, one request after the other. Raises `Failure`."""
        _, context = self.chosen()
        if context.secure:
            return self.run_many(lambda reactor, connect: work(connect()))
        return run_plainly(work(PlainClient(context, self.timeout, self._authorization(context))))

    def run_many(self, work: Callable[[Any, Callable[[], Client]], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of ``work(reactor, connect)``; each call of ``connect`` makes a client."""
        from broker.brokerctl.http_client import Client

        _, context = self.chosen()
        # The password is asked for before the reactor runs: both take the terminal.
        field = self._authorization(context)
        clients: list[Client] = []

        async def main(reactor: Any) -> Result:
            def connect() -> Client:
                clients.append(Client(reactor, context, self.timeout, field))
                return clients[-1]

            try:
                return await work(reactor, connect)
            finally:
                for client in clients:
                    await client.close()

        return run(main)

    def _authorization(self, context: Context) -> str:
        return authorization(context, self._ask if sys.stdin.isatty() else None)

    def _ask(self, user: str) -> str:
        if self.password is None:
            self.password = str(click.prompt(f"Password of {user}", hide_input=True, err=True))
        return self.password


# The options that many commands share. They may stand before the command or after it.

Command = TypeVar("Command", bound=Callable[..., Any])
LONGEST = 600.0
"""Seconds to which ``--timeout`` may raise the time for an answer."""

PATH = click.Path(dir_okay=False)


def session_of(context: click.Context) -> Session:
    """Return the session of an invocation."""
    return context.ensure_object(Session)


class Number(click.FloatRange):
    """A finite number in a range. Those of click pass NaN, which is in no range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Raises `click.BadParameter`."""
        try:
            finite = math.isfinite(float(value))
        except (TypeError, ValueError):
            finite = True  # no number at all: the base class has the message for it
        if not finite:
            self.fail(f"{value} is no finite number.", param, ctx)
        return super().convert(value, param, ctx)


def _remember(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            session = session_of(context)
            session.given = msgspec.structs.replace(session.given, **{name: value})

    return callback


def _format(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None and value is not False:
        session_of(context).format = Format.JSON if value is True else Format(value)


def _color(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        session_of(context).color = Color(value)


def _timeout(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        session_of(context).timeout = value


def _contexts(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a context."""
    try:
        known = {*read_contexts(path_of(os.environ)).known, BUILT_IN}
    except Failure:
        return []
    return sorted(name for name in known if name.startswith(incomplete))


def _option(*names: str, **about: Any) -> Callable[[Command], Command]:
    return click.option(*names, expose_value=False, **about)


def _all(options: list[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


connection: Callable[[Command], Command] = _all(
    [
        _option(
            "-c",
            "--context",
            metavar="NAME",
            callback=_remember("context"),
            shell_complete=_contexts,
            help="Context of the contexts file: the broker and the credentials.",
        ),
        _option("--url", metavar="URL", callback=_remember("url"), help="Address of the broker's HTTP listener."),
        _option("--ca", type=PATH, callback=_remember("ca"), help="PEM file with the authorities to trust."),
        _option("--cert", type=PATH, callback=_remember("cert"), help="PEM file with the client's certificate."),
        _option("--key", type=PATH, callback=_remember("key"), help="PEM file with the key of that certificate."),
        _option("--token-file", type=PATH, callback=_remember("token_file"), help="File with a bearer token."),
        _option("--user", metavar="NAME", callback=_remember("user"), help="User; the password is asked for."),
        _option(
            "--password-file", type=PATH, callback=_remember("password_file"), help="File with the user's password."
        ),
        _option(
            "--timeout",
            type=Number(0, LONGEST, min_open=True),
            metavar="SECONDS",
            callback=_timeout,
            help=f"Time for one answer. [default: {TIMEOUT:g}]",
        ),
    ]
)
"""The choice of the broker."""

color: Callable[[Command], Command] = _option(
    "--color",
    type=click.Choice([each.value for each in Color]),
    callback=_color,
    help="Colours: on terminals unless NO_COLOR is set, always, or never.",
)
"""The choice of colours."""

formats: Callable[[Command], Command] = _all(
    [
        _option(
            "-o",
            "--output",
            type=click.Choice([each.value for each in Format]),
            callback=_format,
            help="table for people, wide with all columns, json as the API answers, or csv.",
        ),
        _option("--json", is_flag=True, default=None, callback=_format, help="The same as -o json."),
    ]
)
"""The choice of the format."""


def remote(command: Command) -> Command:
    """Add all shared options to a command that asks the broker."""
    return formats(connection(color(command)))
