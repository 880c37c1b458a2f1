"""The outermost command: sections of help, and failures as sentences and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from broker.brokerctl.failures import Exit, Failure, Interrupted
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

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. A closed pipe is hidden from click, which would exit with 1."""
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
        try:
            result = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            code = result if isinstance(result, int) else Exit.OK
            sys.stdout.flush()
        except Failure as failure:
            code = _told(str(failure), failure.code)
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            _told("interrupted", Exit.INTERRUPTED)
            code = Exit.INTERRUPTED
        except Interrupted as interrupted:
            code = 128 + interrupted.number
        except (_ClosedPipe, BrokenPipeError):
            code = Exit.BROKEN_PIPE
        if code == Exit.BROKEN_PIPE or _closed(sys.stdout):
            # Nothing more may be written at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = Exit.BROKEN_PIPE
        sys.exit(int(code))


def _told(sentence: str, code: int) -> int:
    try:
        click.echo(f"brokerctl: {clean(sentence)}", err=True)
    except BrokenPipeError:
        return Exit.BROKEN_PIPE
    return code


def _closed(file: Any) -> bool:
    """Return True if the rest of the output cannot be written."""
    try:
        file.flush()
    except BrokenPipeError:
        return True
    return False
