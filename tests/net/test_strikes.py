"""Strikes: a peer whose quanta take long is no longer ordinary, unless other load of the machine took the time."""

from __future__ import annotations

from broker.net.scheduled_input import COSTLY, STRIKES
from broker.net.scheduler import TURN
from tests.net.words import Hub, Link

LONG = 2 * COSTLY


class Cpu:
    """The CPU time of the thread: a share of the time of the clock that each word takes. Counts its readings."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.readings = 0
        self.hub = Hub(cpu=self.seconds)
        self.hub.heard.cost = LONG

    def seconds(self) -> float:
        self.readings += 1
        return float(self.hub.clock.rightNow * self.share)

    def say(self, link: Link, times: int) -> None:
        """Words arrive, each in a turn of its own, and are handled."""
        for _ in range(times):
            link.send("word")
            self.hub.clock.advance(TURN)
            self.hub.clock.pump([0] * 3)
        self.hub.words()

    def is_ordinary(self, link: Link) -> bool:
        """True if a word of the connection is handled at once, and not in the rounds."""
        link.send("word")
        at_once = self.hub.words() == ["word"]
        self.hub.clock.pump([0] * 3)
        self.hub.words()
        return at_once


def test_a_peer_whose_messages_cost_much_is_not_ordinary() -> None:
    cpu = Cpu(share=1.0)
    link = cpu.hub.connect()
    cpu.say(link, STRIKES - 1)
    assert cpu.is_ordinary(link)
    assert not cpu.is_ordinary(link)


def test_a_peer_whose_messages_wait_for_a_processor_stays_ordinary() -> None:
    cpu = Cpu(share=0.1)
    link = cpu.hub.connect()
    for _ in range(10):
        cpu.say(link, STRIKES)
        assert cpu.is_ordinary(link)


def test_the_strikes_of_costly_messages_go_while_a_processor_is_scarce() -> None:
    cpu = Cpu(share=1.0)
    link = cpu.hub.connect()
    cpu.say(link, STRIKES)
    assert not cpu.is_ordinary(link)
    cpu.share = 0.0
    cpu.say(link, STRIKES)
    assert cpu.is_ordinary(link)


def test_the_cpu_time_of_a_peer_without_strikes_is_not_read() -> None:
    cpu = Cpu(share=1.0)
    cpu.hub.heard.cost = COSTLY / 2
    cpu.say(cpu.hub.connect(), 10)
    assert cpu.readings == 0
