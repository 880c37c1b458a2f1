"""Levels of the log by wire and module, ids of conversations, and the journal of systemd."""

from __future__ import annotations

import io
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import LogLevel, PredicateResult
from twisted.python.failure import Failure

from broker.core.errors import Reason, Refusal
from broker.core.operator_interfaces import LogLevels
from broker.logs.log_destination import Journal, datagram, prefixed, streams_to_journal
from broker.logs.log_lines import MAX_EXCEPTIONS, LogControl, json_line, text_lines

WIRES = ("elko", "mtl", "console")


def event(level: Any = "info", namespace: Any = "broker.core.registry.Registry", **fields: Any) -> dict[str, Any]:
    """An event as a logger makes it."""
    named = LogLevel.levelWithName(level)
    return {"log_level": named, "log_namespace": namespace, "log_format": "{text}", "text": "hello", **fields}


def written(control: LogControl, **fields: Any) -> bool:
    return control(event(**fields)) is PredicateResult.yes


def test_the_longest_module_applies_and_a_wire_before_all() -> None:
    control = LogControl(wires=WIRES)
    control.change("warn", {"broker": "error", "broker.net": "info", "mtl": "debug"})
    assert not written(control, level="warn", namespace="broker.core.registry.Registry")
    assert written(control, level="info", namespace="broker.net.tls.Certificates")
    assert not written(control, level="info", namespace="broker.network")
    assert written(control, level="debug", namespace="broker.wires.mtl.mtl_wire.OpenMtl")
    assert written(control, level="debug", namespace="broker.net.refusal_log.RefusalLog", wire="mtl")
    assert written(control, level="debug", namespace="broker.core.topics", conversation="mtl-7")
    assert not written(control, level="debug", namespace="broker.core.topics", conversation="elko-7")
    assert not written(control, level="info", namespace="twisted.web")


def test_levels_change_and_exceptions_go() -> None:
    control = LogControl("text", "info", {"elko": "debug"}, WIRES)
    assert control.change(None, {"mtl": "error"}) == LogLevels("info", {"elko": "debug", "mtl": "error"})
    assert control.change("warn", {"elko": None, "broker.net": None}) == LogLevels("warn", {"mtl": "error"})
    control.use("json", "error", {})
    assert (control.levels, control.format) == (LogLevels("error"), "json")


@pytest.mark.parametrize("name", ["nowhere", "", "broker.", "broker net", "Mtl", "x" * 1_000])
def test_a_name_that_is_no_wire_and_no_module_is_refused(name: str) -> None:
    control = LogControl(wires=WIRES)
    with pytest.raises(Refusal) as refused:
        control.change("debug", {name: "debug"})
    assert refused.value.reason is Reason.PARAMETER
    assert control.levels == LogLevels("info")


def test_exceptions_are_bounded() -> None:
    control = LogControl(wires=WIRES)
    with pytest.raises(Refusal) as refused:
        control.change(None, {f"broker.m{number}": "debug" for number in range(MAX_EXCEPTIONS + 1)})
    assert refused.value.reason is Reason.LIMIT
    assert control.levels == LogLevels("info")


def test_each_event_of_a_conversation_has_its_id() -> None:
    control = LogControl(wires=WIRES)
    about, other = event(), event(conversation="mtl-3")
    control.follow(lambda: "elko-17")
    control(about)
    control(other)
    assert (about["conversation"], other["conversation"]) == ("elko-17", "mtl-3")
    assert text_lines(about) == "- info broker.core.registry.Registry [elko-17] hello\n"
    assert '"conversation":"elko-17"' in json_line(about)
    control.follow(lambda: "")
    outside = event()
    control(outside)
    assert "conversation" not in outside


def test_an_event_in_a_request_has_the_id_of_both() -> None:
    control = LogControl(wires=WIRES)
    about, other = event(), event(request_id="theirs")
    control.follow(lambda: "http-17", lambda: "mine")
    control(about)
    control(other)
    assert (about["request_id"], other["request_id"]) == ("mine", "theirs")
    assert text_lines(about) == "- info broker.core.registry.Registry [http-17 mine] hello\n"
    assert text_lines(event(request_id="mine")) == "- info broker.core.registry.Registry [mine] hello\n"
    assert fields(datagram(about))["ELKOBROKER_REQUEST_ID"] == "mine"


# the journal


def fields(data: bytes) -> dict[str, str]:
    """The fields of a datagram, as journald reads them."""
    found = {}
    while data:
        line, _, rest = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + size], rest[8 + size :]
            assert rest.startswith(b"\n")
            rest = rest[1:]
        found[name.decode()] = value.decode()
        data = rest
    return found


def test_an_event_is_a_datagram_of_fields() -> None:
    about = {**event("warn", conversation="elko-17", wire="elko"), "odd-näme": 5}
    assert fields(datagram(about)) == {
        "MESSAGE": "hello",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "elkobroker",
        "ELKOBROKER_NAMESPACE": "broker.core.registry.Registry",
        "ELKOBROKER_TEXT": "hello",
        "ELKOBROKER_CONVERSATION": "elko-17",
        "ELKOBROKER_WIRE": "elko",
        "ELKOBROKER_ODD_N_ME": "5",
    }


def test_text_of_a_peer_makes_no_field() -> None:
    found = fields(datagram(event(text="x\nPRIORITY=0\nMESSAGE=forged\udcff")))
    assert (found["PRIORITY"], found["MESSAGE"]) == ("6", "x\\nPRIORITY=0\\nMESSAGE=forged\\udcff")
    assert found["ELKOBROKER_TEXT"].startswith("x\nPRIORITY=0\n")


def test_a_traceback_is_one_field() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        found = fields(datagram(event("critical", log_failure=Failure())))
    assert found["PRIORITY"] == "2"
    assert "ValueError: two\nlines" in found["ELKOBROKER_TRACEBACK"]


def test_events_go_to_the_socket_and_without_one_to_the_output(tmp_path: Path) -> None:
    path, out = str(tmp_path / "socket"), io.StringIO()
    journal = Journal(out, path)
    assert journal.write([datagram(event("error", conversation="elko-17"))]) == 0
    assert out.getvalue() == "<3>broker.core.registry.Registry [elko-17] hello\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        assert journal.write([datagram(event()), "text\n"]) == 0
        assert fields(server.recv(65_536))["MESSAGE"] == "hello"
    assert out.getvalue().splitlines()[1:] == ["text"]


def test_each_line_has_its_priority() -> None:
    try:
        raise ValueError("x")
    except ValueError:
        lines = prefixed(datagram(event("critical", log_failure=Failure()))).splitlines()
    assert len(lines) > 2
    assert all(line.startswith("<2>") for line in lines)


def test_the_stream_to_the_journal_is_recognised_by_its_inode(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        status = os.fstat(out.fileno())
        here = f"{status.st_dev}:{status.st_ino}"
        assert streams_to_journal({"JOURNAL_STREAM": here}, out)
        for other in ({}, {"JOURNAL_STREAM": "8:1"}, {"JOURNAL_STREAM": "x"}, {"JOURNAL_STREAM": f"{here}0"}):
            assert not streams_to_journal(other, out)
        assert not streams_to_journal({"JOURNAL_STREAM": here}, io.StringIO())
