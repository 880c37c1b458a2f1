"""Lines that tell how far a run is: one for each job, which grows on a terminal and is written once elsewhere.

ingest   12 new segments   720,134 records   0 quarantined   0 lost        ▇▇▇▇▇▇▇▇ 100 %
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

NAME_WIDTH = 8
"""The longest name of a job has eight letters (`forecast`) or is a little longer than the rest."""

TEXT_WIDTH = 64
"""Column in which the bars begin: the figures of ingest fit before it."""

BAR = 8
"""Blocks of a full bar."""

Step = Callable[[float, str], None]
"""Tell how much of a job is done (0 to 1), and its figures so far."""


class Progress:
    """Writes the lines of one run."""

    def __init__(self, stream: TextIO | None = None, *, terminal: bool | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._terminal = self._stream.isatty() if terminal is None else terminal

    def _line(self, name: str, done: float, text: str) -> str:
        bar = ("▇" * int(done * BAR)).ljust(BAR)
        return f"  {name:<{NAME_WIDTH}} {text:<{TEXT_WIDTH}} {bar} {int(done * 100):>3} %"

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            self._stream.write(text.replace("▇", "#").encode("ascii", "replace").decode())
        self._stream.flush()

    @contextmanager
    def job(self, name: str) -> Iterator[Step]:
        """Open the line of a job; what the job tells last is what stays. One that fails leaves its line unfinished."""
        last = ""

        def step(done: float, text: str) -> None:
            nonlocal last
            last = text
            if self._terminal:
                self._write(f"\r{self._line(name, done, text)}\x1b[K")

        step(0.0, "")
        try:
            yield step
        except BaseException:
            if self._terminal:
                self._write("\n")
            raise
        line = self._line(name, 1.0, last)
        self._write(f"\r{line}\x1b[K\n" if self._terminal else f"{line}\n")

    def note(self, text: str) -> None:
        """Write a line that explains something, under that of its job."""
        self._write(f"           {text}\n")
