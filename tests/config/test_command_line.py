"""The command line: what it makes of the configuration, before anything is started."""

from __future__ import annotations

import platform
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest
from twisted.python.usage import UsageError

from broker.app.configuration import Config
from broker.config.daemon_settings import Console
from broker.tap import Options
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.mc0.mc0_settings import Mc0
from tests.config.command_line import configured
from tests.integration.daemon import environment, twistd
from tests.patience import PATIENCE


def test_without_options_it_is_the_defaults() -> None:
    assert configured() == Config()


@pytest.mark.parametrize(
    ("port", "mc0"),
    [
        ("7000", Mc0(endpoint="tcp://127.0.0.1:7000")),
        ("0", Mc0(endpoint="tcp://127.0.0.1:0")),
        ("off", Mc0(enabled=False)),
    ],
)
def test_the_port_of_mc0(port: str, mc0: Mc0) -> None:
    assert configured("--mc0-port", port) == Config(mc0=mc0)


@pytest.mark.parametrize(
    ("port", "dbp"),
    [
        ("7000", Dbp(endpoint="tcp://127.0.0.1:7000")),
        ("0", Dbp(endpoint="tcp://127.0.0.1:0")),
        ("off", Dbp(enabled=False)),
    ],
)
def test_the_port_of_dbp(port: str, dbp: Dbp) -> None:
    assert configured("--dbp-port", port) == Config(dbp=dbp)


def test_the_port_of_the_elko_listener_leaves_the_others_alone() -> None:
    config = configured("--port", "7000")
    assert config.elko != Config().elko
    assert (config.mc0, config.dbp, config.console) == (Mc0(), Dbp(), Console())


def test_the_port_goes_before_the_file_which_keeps_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[mc0]\nendpoint = "tcp://[::1]:1"\nsessions = 5\n')
    given = configured("--config", str(file), "--mc0-port", "2").mc0
    assert given == Mc0(endpoint="tcp://127.0.0.1:2", sessions=5)
    file.write_text("[mc0]\nenabled = false\n")
    assert configured("--config", str(file), "--mc0-port", "2").mc0 == Mc0(endpoint="tcp://127.0.0.1:2")


def test_the_port_of_dbp_goes_before_both_ports_in_the_file_which_keeps_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[dbp]\nendpoint = "tcp://127.0.0.2:1"\nudp_port = 3\nbeacon = []\nservices = 5\n')
    given = configured("--config", str(file), "--dbp-port", "2").dbp
    assert given == Dbp(endpoint="tcp://127.0.0.1:2", beacon=(), services=5)
    file.write_text("[dbp]\nenabled = false\n")
    assert configured("--config", str(file), "--dbp-port", "2").dbp == Dbp(endpoint="tcp://127.0.0.1:2")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--mc0-port", "x"), "command line: --mc0-port: 'x' is no port, nor 'off'\n"),
        (("--mc0-port", ""), "command line: --mc0-port: '' is no port, nor 'off'\n"),
        (("--mc0-port", "-1"), "command line: --mc0-port: '-1' is no port, nor 'off'\n"),
        (
            ("--mc0-port", "65536"),
            "command line: mc0.endpoint: port must be a number between 0 and 65535, not '65536'\n",
        ),
        (
            ("--mc0-port", "9001"),
            "command line: console.endpoint: 127.0.0.1:9001 is taken by mc0.endpoint\n",
        ),
        (
            ("--port", "61616"),
            "command line: mc0.endpoint: 127.0.0.1:61616 is taken by elko.listeners[0].endpoint\n",
        ),
        (("--dbp-port", "x"), "command line: --dbp-port: 'x' is no port, nor 'off'\n"),
        (
            ("--dbp-port", "5245"),
            "command line: dbp.endpoint: heartbeats would arrive on UDP port 5245, since there is no udp_port; but "
            "that is where peers wait for the beacon: were the broker bound to it, those on this machine could not "
            "find it\n",
        ),
        (
            ("--dbp-port", "61616"),
            "command line: dbp.endpoint: 127.0.0.1:61616 is taken by mc0.endpoint\n",
        ),
        (("--console-port", "x"), "command line: --console-port: 'x' is no port, nor 'off'\n"),
        (("--log-level", "htpp"), 'command line: --log-level: must be "debug" or "info" or "warn" or "error"\n'),
        (("--log-format", "jsn"), 'command line: --log-format: must be "text" or "json"; did you mean "json"?\n'),
    ],
)
def test_what_is_wrong_is_told_and_ends_it(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        configured(*words)
    assert ended.value.code == 1
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    "value", ["htpp", "", "-1", "99999999999", "1.5", "a\0b", "[", "x" * 5_000, "é\udcff", "tcp:1"]
)
@pytest.mark.parametrize("option", [names[0] for names in Options.optParameters])
def test_any_value_of_an_option_is_used_or_refused(option: str, value: str) -> None:
    with suppress(UsageError), pytest.raises(SystemExit):
        configured(f"--{option}", value, "--check")


def test_check_says_what_the_ports_come_to(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        configured("--mc0-port", "7000", "--dbp-port", "7001", "--check")
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "mc0: bound to tcp 127.0.0.1:7000\n" in told
    assert "dbp: bound to tcp 127.0.0.1:7001, udp 7001, beacon 127.255.255.255:5245\n" in told


def test_the_version_is_the_brokers_and_says_what_it_runs_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        configured("--version")
    assert ended.value.code == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(f"elkobroker {metadata.version('elkobroker')} (Python {platform.python_version()}, ")
    for name in ("Twisted", "msgspec", "pyzmq"):
        assert f", {name} {metadata.version(name)}, " in line
    assert ", libzmq " in line


def test_a_check_without_certificates_imports_no_cryptography() -> None:
    """It would be a tenth of the time of a start."""
    code = (
        "import sys; from broker.tap import Options; options = Options();"
        "options.parseOptions([]);"
        "print(sorted({'cryptography', 'OpenSSL', 'twisted.internet.reactor'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("option", ["--example", "--check", "--help", "--version"])
def test_on_a_full_disk_the_output_is_a_failure_in_a_sentence(option: str) -> None:
    command = [twistd(), "elkobroker", option]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env=environment(), text=True, timeout=PATIENCE, check=False
        )
    assert (done.returncode, done.stderr) == (
        1,
        "elkobroker: the output cannot be written: no space left on device\n",
    )
