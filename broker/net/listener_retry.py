"""Opening listeners, and opening those later that cannot be opened now: one mechanism for every kind of listener.

Rules:
- All listeners are prepared before the first one is bound, so that a connection does not wait for work of the start.
- They are bound in the order in which they were added.
- The start fails over a listener that is required, over any where the start is strict, and where none can be opened.
- Any other listener that cannot be opened is logged once for each reason, and tried again: first after `FIRST_RETRY`,
  then after twice as long each time, at most after `MOST_RETRY`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from fnmatch import fnmatchcase

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.core.backoff import Backoff
from broker.core.model import Listening
from broker.net.endpoints import CannotListen

FIRST_RETRY = 1.0
"""Seconds until the second attempt: after a restart the port of the previous process is often free by then."""

MOST_RETRY = 30.0
"""Seconds between two attempts at most. An attempt costs some system calls, and a wire is back within half a minute of
the moment at which its port is free."""

_BACKOFF = Backoff(FIRST_RETRY, MOST_RETRY)


class Opening:
    """One listener: its state, and the way to open it.

    ``prepare`` does what takes time and is not done yet; ``bind`` opens the listener and returns its address. Both
    raise `CannotListen` with nothing bound.
    """

    def __init__(
        self,
        name: str,
        where: str,
        bind: Callable[[], str],
        prepare: Callable[[], object],
        required: bool,
        clock: IReactorTime,
    ) -> None:
        self.required = required
        self.state = Listening(name, where, clock.seconds(), "it was not opened yet")
        self._bind = bind
        self._prepare = prepare
        self._clock = clock
        self._failures = 0
        """Attempts that failed, since the start or the last `hasten`."""
        self._retry: IDelayedCall | None = None

    def prepare(self) -> None:
        """Do what takes time. A failure is left to `attempt`, which meets it again and keeps the reason."""
        with contextlib.suppress(CannotListen):
            self._prepare()

    def attempt(self) -> bool:
        """Open the listener now. Returns whether `state` has changed."""
        before = self.state
        try:
            self._prepare()
            where, reason = self._bind(), None
        except CannotListen as error:
            where, reason = before.where, str(error)
        if reason == before.reason:
            return False
        since = before.since if reason is not None else self._clock.seconds()
        self.state = Listening(before.name, where, since, reason)
        return True

    def later(self, again: Callable[[Opening], None]) -> None:
        """Call ``again`` after the pause, which doubles."""
        self._failures += 1
        self._retry = self._clock.callLater(_BACKOFF.after(self._failures), again, self)

    def hasten(self) -> None:
        """Put nothing off any more, and begin with a short pause again."""
        self.cancel()
        self._failures = 0

    def cancel(self) -> None:
        """Make no attempt that was put off."""
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
        self._retry = None


class Openings:
    """The listeners of the daemon. ``changed`` is called when the state of one has changed after the start."""

    log = Logger()

    def __init__(self, clock: IReactorTime, changed: Callable[[], object]) -> None:
        self._clock = clock
        self._changed = changed
        self._all: dict[str, Opening] = {}

    def add(
        self,
        name: str,
        where: str,
        bind: Callable[[], str],
        prepare: Callable[[], object] = lambda: None,
        required: bool = False,
    ) -> None:
        """Add a listener, which `open` then opens; see `Opening`."""
        assert name not in self._all
        self._all[name] = Opening(name, where, bind, prepare, required, self._clock)

    def remove(self, name: str) -> None:
        """Forget a listener that is closed on purpose."""
        self._all.pop(name).cancel()

    def open(self, strict: bool) -> None:
        """Open all. Raises `CannotListen` where the start fails; listeners that are open by then stay so."""
        for each in self._all.values():
            each.prepare()
        for each in self._all.values():
            each.attempt()
            if not each.state.ready and (strict or each.required):
                raise _cannot(each.state)
        missing = [each for each in self._all.values() if not each.state.ready]
        if missing and len(missing) == len(self._all):
            raise _cannot(missing[0].state)
        for each in missing:
            self._miss(each)
            each.later(self._again)

    def retry(self) -> None:
        """Try those now that are not open, and begin with short pauses again."""
        for each in list(self._all.values()):
            if not each.state.ready:
                each.hasten()
                self._again(each)

    def states(self, pattern: str = "*") -> list[Listening]:
        """The listeners whose name matches a shell pattern, in the order of the start."""
        return [each.state for name, each in self._all.items() if fnmatchcase(name, pattern)]

    def stop(self) -> None:
        """Make no more attempts."""
        for each in self._all.values():
            each.cancel()

    def _again(self, opening: Opening) -> None:
        # The next attempt is set first: a defect that this one meets must not be the last of it.
        opening.later(self._again)
        if not opening.attempt():
            return
        if opening.state.ready:
            opening.cancel()
        else:
            self._miss(opening)
        self._changed()

    def _miss(self, opening: Opening) -> None:
        state = opening.state
        self.log.error(
            "{name}: {reason}; the other listeners serve, and this one is tried again",
            name=state.name,
            reason=state.reason,
        )


def _cannot(state: Listening) -> CannotListen:
    return CannotListen(f"{state.name}: {state.reason}")
