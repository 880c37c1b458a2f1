"""Streams of the messages of a topic: what a reader gets without messages."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock

from broker.core.topics import Topics
from broker.operate.topic_endpoints import TopicStreams
from broker.rest.messages import KEEP_ALIVE, KEEP_ALIVE_CHECK, WRITES
from tests.operate.test_event_endpoints import Browser

COMMENT = ":\n\n"


def test_a_reader_of_a_silent_topic_gets_a_comment_and_one_that_got_a_message_does_not() -> None:
    clock, topics = Clock(), Topics()
    streams = TopicStreams(topics, clock)
    silent, busy, slow = Browser(), Browser(), Browser()
    streams.add(b"silent", "", silent)
    end = streams.add(b"busy", "", busy)
    streams.add(b"silent", "", slow)
    slow.behind = True
    clock.advance(KEEP_ALIVE - KEEP_ALIVE_CHECK)
    topics.publish(b"busy", (), (b"1",))
    clock.pump([KEEP_ALIVE_CHECK] * 2)
    assert (silent.text, slow.text) == (COMMENT * 2, COMMENT)
    assert busy.text == f'{COMMENT}data: {{"topic":"busy","text":"1"}}\n\n'
    end()
    streams.stop()
    assert (silent.closed, clock.getDelayedCalls()) == (True, [])


def test_comments_to_many_readers_are_written_in_several_turns() -> None:
    clock = Clock()
    streams = TopicStreams(Topics(), clock)
    browsers = [Browser() for _ in range(2 * WRITES)]
    for browser in browsers:
        streams.add(b"silent", "", browser)
    clock.rightNow += KEEP_ALIVE
    for most in (WRITES, 2 * WRITES):
        call: Any = clock.getDelayedCalls()[-1]
        call.func()
        assert sum(browser.text == COMMENT * 2 for browser in browsers) == most
