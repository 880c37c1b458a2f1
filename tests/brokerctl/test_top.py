"""``top``: its keys, its screen, and the whole of it in a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.brokerctl.top import TABLES, Seen, Top, keys, screen
from tests.brokerctl.server import Canned, Recorded, Server, ctl, page
from tests.integration.daemon import ROOT
from tests.patience import PATIENCE

# keys


def test_keys_have_names() -> None:
    assert keys(b"q\x1b[A\x1b[6~\x1bOD\t\x1b[Z\r\x7f\xc3\xa4\x1b\x01") == [
        "q", "up", "page down", "left", "tab", "back tab", "enter", "backspace", "ä", "escape"
    ]  # fmt: skip


@given(st.binary())
def test_any_bytes_are_keys(data: bytes) -> None:
    assert all(keys(data))


# the state


def pressed(top: Top, *names: str) -> Top:
    for name in names:
        top.press(name)
    return top


def test_the_sort_moves_among_the_columns() -> None:
    top = Top(columns=("service", "hostport", "load"))
    assert pressed(top, ">").query()["sort"] == "service"
    assert pressed(top, ">", "right", "r").query()["sort"] == "-load"
    assert pressed(top, ">").query()["sort"] == "-service"
    assert pressed(top, "<").query()["sort"] == "-load"
    assert "sort" not in pressed(top, "u").query()


def test_a_filter_is_typed_and_taken_by_enter_only() -> None:
    top = pressed(Top(offset=5), "/", "w", "q", "backspace", "e")
    assert (top.editing, top.quit, "search" in top.query()) == ("we", False, False)
    assert pressed(top, "enter").query() == {"offset": 0, "limit": 10, "search": "we"}
    assert pressed(top, "/", "*", "enter").query()["search"] == "we*"
    assert pressed(top, "/", "x", "escape").query()["search"] == "we*"
    assert "search" not in pressed(top, "escape").query()


def test_scrolling_stays_within_the_rows() -> None:
    top = Top(page=10)
    top.received({"total": 25})
    assert pressed(top, "page down").offset == 10
    assert pressed(top, "page down", "down").offset == 15
    assert pressed(top, "up").offset == 14
    assert pressed(top, "home", "up").offset == 0
    assert pressed(top, "end").offset == 15
    top.received({"total": 3})
    assert top.offset == 2


def test_another_table_begins_without_sort_and_offset() -> None:
    top = Top(sort="load", descending=True, offset=5, columns=("load",))
    assert top.press("3")
    assert (top.table, top.query()) == (TABLES[2], {"offset": 0, "limit": 10})
    assert pressed(top, "tab").table == TABLES[3]
    assert pressed(top, "back tab", "back tab").table == TABLES[1]


def test_only_keys_that_change_the_question_ask_at_once() -> None:
    top = Top(columns=("a", "b"), total=50)
    assert [top.press(key) for key in ("?", "x", "/", "a", "escape", "+", ">", "down", " ")] == [
        False, False, False, False, False, False, True, True, True
    ]  # fmt: skip
    assert pressed(top, "?", "q").quit


# the screen

ROW = {
    "service": "bank" * 30,
    "hostport": "[::1]:1",
    "provider": 1,
    "protocol": "tcp",
    "check": "failing",
    "load": 0.25,
}


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("height", [6, 24])
@pytest.mark.parametrize("helping", [True, False])
def test_the_screen_fits_the_terminal(width: int, height: int, helping: bool) -> None:
    status = {"version": "1", "uptime": 5e5, "registry": {"providers": 10**6}}
    seen = Seen(status, [ROW] * 100, [{"ready": False}], "http://x", changes=1.5, loading=False)
    lines = screen(Top(helping=helping, filter="x" * 60, total=100), seen, width, height)
    assert len(lines) == height
    assert all(line.cell_len <= width for line in lines)


def test_the_screen_shows_rows_numbers_and_the_sort() -> None:
    seen = Seen({"version": "1.2", "uptime": 61}, [ROW | {"service": "b\x1bnk"}], where="http://x", loading=False)
    text = "\n".join(line.plain for line in screen(Top(sort="load", descending=True, total=1), seen, 80, 24))
    assert "elkobroker 1.2  http://x  up 1m 1s" in text
    assert "b\\x1bnk [::1]:1" in text
    assert "LOAD▼" in text
    assert "1-1 of 1" in text


def test_trouble_is_on_the_screen_with_the_last_rows() -> None:
    seen = Seen({}, [ROW], (), "http://x", "http://x cannot be reached", loading=False)
    lines = screen(Top(), seen, 80, 24)
    assert lines[0].plain == "http://x cannot be reached"
    assert any("[::1]:1" in line.plain for line in lines)


# the whole


class Terminal:
    """``brokerctl top`` in a pseudo-terminal of 80 by 24."""

    def __init__(self, url: str, *words: str) -> None:
        self.fd, inner = pty.openpty()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(inner)
        self.inner = inner
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "ELKOBROKER_URL": url}
        environ.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "broker.brokerctl", "top", "--interval", "0.2", *words],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=environ,
            start_new_session=True,
        )
        self.output = ""

    def press(self, text: str) -> None:
        """Type, and forget what was shown so far."""
        self.output = ""
        os.write(self.fd, text.encode())

    def shows(self, pattern: str) -> str:
        """The output until something is shown."""
        deadline = time.monotonic() + PATIENCE
        while not re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.output)):
            assert time.monotonic() < deadline, self.output
            if select.select([self.fd], [], [], 1.0)[0]:
                self.output += os.read(self.fd, 65536).decode()
        return self.output

    def ended(self) -> int:
        """The exit code; all output is read."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            if select.select([self.fd], [], [], 0.05)[0]:
                self.output += os.read(self.fd, 65536).decode()
        while select.select([self.fd], [], [], 0)[0]:
            self.output += os.read(self.fd, 65536).decode()
        return self.process.returncode

    def is_restored(self) -> bool:
        """True if the terminal is as it was: echo, cursor, and the usual screen."""
        modes = termios.tcgetattr(self.inner)
        return modes[3] == self.before[3] and self.output.rfind("\x1b[?25h") > self.output.rfind("\x1b[?25l")


