"""The command and its lines: arguments, exit codes, and one sentence for what cannot be done."""

import io
import re
from pathlib import Path

import pytest

from spark.capacity.command import main, parser
from spark.capacity.progress import Progress
from tests.spark import demo

RUN = ["run", "--journal", "journal", "--out", "out"]


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
    [[], ["fly"], ["run"], *([*RUN, *more] for more in (["--horizon", "0"], ["--target", "0.5"], ["--horizon", "x"]))],
)
def test_wrong_arguments_end_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_wrong_policy_is_said_before_java_is_looked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "plan.toml"
    policy.write_text("[[policy]]\ntarget = 2\n")
    assert main(["run", "--journal", str(tmp_path), "--out", str(tmp_path / "out"), "--policy", str(policy)]) == 1
    reason = "[[policy]] target: Expected `float` <= 1.0"
    assert capsys.readouterr().err == f"capacity: {policy}, line 2: {reason}\n"


@pytest.mark.parametrize(("name", "part"), [("a%41", "%41"), ("a[1]", "["), ("a^", "^"), ("a|b", "|"), ("a\\b", "\\")])
def test_a_path_that_cannot_be_published_is_said_before_the_work(
    name: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "journal" / "segments").mkdir(parents=True)
    assert main(["run", "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / name)]) == 1
    assert f"with {part} in its path: name another one" in capsys.readouterr().err
    assert not (tmp_path / name).exists()
    # A link has another name, and the same path.
    (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / name)
    assert main(["run", "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "link")]) == 1
    assert f"with {part} in its path: name another one" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--journal", "--out", "--work"])
@pytest.mark.parametrize(
    "uri", ["s3a://bucket/journal", "hdfs://h/a", "file://other/a", "file://", "file:///a?b", "://x"]
)
def test_a_uri_of_another_machine_is_refused(option: str, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    both = {"--journal": "journal", "--out": "out"} | {option: uri}
    with pytest.raises(SystemExit) as caught:
        main(["run", *(word for pair in both.items() for word in pair)])
    assert caught.value.code == 2
    assert f"{uri} is no folder of this machine" in capsys.readouterr().err


def test_a_uri_of_a_file_is_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = tmp_path / "a journal"
    assert main(["run", "--journal", journal.as_uri(), "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"capacity: {journal} is no journal: it has no folder named segments\n"


def test_the_demo_makes_a_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--out", str(tmp_path), "--days", "0.2", "--journal-only"]) == 0
    assert list((tmp_path / "journal" / "segments").glob("*/*/*.jsonl.gz"))
    assert "records of 0.2 days" in capsys.readouterr().out


def test_elsewhere_than_on_a_terminal_a_job_is_one_plain_line() -> None:
    to = io.StringIO()
    progress = Progress(to, terminal=False)
    with progress.job("ingest") as step:
        step(0.5, "half")
        step(1.0, "all of it")
    progress.note("and why")
    assert to.getvalue() == "  ingest   all of it\n           and why\n"


def terminal(to: io.StringIO) -> list[str]:
    """The states of the line on a terminal, oldest first, without its colours and movements."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", to.getvalue())
    return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


def test_on_a_terminal_a_bar_grows_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    to = io.StringIO()
    with Progress(to, terminal=True).job("ingest") as step:
        step(0.5, "half [b]of[/b] it")
    assert re.match(r" ingest +\S+ 100% 0:00:\d\d half \[b\]of\[/b\] it", terminal(to)[-1])


def test_on_a_terminal_the_bar_of_a_failed_job_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    to = io.StringIO()

    def work() -> None:
        with Progress(to, terminal=True).job("plan") as step:
            step(0.5, "half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert " 50% " in terminal(to)[-1]
    assert to.getvalue().endswith("\x1b[?25h"), "the cursor is visible again"


def test_a_stream_that_cannot_encode_a_text_gets_a_replacement() -> None:
    to = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with Progress(to, terminal=False).job("plan") as step:
        step(1.0, "caf\u00e9")
    to.seek(0)
    assert to.read() == "  plan     caf?\n"


@pytest.mark.parametrize("days", ["0", "36526", "999999"])
def test_a_retention_for_which_there_are_no_dates_is_refused(days, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["run", "--journal", "j", "--out", "o", "--keep", days])
    assert f"{days} is not between 1 and 36525" in capsys.readouterr().err
