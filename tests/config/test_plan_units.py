"""The systemd units of the hourly plan agree with the broker's own, and systemd knows what they say."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

from tests.packages import program
from tests.patience import PATIENCE

UNITS = Path(__file__).parents[2] / "etc" / "systemd"
PLAN = ("elkobroker-plan.service", "elkobroker-plan.timer")


def unit(name: str) -> configparser.ConfigParser:
    """A unit's sections. Of a setting that is given more than once, the last one."""
    found = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    found.read_string((UNITS / name).read_text())
    return found


def test_the_plan_is_made_of_the_brokers_own_journal_by_the_brokers_user() -> None:
    broker, plan = unit("elkobroker.service")["Service"], unit("elkobroker-plan.service")["Service"]
    for key in ("User", "DynamicUser", "StateDirectory", "StateDirectoryMode", "UMask"):
        assert plan[key] == broker[key]
    words = plan["ExecStart"].split()
    assert Path(words[0]).parent == Path(broker["ExecStart"].split()[0]).parent
    assert words[1:4] == ["-m", "spark.capacity", "run"]
    state = f"/var/lib/{broker['StateDirectory']}"
    assert words[4:] == ["--journal", f"{state}/journal", "--out", f"{state}/plan"]
    assert unit("elkobroker-plan.service")["Unit"]["ConditionPathIsDirectory"] == f"{state}/journal"


def test_the_plan_gives_way_to_the_broker() -> None:
    plan = unit("elkobroker-plan.service")["Service"]
    assert int(plan["Nice"]) > 0
    assert int(plan["CPUWeight"]) < 100
    assert int(plan["OOMScoreAdjust"]) > 0


def test_the_timer_fires_each_hour_after_its_segments_are_sealed_and_makes_up_for_missed_ones() -> None:
    timer = unit("elkobroker-plan.timer")["Timer"]
    assert timer["OnCalendar"] == "*-*-* *:15:00 UTC"
    assert timer["Persistent"] == "yes"


def test_systemd_reads_the_timer_as_hourly() -> None:
    command = program("systemd-analyze")
    calendar = unit("elkobroker-plan.timer")["Timer"]["OnCalendar"]
    told = subprocess.run(
        [command, "calendar", "--iterations=2", "--base-time=2026-03-01 00:00:00 UTC", calendar],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
        env={"TZ": "UTC", "LC_ALL": "C"},
    ).stdout
    assert "2026-03-01 00:15:00 UTC" in told
    assert "2026-03-01 01:15:00 UTC" in told


def test_systemd_knows_every_setting_of_the_plan(tmp_path: Path) -> None:
    command, python = program("systemd-analyze"), shutil.which("true")
    for name in PLAN:
        text = (UNITS / name).read_text().replace("=/opt/elkobroker/bin/python ", f"={python} ")
        (tmp_path / name).write_text(text)
    verify = [command, "verify", "--man=no", *(str(tmp_path / name) for name in PLAN)]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert [line for line in done.stderr.splitlines() if "elkobroker" in line] == []
    assert done.returncode == 0, done.stderr