@contextmanager
def terminal(url: str, *words: str) -> Iterator[Terminal]:
    """A terminal for a while."""
    found = Terminal(url, *words)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()
        os.close(found.fd)
        os.close(found.inner)


def farm(server: Server) -> None:
    names = [f"service-{number:03}" for number in range(60)]

    def services(request: Recorded) -> Canned:
        query: Mapping[str, Any] = request.query
        part = query.get("search", [""])[0]
        found = [name for name in names if part in name]
        if query.get("sort", [""])[0].startswith("-"):
            found.reverse()
        offset, limit = int(query["offset"][0]), int(query["limit"][0])
        rows = [{"service": name, "hostport": "h:1", "provider": 1} for name in found[offset : offset + limit]]
        return Canned(page(*rows, total=len(found)))

    server.answer("/v1/services", services)
    server.answer("/v1/providers", page({"provider": 7, "label": "seven"}))
    # DBP is one listener with two sockets.
    sockets = [{"wire": "dbp", "address": "tcp://h:1"}, {"wire": "dbp", "name": "heartbeats", "address": "h:1"}]
    server.answer("/v1/status", {"version": "1.2.3", "uptime": 5.0, "registry": {"services": 60}, "listeners": sockets})
    server.answer("/v1/listeners", page({"name": "dbp", "ready": True}, {"name": "mtl", "ready": False}))


def test_top_sorts_filters_scrolls_and_quits(server: Server) -> None:
    farm(server)
    with terminal(server.url) as top:
        shown = top.shows("1-19 of 60")
        top.shows("listeners 1/2 ")
        assert "service-018" in shown
        assert "service-019" not in shown
        top.press(">r")
        top.shows("SERVICE▼")
        top.shows("service-059")
        top.press("/-03\r")
        top.shows(r"1-10 of 10  filter -03")
        top.press("2")
        top.shows("seven")
        top.press("?")
        top.shows("choose the column to sort by")
        top.press("q")
        assert top.ended() == 0
        assert top.is_restored()
    # The broker sends no more than is on the screen.
    asked = [request for request in server.requests if request.path in ("/v1/services", "/v1/providers")]
    assert {request.query["limit"][0] for request in asked} == {"19"}


def test_ctrl_c_ends_top_in_order(server: Server) -> None:
    farm(server)
    with terminal(server.url) as top:
        top.shows("1-19 of 60")
        top.process.send_signal(signal.SIGINT)
        assert top.ended() == 130
        assert top.is_restored()
        assert "Traceback" not in top.output


def test_top_goes_on_when_the_broker_comes_back(server: Server) -> None:
    farm(server)
    with terminal(server.url) as top:
        top.shows("1-19 of 60")
        server.answer("/v1/status", Canned(b"", 503, "text/plain"))
        top.shows("answers 503 Service Unavailable")
        top.press("")
        farm(server)
        top.shows("elkobroker 1.2.3")


def test_top_does_not_begin_without_a_broker_or_a_terminal(server: Server) -> None:
    with terminal("http://127.0.0.1:1") as top:
        assert top.ended() == 3
        assert "\x1b[?1049h" not in top.output
    result = ctl("--url", server.url, "top")
    assert result.exit_code == 2
    assert "top needs a terminal" in result.stderr
