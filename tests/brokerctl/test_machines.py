"""The machines of `brokerctl cluster init`: names of hosts and addresses, as the configuration has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.brokerctl.server import ctl


def test_the_address_of_a_machine_is_in_brackets_in_front_of_a_port(tmp_path: Path) -> None:
    out = tmp_path / "cluster"
    machines = ("a=[2001:db8::1]", "2001:db8::2", "10.0.0.3", "c.example.org")
    result = ctl("cluster", "init", *machines, "--out", out)
    assert result.exit_code == 0, result.output
    members = 'members = ["a=[2001:db8::1]", "2001-db8--2=[2001:db8::2]", "10.0.0.3=10.0.0.3", "c=c.example.org"]'
    assert members in (out / "a" / "elkobroker.toml").read_text()


@pytest.mark.parametrize(
    "machine",
    [
        "a=h:9000",
        "[2001:db8::1]:9000",
        "a=[2001:db8::1",
        "a=[h]",
        "a=[10.0.0.3]",
        "a=[fe80::1%eth0]",
        "a=[]",
        "a=b]c",
        "a=",
        "a=1:2",
    ],
)
def test_a_host_with_a_port_or_other_brackets_is_no_machine(tmp_path: Path, machine: str) -> None:
    out = tmp_path / "cluster"
    result = ctl("cluster", "init", machine, "b", "--out", out)
    assert (result.exit_code, out.exists()) == (2, False)
    assert result.stderr == f"brokerctl: {machine!r} is no machine: give HOST or NAME=HOST\n"
