"""Some rounds of faults with real brokers and the real etcd, on hosts made of network namespaces.

``python -m tests.cluster.farm.rounds`` runs a hundred of them with a thousand providers, and repeats those of a seed. A
failure shows the round's line, and the end of the brokers' logs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration.daemon import ROOT
from tests.packages import need_namespaces, program

LIMIT = 600
"""Seconds after which the rounds are ended: ten times what they take."""


@pytest.fixture(autouse=True)
def needed() -> None:
    """Require the programs and namespaces that the rounds need."""
    for each in ("etcd", "ip", "nft", "faketime"):
        program(each)
    need_namespaces()


def rounds(directory: Path, *options: str) -> list[dict[str, Any]]:
    """Run rounds, in which nothing may be wrong. Returns their lines."""
    command = [sys.executable, "-m", "tests.cluster.farm.rounds", "--directory", str(directory), *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    logs = {each.parent.name: each.read_text(errors="replace")[-3000:] for each in directory.glob("?/log")}
    if ended.returncode:
        # Not an assertion, whose text pytest shortens.
        pytest.fail("\n".join([ended.stdout, ended.stderr[-3000:], *(f"{name}: {log}" for name, log in logs.items())]))
    assert running(directory) == []
    return [line for line in map(json.loads, ended.stdout.splitlines()) if "round" in line]


def running(directory: Path) -> list[bytes]:
    """Return the command lines of all processes that name the directory."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(each.read_bytes())
    return [line for line in found if str(directory).encode() in line]


@pytest.mark.long
def test_a_broker_that_is_cut_off_and_one_that_is_killed(tmp_path: Path) -> None:
    [line] = rounds(tmp_path, "--seed", "968", "--rounds", "1", "--providers", "40", "--ttl", "5")
    assert [each.split()[:3] for each in line["faults"]] == [["cut", "broker", "b"], ["kill", "broker", "c"]]
    assert line["looks"]
    assert line["moves"]
    assert line["confirmed"]
    assert line["received"]


@pytest.mark.long
def test_after_each_round_of_faults_all_registries_are_equal(tmp_path: Path) -> None:
    done = rounds(tmp_path, "--seed", "6", "--rounds", "2", "--providers", "60", "--ttl", "5")
    assert len(done) == 2
    assert all(line["looks"] and line["moves"] and line["confirmed"] and line["received"] for line in done)


@pytest.mark.long
def test_an_upgrade_of_one_broker_after_the_other_loses_nothing(tmp_path: Path) -> None:
    """Providers of all wires are found all the time, and each confirmed message of a queue arrives once."""
    done = rounds(tmp_path, "--upgrade", "--seed", "8", "--providers", "60", "--ttl", "6")
    assert [each.split()[:3] for line in done for each in line["faults"]] == [
        ["restart", "broker", each] for each in "abc"
    ]
    assert all(line["looks"] and line["moves"] and line["confirmed"] and line["received"] for line in done)


@pytest.mark.long
def test_nothing_depends_on_the_clocks_of_the_brokers(tmp_path: Path) -> None:
    """One broker is three hours ahead, and its clock is too fast; another one is two days behind."""
    done = rounds(tmp_path, "--seed", "7", "--rounds", "1", "--providers", "24", "--ttl", "5", "--skew")
    assert len(done) == 1
