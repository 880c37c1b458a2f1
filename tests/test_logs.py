"""The format of log lines, and the destination that twistd is given for them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import pytest
from twisted.application.service import Application, IServiceCollection, Service
from twisted.logger import ILogObserver, Logger, LogPublisher
from twisted.python import log as oldstyle
from twisted.python.failure import Failure
from zope.interface import implementer
from zope.interface.verify import verifyObject

from broker.core.operator_interfaces import LevelName
from broker.logs.log_destination import LoggedService, install, observer
from broker.logs.log_lines import MAX_MESSAGE, MAX_TRACEBACK, Format, LogControl
from broker.logs.log_writer import Stream
from tests.patience import PATIENCE

# 2026-03-04 05:06:07.089 UTC
WHEN = 1_772_600_767.089


class Log:
    """A logger whose events go through an observer of ours."""

    def __init__(self, format: Format, level: LevelName = "info", out: IO[str] | None = None) -> None:
        self.level = LogControl(format, level)
        self.out: Any = io.StringIO() if out is None else out
        observer_ = observer(self.level, Stream(self.out))
        verifyObject(ILogObserver, observer_)

        @implementer(ILogObserver)
        def at_that_time(event: dict[str, Any]) -> None:
            event["log_time"] = WHEN
            observer_(event)

        self.publisher = LogPublisher(at_that_time)
        self.logger = Logger("broker.test", observer=self.publisher)
        self.oldstyle = oldstyle.LogPublisher(observerPublisher=self.publisher, publishPublisher=self.publisher)

    def lines(self) -> list[str]:
        text: str = self.out.getvalue()
        assert text == "" or text.endswith("\n")
        return text.split("\n")[:-1]

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines()]


def failure(text: str) -> Failure:
    try:
        raise ValueError(text)
    except ValueError:
        return Failure()


def test_text_is_time_level_namespace_message() -> None:
    log = Log("text")
    log.logger.warn("{peer} sends {what}", peer="10.0.0.1", what="nonsense")
    assert log.lines() == ["2026-03-04T05:06:07.089Z warn broker.test 10.0.0.1 sends nonsense"]


def test_json_has_the_same_and_the_plain_fields() -> None:
    log = Log("json")
    log.logger.warn("{peer} sends {count}", peer="10.0.0.1", count=3, part=0.5, odd=True, none=None, obj=object())
    assert log.records() == [
        {
            "time": "2026-03-04T05:06:07.089Z",
            "level": "warn",
            "namespace": "broker.test",
            "message": "10.0.0.1 sends 3",
            "peer": "10.0.0.1",
            "count": 3,
            "part": 0.5,
            "odd": True,
            "none": None,
        }
    ]


def test_fields_that_are_no_json_or_would_hide_the_events_own_are_left_out() -> None:
    log = Log("json")
    log.logger.info("m", nan=float("nan"), much=float("inf"), huge=1 << 70, time="x", namespace="x", message="x")
    [record] = log.records()
    assert record == {
        "time": "2026-03-04T05:06:07.089Z",
        "level": "info",
        "namespace": "broker.test",
        "message": "m",
    }


NASTY = [
    ("a\n2026-03-04T05:06:07.089Z info broker.test forged", r"a\n2026-03-04T05:06:07.089Z info broker.test forged"),
    ("a\r\tb\0", r"a\r\tb\x00"),
    ("\x1b[2J\x7f\x9b", r"\x1b[2J\x7f\x9b"),
    ("\u2028\u2029\x85\x0b", r"\u2028\u2029\x85\x0b"),
    ("\u202eright to left", r"\u202eright to left"),
    ("\ud800 alone", r"\ud800 alone"),
    ("grüße 😀", "grüße 😀"),
]


@pytest.mark.parametrize(("sent", "written"), NASTY)
def test_text_of_a_peer_stays_in_its_line_of_text(sent: str, written: str) -> None:
    log = Log("text")
    log.logger.info("{sent}", sent=sent)
    assert log.lines() == [f"2026-03-04T05:06:07.089Z info broker.test {written}"]


@pytest.mark.parametrize("sent", [sent for sent, _ in NASTY])
def test_text_of_a_peer_stays_in_its_line_of_json_and_is_not_changed(sent: str) -> None:
    log = Log("json")
    log.logger.info("{sent}", sent=sent)
    [line] = log.lines()
    assert line.isascii()
    assert line.isprintable()
    record = json.loads(line)
    assert record["message"] == record["sent"] == sent


def test_a_namespace_is_escaped_too() -> None:
    log = Log("text")
    Logger("program.a\nb", observer=log.publisher).info("x")
    assert log.lines() == [r"2026-03-04T05:06:07.089Z info program.a\nb x"]


def test_the_lines_of_a_traceback_in_text_cannot_be_taken_for_events() -> None:
    log = Log("text")
    log.logger.failure("it broke", failure("bad\n2026-03-04T05:06:07.089Z info broker.test forged\x1b[2J"))
    head, *rest = log.lines()
    assert head == "2026-03-04T05:06:07.089Z critical broker.test it broke"
    assert rest
    assert all(line.startswith("\t") and line[1:].isprintable() for line in rest)
    assert any("ValueError: bad" in line for line in rest)


def test_a_traceback_in_json_is_one_field() -> None:
    log = Log("json")
    log.logger.failure("it broke", failure("bad\nvalue"))
    [record] = log.records()
    assert (record["level"], record["message"]) == ("critical", "it broke")
    assert "ValueError: bad\nvalue" in record["traceback"]


@pytest.mark.parametrize("why", ["opening", None])
def test_an_old_style_failure_has_its_traceback_once(why: str | None) -> None:
    log = Log("json")
    log.oldstyle.msg(failure=failure("bad"), why=why, isError=1)
    [record] = log.records()
    assert record["message"] == (why or "Unhandled Error")
    assert record["level"] == "critical"
    assert "ValueError: bad" in record["traceback"]
    assert set(record) == {"time", "level", "namespace", "message", "traceback"}


def test_an_old_style_message_is_written() -> None:
    log = Log("json")
    log.oldstyle.msg("starting", "now", system="x")
    [record] = log.records()
    assert record == {
        "time": "2026-03-04T05:06:07.089Z",
        "level": "info",
        "namespace": "log_legacy",
        "message": "starting now",
    }


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


@pytest.mark.parametrize("format", ["text", "json"])
def test_an_event_that_cannot_be_formatted_is_written_all_the_same(format: Format) -> None:
    log = Log(format)
    log.logger.info("{missing} and {it}", it=Unprintable())
    log.logger.failure("it broke", Failure(Unprintable()))
    text = "\n".join(log.lines())
    assert "broker.test" in text
    assert "it broke" in text


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_line_has_a_limit(format: Format) -> None:
    log = Log(format)
    log.logger.failure("{sent}", failure("y" * 10 * MAX_TRACEBACK), sent="x" * 10 * MAX_MESSAGE)
    text = log.out.getvalue()
    assert f"({9 * MAX_MESSAGE} more)" in text
    assert len(text) < 48 * 1024


def test_the_level_can_be_changed_at_any_time() -> None:
    log = Log("text", "warn")
    written = []
    for level in ("warn", "debug", "error", "info"):
        log.level.change(level, {})  # type: ignore[arg-type]
        for method in ("debug", "info", "warn", "error", "critical"):
            getattr(log.logger, method)(method)
        written.append([line.split()[-1] for line in log.lines()])
        log.out.truncate(0)
        log.out.seek(0)
    assert written == [
        ["warn", "error", "critical"],
        ["debug", "info", "warn", "error", "critical"],
        ["error", "critical"],
        ["info", "warn", "error", "critical"],
    ]


def test_a_character_that_the_terminal_lacks_does_not_cost_the_event() -> None:
    raw = io.BytesIO()
    log = Log("text", out=io.TextIOWrapper(raw, encoding="latin-1"))
    log.logger.info("grüße 😀")
    assert raw.getvalue() == "2026-03-04T05:06:07.089Z info broker.test grüße \\U0001f600\n".encode("latin-1")


# twistd


def installed(twistd: Mapping[str, Any]) -> Any:
    application = Application("elkobroker")
    install(application, twistd, LogControl("json"))
    return application.getComponent(ILogObserver)


@pytest.mark.parametrize(
    "twistd", [{"nodaemon": True, "logger": print}, {"nodaemon": True, "syslog": True}, {"nodaemon": 0, "logfile": "-"}]
)
def test_what_the_user_asks_of_twistd_is_left_to_twistd(twistd: dict[str, Any]) -> None:
    assert installed(twistd) is None


def test_in_the_foreground_it_is_the_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    Logger("broker.test", observer=installed({"nodaemon": True, "logfile": None})).info("hello")
    Logger("broker.test", observer=installed({"nodaemon": True, "logfile": "-"})).info("again")
    assert [json.loads(line)["message"] for line in capsys.readouterr().out.splitlines()] == ["hello", "again"]


def test_a_log_file_gets_our_format_in_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "it.log"
    application = Application("elkobroker")
    install(application, {"nodaemon": True, "logfile": str(path)}, LogControl("text"))
    Logger("broker.test", observer=application.getComponent(ILogObserver)).info("grüße")
    assert path.read_text("utf-8").endswith(" info broker.test grüße\n")


def test_a_daemon_logs_to_twistds_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Logger("broker.test", observer=installed({"nodaemon": 0, "logfile": None})).info("hello")
    assert json.loads((tmp_path / "twistd.log").read_text())["message"] == "hello"


def test_a_log_file_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "it.log"
    with pytest.raises(SystemExit, match=r"^elkobroker: cannot write the log file .*it\.log: No such file") as refused:
        installed({"nodaemon": True, "logfile": str(path)})
    assert isinstance(refused.value.code, str)


def test_the_root_service_holds_the_daemon_and_installs_the_log() -> None:
    application, daemon = Application("elkobroker"), Service()
    root = LoggedService(daemon, {"nodaemon": True}, LogControl("json"))
    root.setServiceParent(application)
    assert list(IServiceCollection(application)) == [root]
    assert list(root) == [daemon]
    assert application.getComponent(ILogObserver) is not None


PLUGIN = """
from twisted.application.service import Service
from twisted.logger import Logger
from twisted.python import usage
from broker.logs.log_lines import LogControl
from broker.logs.log_destination import LoggedService

