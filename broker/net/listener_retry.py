"""Opening of listeners, with retries: one mechanism for every kind of listener.

Rules:
- All listeners are prepared before the first one is bound, so that no connection waits for startup work.
- They are bound in the order of `Openings.add`.
- The start fails if a required listener fails, if any fails in a strict start, or if none can be opened.
- Any other failed listener is logged once for each reason, and retried with exponential back-off: first after
  `FIRST_RETRY`, with doubled pauses up to `MOST_RETRY`.
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
"""Upper bound of the pause in seconds. An attempt costs some system calls, and a wire recovers within half a minute
after its port becomes free."""

_BACKOFF = Backoff(FIRST_RETRY, MOST_RETRY)


class Opening:
    """One listener: its state, and the functions that open it.

    ``prepare`` does slow work that is still due; ``bind`` opens the listener and returns its address. Both raise
    `CannotListen` with nothing bound.
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
        """Failed attempts since the start or the last `hasten`."""
        self._retry: IDelayedCall | None = None

    def prepare(self) -> None:
        """Do the slow work. `attempt` repeats it after a failure, and reports the reason."""
        with contextlib.suppress(CannotListen):
            self._prepare()

    def attempt(self) -> bool:
        """Open the listener now. Returns True if `state` has changed."""
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
        """Call ``again`` after the back-off."""
        self._failures += 1
        self._retry = self._clock.callLater(_BACKOFF.after(self._failures), again, self)

    def hasten(self) -> None:
        """Cancel the pending retry, and reset the back-off."""
        self.cancel()
        self._failures = 0

    def cancel(self) -> None:
        """Cancel the pending retry."""
        if self._retry is not None and self._retry.active():
            self._retry.cancel()
        self._retry = None


class Openings:
    """The listeners of the daemon. ``changed`` is called after each change of a state since the start."""

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
        """Remove a listener that is closed on purpose."""
        self._all.pop(name).cancel()

    def open(self, strict: bool) -> None:
        """Open all. Raises `CannotListen` if the start fails; listeners that are open by then stay open."""
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
        """Retry all failed listeners now, and reset their back-off."""
        for each in list(self._all.values()):
            if not each.state.ready:
                each.hasten()
                self._again(each)

    def states(self, pattern: str = "*") -> list[Listening]:
        """Return the listeners with a name that matches a shell pattern, in the order of the start."""
        return [each.state for name, each in self._all.items() if fnmatchcase(name, pattern)]

    def stop(self) -> None:
        """Cancel all retries."""
        for each in self._all.values():
            each.cancel()

    def _again(self, opening: Opening) -> None:
        # The next attempt is scheduled first, so that an unexpected exception in this one does not end the retries.
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
