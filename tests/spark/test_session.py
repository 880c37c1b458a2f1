"""The session: which Java it takes, and what it says where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.capacity.session import NoJavaError, find_java, java_version, need_own_spark

ROOT = Path(__file__).parents[2]


def command(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    path.chmod(0o755)
    return path


def test_java_home_goes_before_the_path_and_the_path_before_the_one_that_was_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = command(tmp_path / "home" / "bin" / "java", "")
    bundled = command(tmp_path / "bundled" / "bin" / "java", "")
    on_path = command(tmp_path / "bin" / "java", "")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_java(str(tmp_path / "home"), tmp_path / "bundled") == home
    assert find_java(None, tmp_path / "bundled") == on_path
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert find_java(None, tmp_path / "bundled") == bundled


def test_no_java_is_one_sentence_that_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoJavaError, match=r"Java 17 or later, and there is none.*apt-get install") as caught:
        find_java(None, tmp_path / "bundled")
    assert "\n" not in str(caught.value)
    with pytest.raises(NoJavaError, match=r"JAVA_HOME .* has no bin/java"):
        find_java(str(tmp_path), tmp_path / "bundled")


@pytest.mark.parametrize(
    ("says", "version"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_402"', 8), ('openjdk version "25" 2025', 25)],
)
def test_the_version_is_read_from_what_java_says(tmp_path: Path, says: str, version: int) -> None:
    assert java_version(command(tmp_path / "java", says)) == version


def test_a_java_that_does_not_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(NoJavaError, match="does not say its version"):
        java_version(command(tmp_path / "java", "what?"))
    with pytest.raises(NoJavaError, match="does not run"):
        java_version(tmp_path / "none")


def test_another_spark_and_python_of_the_environment_have_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    for name in (*names, "LC_ALL"):
        monkeypatch.setenv(name, "other")
    need_own_spark(local=False)
    assert [os.environ.get(name) for name in names] == [None, "other", "other"]
    need_own_spark(local=True)
    assert [os.environ.get(name) for name in names] == [None, None, None]


def test_time_is_utc_and_nothing_listens_elsewhere(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


SUBMITTED = """
from spark.capacity.session import open_session
spark = open_session()
conf = spark.sparkContext.getConf()
names = ("spark.ui.enabled", "spark.executor.extraJavaOptions", "spark.driver.extraJavaOptions")
print([conf.get(name).split()[-1] for name in names], spark.conf.get("spark.sql.shuffle.partitions"),
      spark.conf.get("spark.sql.session.timeZone"))
"""


@pytest.mark.long
def test_settings_of_spark_submit_stay_but_for_those_that_the_tables_need(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(SUBMITTED)
    given = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.executor.extraJavaOptions": "-Dmine=1",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    options = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
    submit = Path(sys.executable).parent / "spark-submit"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(
        [submit, "--master", "local[1]", *options, job], capture_output=True, text=True, env=environment, check=True
    )
    assert ran.stdout == "['true', '-Dmine=1', '-XX:-DontCompileHugeMethods'] 3 UTC\n"


@pytest.mark.long
def test_a_java_that_ends_at_once_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "segments").mkdir()
    out = tmp_path / "out"
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "spark.capacity",
        "run",
        "--journal",
        tmp_path,
        "--out",
        out,
        "--memory",
        "99999g",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert ran.returncode == 1
    [line] = ran.stderr.splitlines()
    assert line.startswith("capacity: Java does not start: ")
    assert "heap" in line or "memory" in line.lower()
