"""The command `python -m tests.spark.benchmark`, as far as it needs no Spark."""

from pathlib import Path

import numpy as np
import pytest

from tests.spark.benchmark.__main__ import main
from tests.spark.series import daily, write


def test_the_table_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    rng = np.random.default_rng(8)
    for number in range(2):
        write(traces / f"web_{number}.csv.gz", daily(14, rng))
    write(traces / "short.csv", range(30))
    out = tmp_path / "table.md"
    assert main(["--traces", str(traces), "--only-traces", "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert "traces   2 series, 1 files left out" in told.out
    assert out.read_text() in told.out
    assert "| web | 2 | 20 |" in out.read_text()
    assert out.read_text().count("- kept: ") == 3
    assert "- left out: short.csv is too short" in out.read_text()
    assert "generator" not in out.read_text()


def test_what_cannot_be_done_is_told_before_the_work_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "web.csv", daily(14, np.random.default_rng(8)))
    for arguments, why in (
        (["--traces", str(tmp_path / "none")], f"there is no {tmp_path / 'none'}"),
        (["--traces", str(tmp_path), "--out", str(tmp_path)], f"{tmp_path}: Is a directory"),
        (["--traces", str(tmp_path), "--out", "/nowhere/x"], "/nowhere/x: No such file or directory"),
        (["--traces", str(tmp_path), "--keep", str(tmp_path)], f"{tmp_path} is not empty"),
    ):
        assert main(arguments) == 1
        assert capsys.readouterr().err == f"capacity: {why}\n"


def test_a_missing_java_is_told_before_journals_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "web.csv", daily(14, np.random.default_rng(8)))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert main(["--traces", str(tmp_path), "--keep", str(tmp_path / "kept")]) == 1
    assert capsys.readouterr().err.startswith("capacity: Spark needs Java 17 or later")
    assert not list((tmp_path / "kept").iterdir())


def test_a_folder_without_traces_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--traces", str(tmp_path)]) == 1
    assert "has no series" in capsys.readouterr().err
