"""The one Spark session of a run, and the Java that it needs.

Rules:
- Time is UTC everywhere.
- On one machine nothing listens on the network, and the page that shows the jobs is off.
- With spark-submit the master and the memory are already chosen, and every setting that the user made stays, but for
  those on which the tables depend (`NEEDED`).
- The output of Java goes to a file (`store.LOG`), in which the reason stands where Spark does not start.
- Another Spark of the machine has no part in it: SPARK_HOME is that of the package. The workers run this very Python,
  and not the first `python3` of the path; on one machine whatever the environment names.
- Without a usable Java a run ends with one sentence instead of the tracebacks of Java and Python.
"""

import codecs
import locale
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

LOCAL = "local[*]"
"""Without another master the jobs run here, on every core."""

MEMORY = "1g"
"""A heap of 1 GiB is enough for 43 million records: they do not pass through it, and tasks work beside it."""

PARTITIONS = 8
"""Spark's own 200 parts of each exchange cost more than they gain on one machine."""

PARTS_OF_A_CORE = 2
"""Parts of an exchange for each core of a cluster: they differ in size."""

WRITERS = 8
"""Files that one task may have open at once, so that it need not sort its records by date before it writes them."""

JAVA = 17
"""The oldest Java that runs Spark 4."""

BUNDLED_JAVA = Path(sys.prefix) / "java"
"""Folder into which `make plan` installs a Java runtime on a machine without one."""

NO_JAVA = (
    f"Spark needs Java {JAVA} or later, and {{}}. Install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), or set JAVA_HOME to one."
)

JAVA_PATIENCE = 60
"""Seconds for `java -version`: a machine under load takes long for its first Java."""


NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    # A date stays text unless a schema says otherwise.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # Spark's own form, of 12 bytes, has no minimum that a reader could skip by.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.ansi.enabled": "true",
}
"""Settings on which the tables depend."""

PREFERRED = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.maxConcurrentOutputFileWriters": str(WRITERS),
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Arrow's own allocator gives memory back at once: to get it again takes a fifth of the time of an ingest.
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
    # Wide rows make long methods, which Java would leave uncompiled.
    "spark.driver.extraJavaOptions": "-XX:-DontCompileHugeMethods",
    "spark.executor.extraJavaOptions": "-XX:-DontCompileHugeMethods",
}
"""Settings that give way to those of the user of spark-submit."""

SHUFFLE = "spark.sql.shuffle.partitions"

OUTPUTS = (1, 2)
"""Descriptors of the standard output and error: Java tells the reason of its end on either."""


class NoJavaError(Exception):
    """There is no Java here that can run Spark, or it does not start."""


def find_java(home: str | None, bundled: Path = BUNDLED_JAVA) -> Path:
    """Return the `java` that Spark would run: that of JAVA_HOME, that of the path, or the one that was set up here."""
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise NoJavaError(NO_JAVA.format(f"JAVA_HOME ({home}) has no bin/java"))
        return java
    if found := shutil.which("java"):
        return Path(found)
    if os.access(bundled / "bin" / "java", os.X_OK):
        return bundled / "bin" / "java"
    raise NoJavaError(NO_JAVA.format("there is none on this machine"))


def java_version(java: Path) -> int:
    """Return the major version of a `java`."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_PATIENCE).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoJavaError(NO_JAVA.format(f"{java} does not run ({error})")) from error
    match = re.search(r'version "(?:1\.)?(\d+)', told)
    if match is None:
        raise NoJavaError(NO_JAVA.format(f"{java} does not say its version"))
    return int(match[1])


def need_java() -> None:
    """Raise `NoJavaError` unless Spark will find a Java that can run it."""
    java = find_java(os.environ.get("JAVA_HOME"))
    version = java_version(java)
    if version < JAVA:
        raise NoJavaError(NO_JAVA.format(f"{java} is version {version}"))
    if java.is_relative_to(BUNDLED_JAVA):
        os.environ["JAVA_HOME"] = str(BUNDLED_JAVA)


def need_own_spark(local: bool) -> None:
    """Remove from the environment what names another Spark, and for a ``local`` run another Python.

    Java takes the encoding of file names from the locale, and cannot name a file that its encoding has no characters
    for: where that is not UTF-8, the locale becomes one that is.
    """
    for name in ("SPARK_HOME", *(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON") if local else ())):
        os.environ.pop(name, None)
    if codecs.lookup(locale.getencoding()).name != "utf-8":
        os.environ["LC_ALL"] = "C.UTF-8"


def open_session(
    master: str | None = None, *, memory: str = MEMORY, extra: dict[str, str] | None = None, log: Path | None = None
) -> SparkSession:
    """Start Spark, or join that of spark-submit. The output of one that is started goes to the file ``log``."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        need_own_spark(local=(master or LOCAL).startswith("local"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("elkobroker capacity")
    if not submitted:
        need_java()
        builder = builder.master(master or LOCAL).config("spark.driver.memory", memory)
        if (master or LOCAL).startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    elif master:
        builder = builder.master(master)
    set_by_user = _settings_of_submit() if submitted else {}
    settings = {name: value for name, value in PREFERRED.items() if name not in set_by_user} | NEEDED | (extra or {})
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate() if submitted or log is None else _started(builder, log)
    if SHUFFLE not in settings and SHUFFLE not in set_by_user:
        # Small exchanges are joined again by Spark itself.
        parts = max(PARTITIONS, PARTS_OF_A_CORE * session.sparkContext.defaultParallelism)
        session.conf.set(SHUFFLE, str(parts))
    return session


def _settings_of_submit() -> dict[str, str]:
    """Return the settings that the user gave to spark-submit, or in its defaults file."""
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _started(builder: SparkSession.Builder, log: Path) -> SparkSession:
    """Start Spark with its output in a file. Raises `NoJavaError` with the last line of it where Java ends at once."""
    sys.stdout.flush()
    kept = {number: os.dup(number) for number in OUTPUTS}
    try:
        with log.open("wb") as file:
            for number in OUTPUTS:
                os.dup2(file.fileno(), number)
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        lines = log.read_text(errors="replace").split("\n")
        told = [line.strip() for line in lines if line.strip() and not line.startswith("WARNING")]
        # The first two lines have the reason, the others are advice.
        raise NoJavaError(f"Java does not start: {': '.join(told[:2]) or error}") from error
    finally:
        for number, own in kept.items():
            os.dup2(own, number)
            os.close(own)
