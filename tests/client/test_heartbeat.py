"""Heartbeats of a client: the times of Pings, and the detection of a dead broker."""

from __future__ import annotations

from twisted.internet.task import Clock

from broker.client.heartbeat import Heartbeat


class Chest:
    """A heartbeat of 2 seconds with a limit of three, and the times of its events."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.pings: list[float] = []
        self.died: list[float] = []
        self.heart = Heartbeat(self.clock, 2.0, 3, self._ping, self._dead)

    def _ping(self) -> None:
        self.pings.append(round(self.clock.seconds(), 2))
        self.heart.sent()

    def _dead(self) -> None:
        self.died.append(round(self.clock.seconds(), 2))

    def pass_by(self, seconds: float, *, hears: bool = False, says: bool = False) -> None:
        """Let time pass in steps of an eighth."""
        for _ in range(round(seconds * 8)):
            self.clock.advance(0.125)
            if hears:
                self.heart.received()
            if says:
                self.heart.sent()


def test_two_that_talk_need_no_pings() -> None:
    chest = Chest()
    chest.pass_by(60, hears=True, says=True)
    assert chest.pings == []


def test_who_says_nothing_sends_a_ping_each_heartbeat() -> None:
    chest = Chest()
    chest.pass_by(10.5, hears=True)
    assert chest.pings == [2.0, 4.0, 6.0, 8.0, 10.0]


def test_who_hears_nothing_asks_and_then_it_is_over() -> None:
    chest = Chest()
    chest.pass_by(20, says=True)
    assert chest.pings == [2.0, 4.0]
    assert chest.died == [6.0]
    assert chest.clock.getDelayedCalls() == []


def test_one_word_is_enough() -> None:
    chest = Chest()
    chest.pass_by(5.5)
    chest.heart.received()
    chest.pass_by(5.75)
    assert chest.died == []
    chest.pass_by(0.5)
    assert chest.died == [11.5]


def test_nothing_happens_after_the_end() -> None:
    chest = Chest()
    chest.heart.stop()
    chest.heart.stop()
    chest.pass_by(20)
    assert (chest.pings, chest.died) == ([], [])


def test_a_client_that_slept_asks_before_it_judges() -> None:
    chest = Chest()
    chest.pass_by(1)
    chest.clock.advance(3_600)
    assert (chest.pings, chest.died) == ([3_601.0], [])
    chest.heart.received()
    chest.pass_by(5.5)
    assert chest.died == []


def test_what_it_slept_does_not_count_but_what_was_before_does() -> None:
    chest = Chest()
    chest.pass_by(3)
    chest.clock.advance(3_600)
    # of the six seconds there are two left, since it would have looked again after four
    chest.pass_by(1.75)
    assert chest.died == []
    chest.pass_by(0.5)
    assert chest.died == [3_605.0]


def test_who_slept_when_it_should_have_judged_reads_first_what_came() -> None:
    chest = Chest()
    chest.pass_by(5)
    chest.clock.advance(100)
    assert (chest.pings[-1], chest.died) == (105.0, [])
    chest.heart.received()
    chest.pass_by(3)
    assert chest.died == []


def test_who_sleeps_all_the_time_judges_nevertheless() -> None:
    chest = Chest()
    for _ in range(20):
        chest.clock.advance(3.5)
    assert len(chest.died) == 1


def test_who_does_not_listen_does_not_judge_and_says_that_it_is_there() -> None:
    chest = Chest()
    chest.heart.set_receiving(False)
    chest.pass_by(20.5)
    assert (len(chest.pings), chest.died) == (10, [])
    chest.heart.set_receiving(True)
    chest.pass_by(5.75)
    assert chest.died == []
    chest.pass_by(0.5)
    assert chest.died == [26.5]
