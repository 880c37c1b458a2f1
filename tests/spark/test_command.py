"""The command and its lines: arguments, exit codes, and one sentence for what cannot be done."""

import io
from pathlib import Path

import pytest

from spark.capacity.__main__ import main
from spark.capacity.progress import Progress


def test_a_missing_journal_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--journal", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err
    assert told == f"capacity: {tmp_path / 'none'} is no journal: it has no folder named segments\n"
    assert not (tmp_path / "out").exists()


def test_a_missing_java_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "segments").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert main(["run", "--journal", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err
    assert told.startswith("capacity: Spark needs Java 17 or later")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["fly"], ["run"], ["demo", "--horizon", "0"], ["demo", "--target", "1.5"], ["demo", "--horizon", "x"]],
)
def test_wrong_arguments_end_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_folder_without_traces_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--traces", str(tmp_path)]) == 1
    assert "has no series" in capsys.readouterr().err


def test_generate_writes_a_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--journal", str(tmp_path / "journal"), "--days", "0.2"]) == 0
    assert list((tmp_path / "journal" / "segments").glob("*/*/*.jsonl.gz"))
    assert "records of 0.2 days" in capsys.readouterr().out


def test_elsewhere_than_on_a_terminal_a_job_is_one_line() -> None:
    to = io.StringIO()
    progress = Progress(to, terminal=False)
    with progress.job("ingest") as step:
        step(0.5, "half")
        step(1.0, "all of it")
    progress.note("and why")
    assert to.getvalue().splitlines() == [f"  ingest   {'all of it':<64} ▇▇▇▇▇▇▇▇ 100 %", "           and why"]


def test_on_a_terminal_the_line_is_written_over_and_a_failure_leaves_it() -> None:
    to = io.StringIO()

    def work() -> None:
        with Progress(to, terminal=True).job("plan") as step:
            step(0.5, "half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert to.getvalue().endswith(f"\r  plan     {'half':<64} ▇▇▇▇      50 %\x1b[K\n")


def test_a_terminal_without_these_signs_gets_others() -> None:
    to = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with Progress(to, terminal=False).job("plan"):
        pass
    to.seek(0)
    assert "######## 100 %" in to.read()
