"""No listener is open beyond this machine unless the configuration says so."""

from __future__ import annotations

import pytest

from broker.app.configuration import SCHEMA, parse
from broker.config.errors import BadConfig

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
def test_a_listener_that_others_can_reach_must_say_how_peers_authenticate(section: str) -> None:
    with pytest.raises(BadConfig, match=rf"{section}\S* is required, since \S+ can be reached from elsewhere"):
        parse(ELSEWHERE[section], "x.toml")


@pytest.mark.parametrize("section", ["elko", "director", "console", "mc0", "mtl"])
def test_users_need_a_users_file(section: str) -> None:
    text = ELSEWHERE[section] + '\nauth = "users"\n'
    if section == "mc0":
        text += f'secret_key = "{"0" * 40}"\n'
    with pytest.raises(BadConfig, match=rf'{section}\S*auth: "users" needs a users file: set access.file'):
        parse(text, "x.toml")
