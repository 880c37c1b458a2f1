"""Progress of a run: a bar for each job on a terminal, and one line for each finished job elsewhere.

The bar moves by itself while a job has not yet reported a share, so that a long step of Spark is not taken for a hang.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich import progress
from rich.console import Console

NAME_WIDTH = 8
"""Columns of a job's name: the longest common one is `forecast`."""

BAR_WIDTH = 20
"""Columns of a full bar. With name, share, time and the longest figures it fits into 120 columns."""

Step = Callable[[float, str], None]
"""Report the finished share of a job (0 to 1), and its figures so far."""


class Progress:
    """Writes the progress of one run to a stream."""

    def __init__(self, stream: TextIO | None = None, *, terminal: bool | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._terminal = self._stream.isatty() if terminal is None else terminal
        # Figures and names of files are text: nothing in them is markup, an emoji or a number to colour.
        self._console = Console(
            file=self._stream, force_terminal=self._terminal, markup=False, emoji=False, highlight=False
        )

    def _write(self, line: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
        self._stream.flush()

    @contextmanager
    def job(self, name: str) -> Iterator[Step]:
        """Report one job; the figures of the last step stay. The bar of a failed job stays where it was."""
        if self._terminal:
            with self._bar() as bar:
                task = bar.add_task(f"{name:<{NAME_WIDTH}}", total=None, text="")

                def move(done: float, text: str) -> None:
                    bar.update(task, total=1.0 if done > 0 else None, completed=done, text=text)

                yield move
                bar.update(task, total=1.0, completed=1.0)
            return
        last = ""

        def step(done: float, text: str) -> None:
            nonlocal last
            last = text

        yield step
        self._write(f"  {name:<{NAME_WIDTH}} {last}".rstrip())

    def _bar(self) -> progress.Progress:
        return progress.Progress(
            progress.TextColumn(" {task.description}", markup=False),
            progress.BarColumn(BAR_WIDTH),
            progress.TaskProgressColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[text]}", markup=False),
            console=self._console,
        )

    def note(self, text: str) -> None:
        """Write a line that explains something, under that of its job."""
        self._write(f"           {text}")
