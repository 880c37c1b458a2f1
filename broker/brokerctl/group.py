"""The outermost command: sections of help, and failures as sentences and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import click

from broker.brokerctl.failures import Exit, Failure, Interrupted
from broker.brokerctl.output import streams
from broker.brokerctl.output.clean import clean


class _ClosedPipe(Exception):
    """The reader of the output is gone."""


class Commands(click.Group):
    """A group whose ``main`` ends the process with the exit codes of `Exit`."""

    def __init__(self, *arguments: Any, **about: Any) -> None:
        super().__init__(*arguments, **about)
        self.sections: dict[str, list[str]] = {}

    def add(self, section: str, command: click.Command) -> None:
        """Add a command to a section of the help."""
        self.add_command(command)
        self.sections.setdefault(section, []).append(command.name or "")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section."""
        widest = max(len(name) for name in self.commands)
        for section, names in self.sections.items():
            with formatter.section(section):
                limit = formatter.width - 6 - widest
                found = [(name.ljust(widest), self.commands[name].get_short_help_str(limit)) for name in names]
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
        streams.prepare()
        try:
            given = streams.arguments(sys.argv[1:] if args is None else args)
            result = super().main(given, prog_name, complete_var, standalone_mode=False, **extra)
            code = result if isinstance(result, int) else Exit.OK
        except Failure as failure:
            code = _told(str(failure), failure.code)
        except click.ClickException as error:
            code = _shown(error)
        except (click.Abort, KeyboardInterrupt):
            code = _told("interrupted", Exit.INTERRUPTED)
        except Interrupted as interrupted:
            code = 128 + interrupted.number
        except (_ClosedPipe, BrokenPipeError):
            code = Exit.BROKEN_PIPE
        except OSError as error:
            code = _told(_sentence(error), Exit.FAILED)
        unwritten = streams.failing("stdout")
        if code == Exit.BROKEN_PIPE or isinstance(unwritten, BrokenPipeError):
            code = Exit.BROKEN_PIPE
        elif unwritten is not None and code == Exit.OK:
            code = _told(_sentence(unwritten), Exit.FAILED)
        streams.discard(*(name for name in ("stdout", "stderr") if streams.failing(name) is not None))
        sys.exit(int(code))


def _sentence(error: OSError) -> str:
    """Return an error as a sentence. One without a file is that of the output."""
    what = "the output cannot be written" if error.filename is None else str(error.filename)
    return f"{what}: {(error.strerror or str(error)).lower()}"


def _told(sentence: str, code: int) -> int:
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
