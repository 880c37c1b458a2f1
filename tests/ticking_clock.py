"""A clock for tests of work that takes time."""

from twisted.internet.task import Clock


class TickingClock(Clock):
    """A clock that goes on by ``tick`` seconds each time that it is looked at, so that work takes time."""

    tick = 0.0

    def seconds(self) -> float:
        self.rightNow += self.tick
        return super().seconds()

    def turn(self) -> None:
        """One turn of a reactor: the calls due now, without those that they schedule (`Clock.advance` runs both)."""
        now = self.rightNow
        for call in [call for call in self.calls if call.getTime() <= now]:
            if call.active():
                self.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)
