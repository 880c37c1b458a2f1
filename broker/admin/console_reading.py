"""The reading of a view for the console, in turns of the reactor: a table of 100,000 rows delays no peer; and the wait
for the answer of a command.

Lines that the operator types meanwhile are held, and carried out in order afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from twisted.internet.defer import Deferred

from broker.access.registry_reading import RegistryReading
from broker.core.errors import Reason, Refusal
from broker.wires.view_scan import Scan, Selection
from broker.wires.views import MAX_ROWS, AnyView, Row

MAX_HELD = 100
"""Lines that may be typed while a view is read: a script that sends more waits for the answers."""

Later = Callable[[Callable[[], None]], object]
"""Calls a function in the next turn of the reactor."""


def at_once(step: Callable[[], None]) -> None:
    """Call the function now, where there is no reactor."""
    step()


class ConsoleReading:
    """The reading of one view after the other. ``show`` prints the rows, ``resume`` carries out a held line."""

    def __init__(self, later: Later, show: Callable[[Sequence[Row]], None], resume: Callable[[str], None]) -> None:
        self._later = later
        self._show = show
        self._resume = resume
        self._pieces: Iterator[Sequence[Row]] | None = None
        self._answer: Deferred[str] | None = None
        self._rows: list[Row] = []
        self._held: deque[str] = deque()
        self.done: Callable[[], object] = lambda: None
        """Called once nothing is read or held any more."""

    @property
    def busy(self) -> bool:
        """True while a view is read or an answer is awaited: lines are to be held."""
        return self._pieces is not None or self._answer is not None

    def hold(self, line: str) -> None:
        """Hold a line. Raises `Refusal` LIMIT if there are too many."""
        if len(self._held) >= MAX_HELD:
            raise Refusal(Reason.LIMIT, f"a command is being carried out, and {MAX_HELD} wait already")
        self._held.append(line)

    def begin(self, view: AnyView, pattern: str, reading: RegistryReading) -> None:
        """Read the first rows that a pattern selects, of those that ``reading`` shows."""
        self._pieces, self._rows = iter(Scan(view, Selection(pattern), reading)), []
        self._step()

    def wait(self, answer: Deferred[str], show: Callable[[str], object]) -> None:
        """Show an answer when it is there. It does not fail."""
        self._answer = answer

        def come(text: str) -> None:
            if self._answer is answer:
                self._answer = None
                show(text)
                self._go_on()

        answer.addCallback(come)

    def end(self) -> None:
        """Stop: the operator has gone."""
        self._pieces = self._answer = None
        self._held.clear()
        # They refer to the session: without the cycle, no garbage collection is needed.
        self._show = self._resume = _ignore
        self.done = lambda: None

    def _step(self) -> None:
        if self._pieces is None:
            return
        some = next(self._pieces, None)
        if some is not None:
            self._rows += some
            if len(self._rows) < MAX_ROWS:
                self._later(self._step)
                return
        self._pieces = None
        self._show(self._rows)
        self._go_on()

    def _go_on(self) -> None:
        """Carry out the held lines."""
        while self._held and not self.busy:
            self._resume(self._held.popleft())
        if not self.busy:
            self.done()


def _ignore(_: object) -> None:
    """Do nothing with what comes after the end."""