class Options(usage.Options):
    pass

class Daemon(Service):
    def startService(self):
        super().startService()
        from twisted.internet import reactor
        Logger("broker.test").info("one\\ntwo", peer="10.0.0.1")
        print("printed")
        reactor.callWhenRunning(reactor.stop)

def makeService(options):
    return LoggedService(Daemon(), options.parent, LogControl("json"))
"""


@pytest.mark.parametrize("to", ["stdout", "file"])
def test_twistd_logs_json_lines(tmp_path: Path, to: str) -> None:
    plugins = tmp_path / "twisted" / "plugins"
    plugins.mkdir(parents=True)
    (tmp_path / "logs_under_test.py").write_text(PLUGIN)
    (plugins / "logs_under_test_plugin.py").write_text(
        "from twisted.application.service import ServiceMaker\n"
        "it = ServiceMaker('it', 'logs_under_test', 'it', 'logs-under-test')\n"
    )
    root = Path(__file__).parent.parent
    arguments = ["--logfile", "it.log"] if to == "file" else []
    run = subprocess.run(
        _twistd(*arguments),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    written = (tmp_path / "it.log").read_text() if to == "file" else run.stdout
    records = [json.loads(line) for line in written.splitlines()]
    [ours] = [record for record in records if record["namespace"] == "broker.test"]
    assert (ours["level"], ours["message"], ours["peer"]) == ("info", "one\ntwo", "10.0.0.1")
    assert [r["message"] for r in records if r["namespace"] == "stdout"] == ["printed"]
    assert records[-1]["message"] == "Server Shut Down."


def _twistd(*arguments: str) -> list[str]:
    run = "from twisted.scripts.twistd import run; run()"
    return [sys.executable, "-c", run, "-n", *arguments, "logs-under-test"]
