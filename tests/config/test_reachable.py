"""Other machines reach no listener without a users file."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.app.configuration import SCHEMA, parse
from broker.config.daemon_settings import OPEN_FILE
from broker.config.key_checks import BadConfig
from tests.access.users import put
from tests.config.command_line import configured

ELSEWHERE = {
    "elko": '[[elko.listeners]]\nendpoint = "tcp:0"',
    "director": '[director]\n[[director.listeners]]\nendpoint = "tcp:0"',
    "console": '[console]\nendpoint = "tcp:0"',
    "mc0": '[mc0]\nendpoint = "tcp://*:0"',
    "dbp": '[dbp]\nendpoint = "tcp://*:5246"\nbeacon = []',
    "mtl": '[mtl]\nendpoint = "tcp://*:0"',
    "dns": '[dns]\nenabled = true\nendpoint = "tcp:9053"',
    "http": '[http]\nendpoint = "tcp:0"',
}
"""For each section with a listener, a configuration that binds it to all addresses and says no more."""


def test_each_section_with_a_listener_is_tested() -> None:
    listening = {section.name for section in SCHEMA.sections if any(section.bindings(section.default))}
    assert listening <= ELSEWHERE.keys()


@pytest.mark.parametrize("section", ELSEWHERE)
def test_a_listener_that_others_can_reach_needs_a_users_file(section: str) -> None:
    with pytest.raises(
        BadConfig,
        match=rf"x.toml:\d: {section}\S*endpoint: \S+ can be reached from other machines: this needs a users file",
    ):
        parse(ELSEWHERE[section], "x.toml")


@pytest.mark.parametrize("section", ELSEWHERE)
def test_with_a_users_file_it_opens(section: str) -> None:
    parse(f'{ELSEWHERE[section]}\n[access]\nfile = "{OPEN_FILE}"\n', "x.toml")


def test_so_it_does_by_an_option_and_nothing_is_open_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert configured("--bind", "0.0.0.0", "--open").access.file == OPEN_FILE
    with pytest.raises(SystemExit):
        configured("--bind", "0.0.0.0")
    assert "0.0.0.0:9000 can be reached from other machines" in capsys.readouterr().err


def test_the_option_does_not_replace_a_users_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    users = put(tmp_path / "users.toml", "nobody = true\n")
    (tmp_path / "x.toml").write_text(f'[access]\nfile = "{users}"\n')
    with pytest.raises(SystemExit):
        configured("--config", str(tmp_path / "x.toml"), "--open")
    assert f"--open: the users file is {users}, by access.file" in capsys.readouterr().err
    (tmp_path / "x.toml").write_text('[mc0]\nendpoint = "tcp://*:0"\n')
    assert configured("--config", str(tmp_path / "x.toml"), "--open").access.file == OPEN_FILE
