"""The installed files: twistd finds the plugin, and systemd accepts the units."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from broker.net.zmtp.build import HELPERS
from tests.console_blocks import printed
from tests.integration.daemon import installed_environment
from tests.packages import program
from tests.patience import PATIENCE

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent
UNITS = ROOT / "etc" / "systemd"
MOST_EXPOSED = 2.5
"""The highest permitted score of `systemd-analyze security`: below 2.0 is safe, from 5.0 on exposed."""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The finished command, run without the checkout on Python's path."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=installed_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


# the plugin


@pytest.mark.parametrize("folder", ["twisted", "twisted/plugins"])
def test_the_plugins_folder_is_no_package(folder: str) -> None:
    """With an __init__.py it would stand before Twisted itself."""
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()


def test_twisted_is_the_installed_one_even_in_the_checkout() -> None:
    found = run(sys.executable, "-c", "import twisted; print(twisted.__file__)", cwd=ROOT)
    assert found.returncode == 0, found.stderr
    library = Path(sysconfig.get_path("purelib")).resolve()
    assert Path(found.stdout.strip()).resolve().is_relative_to(library)


def test_twistd_has_the_command_from_anywhere(tmp_path: Path) -> None:
    twistd = Path(sysconfig.get_path("scripts")) / "twistd"
    listed = run(twistd, "--help", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert re.search(r"^ +elkobroker +a broker through which servers find each", listed.stdout, re.MULTILINE)


def test_the_options_are_explained_from_anywhere(tmp_path: Path) -> None:
    twistd = Path(sysconfig.get_path("scripts")) / "twistd"
    listed = run(twistd, "elkobroker", "--help", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "--port" in listed.stdout
    assert "--config" in listed.stdout


# the other command


def test_brokerkeys_is_a_command_from_anywhere(tmp_path: Path) -> None:
    made = run(Path(sysconfig.get_path("scripts")) / "brokerkeys", "new", "node", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"node.private", "node.public"}


# the wheel


def wheel_of_the_checkout(folder: Path) -> Path:
    """A wheel of the checkout."""
    try:
        setuptools = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        setuptools = "0"
    if int(setuptools.split(".")[0]) < 77:
        pytest.skip(f"setuptools 77 builds the wheel, and this is {setuptools}")
    source = folder / "source"
    source.mkdir()
    for file in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    leave_out = shutil.ignore_patterns("__pycache__", "dropin.cache*", "_*.so")
    for name in ("broker", "spark", "twisted", "tests", "etc", "examples", "docs", "bench"):
        # The wheel must leave most of them out, and can only if they are there.
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=leave_out)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    built = run(*pip, "--wheel-dir", folder, source, cwd=folder)
    assert built.returncode == 0, built.stderr
    [wheel] = folder.glob("elkobroker-*.whl")
    return wheel


def test_a_wheel_for_all_machines_has_the_broker_the_jobs_and_the_plugin_and_nothing_else(tmp_path: Path) -> None:
    wheel = wheel_of_the_checkout(tmp_path)
    assert wheel.name.endswith("-py3-none-any.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {str(path.relative_to(ROOT)) for root in ("broker", "spark") for path in (ROOT / root).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == {*modules, "twisted/plugins/elkobroker_plugin.py"}
    assert all(
        name.startswith(("broker/", "spark/")) or name == "twisted/plugins/elkobroker_plugin.py" for name in names
    )
    for folder in ("broker/operate/page/static", "spark/capacity/report/templates"):
        assert {str(path.relative_to(ROOT)) for path in (ROOT / folder).iterdir()} < names
    assert {name for name in names if Path(name).name.startswith("_") and not name.endswith("/__init__.py")} == {
        name for name in names if name.endswith("/__main__.py")
    }
    checked = run(
        sys.executable, "-m", "check_wheel_contents", "--config", ROOT / "pyproject.toml", wheel, cwd=tmp_path
    )
    assert checked.returncode == 0, checked.stdout


def test_the_wheel_has_its_bill_of_materials(tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel_of_the_checkout(tmp_path)) as wheel:
        [name] = [each for each in wheel.namelist() if "/sboms/" in each]
        bill = json.loads(wheel.read(name))
        assert name in wheel.read(f"{name.partition('/')[0]}/RECORD").decode()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert name == f"elkobroker-{version}.dist-info/sboms/elkobroker.cdx.json"
    component = bill["metadata"]["component"]
    assert (bill["bomFormat"], component["name"], component["version"]) == ("CycloneDX", "elkobroker", version)
    assert component["purl"] == f"pkg:pypi/elkobroker@{version}"
    # The wheel bundles nothing of others.
    assert bill["components"] == []
    assert bill["compositions"] == [{"aggregate": "complete", "assemblies": [component["bom-ref"]]}]


def test_the_source_distribution_has_every_file_of_the_checkout(tmp_path: Path) -> None:
    listed = run("git", "ls-files", cwd=ROOT)
    if listed.returncode:
        pytest.skip("this is no checkout")
    assert run("git", "checkout-index", "--all", f"--prefix={tmp_path}/source/", cwd=ROOT).returncode == 0
    build = f"from setuptools import build_meta; print(build_meta.build_sdist({str(tmp_path)!r}))"
    built = run(sys.executable, "-c", build, cwd=tmp_path / "source")
    assert built.returncode == 0, built.stderr
    with tarfile.open(tmp_path / built.stdout.split()[-1]) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert set(listed.stdout.splitlines()) - names == set()


def test_the_metadata_is_complete() -> None:
    # 9 of 10: the project has no home page yet.
    rated = run(Path(sysconfig.get_path("scripts")) / "pyroma", "--min", "9", ROOT, cwd=ROOT)
    assert rated.returncode == 0, rated.stdout


def helpers_of(installed: Path) -> list[str]:
    """Return the names of the sources whose compiled helpers are in an installed package."""
    return sorted(path.name[1:].partition(".")[0] for path in (installed / "broker/net/zmtp").glob("*.so"))


@pytest.mark.parametrize("compiler", ["cc", "false", "/no/compiler"])
def test_the_helpers_are_built_from_an_installed_wheel(tmp_path: Path, compiler: str) -> None:
    with zipfile.ZipFile(wheel_of_the_checkout(tmp_path)) as wheel:
        wheel.extractall(tmp_path / "installed")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "CC": compiler}
    command = [sys.executable, "-m", "broker.net.zmtp.build"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    built = helpers_of(tmp_path / "installed")
    if compiler == "cc" and shutil.which("cc"):
        assert (done.returncode, done.stderr, built) == (0, "", list(HELPERS))
    else:
        assert (done.returncode, built) == (1, [])
        assert done.stderr.startswith(f"the helpers of ZMTP are not built, and the broker does without: {compiler}")


def test_the_first_start_builds_the_helpers_of_an_installed_wheel(tmp_path: Path) -> None:
    compiler = program("cc")
    with zipfile.ZipFile(wheel_of_the_checkout(tmp_path)) as wheel:
        wheel.extractall(tmp_path / "installed")
    for command, options, expected in (
        (compiler, ["--check"], []),
        ("/no/compiler", [], []),
        (compiler, [], list(HELPERS)),
    ):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "CC": command}
        start = [sys.executable, "-m", "twisted", "elkobroker", "--config=none.toml", *options]
        done = subprocess.run(start, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, "none.toml: cannot be read: No such file or directory\n")
        assert helpers_of(tmp_path / "installed") == expected


@pytest.mark.parametrize(
    ("missing", "arguments", "sentence"),
    [
        ("click", ["-m", "broker.brokerctl", "status"], "brokerctl needs click: pip install 'elkobroker[ctl]'"),
        (
            "cattrs",
            ["-m", "twisted", "elkobroker"],
            "twistd elkobroker needs cattrs: pip install 'elkobroker[daemon]'",
        ),
        (
            "cattrs",
            ["-m", "broker.brokerctl", "cluster", "init", "a", "b"],
            "brokerctl: this needs the broker's package: pip install 'elkobroker[daemon]' (cattrs is missing)",
        ),
        (
            "pyspark",
            ["-m", "spark.capacity", "run"],
            "capacity: pyspark is missing: pip install 'elkobroker[spark]'",
        ),
    ],
)
def test_a_program_without_its_libraries_names_the_extra_and_touches_nothing(
    tmp_path: Path, missing: str, arguments: list[str], sentence: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{missing!r}] = None\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{sentence}\n")
    assert {path.name for path in tmp_path.iterdir()} <= {"sitecustomize.py", "__pycache__"}


# set-up


BUILT = ("etc/setup.sh", "pyproject.toml", "setup.cfg", "broker/net/zmtp/sealing.c", "broker/net/zmtp/framing.c")
"""Files whose change makes another installation necessary."""


@pytest.mark.parametrize("source", BUILT[1:])
def test_a_change_of_what_is_built_sets_up_the_checkout_once_more(tmp_path: Path, source: str) -> None:
    """pip is not run: a script in its place writes down that it was called."""
    for name in BUILT:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    commands = tmp_path / ".venv" / "bin"
    commands.mkdir(parents=True)
    (commands / "activate").write_text(f"VIRTUAL_ENV={tmp_path.resolve()}/.venv\n")
    for name in ("python", "twistd"):
        (commands / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"{tmp_path}/calls"\n')
        (commands / name).chmod(0o755)

    def installed() -> bool:
        (tmp_path / "calls").write_text("")
        assert run("sh", "etc/setup.sh", "run", cwd=tmp_path).returncode == 0
        return "pip install" in (tmp_path / "calls").read_text()

    assert installed()
    assert not installed()
    with (tmp_path / source).open("a") as file:
        file.write("\n")
    assert installed()
    assert not installed()


# releases


def release(checkout: Path) -> str:
    """Try a release of a checkout that cannot be released, and return the last line."""
    done = run("sh", "etc/package.sh", "release", cwd=checkout)
    assert done.returncode == 1, done.stdout
    return done.stderr.splitlines()[-1]


def git(checkout: Path, *words: str) -> None:
    done = run("git", "-c", "user.name=N", "-c", "user.email=n@example.org", *words, cwd=checkout)
    assert done.returncode == 0, done.stderr


def test_a_release_that_is_refused_names_the_reason_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    shutil.copy(ROOT / "etc/package.sh", tmp_path / "etc")
    (tmp_path / "pyproject.toml").write_text('version = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("")
    git(tmp_path, "init", "--quiet")
    assert release(tmp_path).startswith("package: the checkout has changes: commit them, and run `make release` again")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "All")
    program("gpg")
    monkeypatch.setenv("GNUPGHOME", str(tmp_path / "no-keys"))
    monkeypatch.setenv("KEY", "nobody")
    assert release(tmp_path) == "package: gpg has no secret key 'nobody': docs/releasing.md makes one"
    monkeypatch.delenv("KEY")
    assert "nor CHANGELOG.md has a change of 0.1.0: write a fragment" in release(tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("## 0.1.0 - 2026-11-26\n")
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d/+one.added.md").write_text("One.\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Changes after 0.1.0")
    assert "CHANGELOG.md has 0.1.0 as finished: raise `version` in pyproject.toml, commit that" in release(tmp_path)
    git(tmp_path, "tag", "v0.1.0")
    assert "v0.1.0 is released already: raise `version` in pyproject.toml, commit that" in release(tmp_path)


BUILD_TWICE = """#!/bin/sh
while [ "$1" != --store-dir ]; do shift; done
mkdir -p "$2/control/source-root/dist" && echo built >"$2/control/source-root/dist/elkobroker-9.0.0.tar.gz"
"""
"""A program in the place of reprotest: the builds themselves have tests of their own."""


def test_the_page_on_releases_makes_one_that_is_signed(tmp_path: Path) -> None:
    checkout, programs = tmp_path / "checkout", tmp_path / "bin"
    cloned = run("git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", checkout, cwd=tmp_path)
    if cloned.returncode:
        pytest.skip("this is no checkout")
    gpg = program("gpg")
    programs.mkdir()
    no_passphrase = f"#!/bin/sh\nexec {gpg} --batch --pinentry-mode loopback --passphrase '' \"$@\"\n"
    for name, text in (("reprotest", BUILD_TWICE), ("diffoscope", ""), ("gpg", no_passphrase)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (checkout / "changelog.d/+page.added.md").write_text("A page.\n")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "Add a page")
    names = {f"GIT_{who}_{what}": "n@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    # The path of a socket in it must be short.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as keys:
        variables = {**os.environ, **names, "GNUPGHOME": keys, "PATH": f"{programs}:{os.environ['PATH']}"}
        for command, _ in printed("docs/releasing.md", "", "", ("apt-get", "make test")):
            real = ["sh", "-c", command.replace("0.2.0", "9.0.0")]
            done = subprocess.run(real, cwd=checkout, env=variables, capture_output=True, text=True, check=False)
            if "No matching distribution" in done.stderr:
                pytest.skip("towncrier cannot be had here")
            assert done.returncode == 0, f"{command}: {done.stderr}"
        subprocess.run(["gpgconf", "--kill", "all"], env=variables, check=False)
    assert "## 9.0.0 - " in (checkout / "CHANGELOG.md").read_text()
    assert run("git", "status", "--porcelain", cwd=checkout).stdout == ""


# systemd


class Section(dict[str, list[str]]):
    """The settings of a section, each with all its values: systemd lets some be given more than once."""


def settings(unit: str, section: str) -> Section:
    found = Section()
    current = None
    for line in (UNITS / unit).read_text().splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif current == section and "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def test_the_service_says_how_it_starts_reloads_and_stops() -> None:
    service = settings("elkobroker.service", "Service")
    command = "/opt/elkobroker/bin/twistd -n --pidfile= elkobroker --config /etc/elkobroker/elkobroker.toml"
    assert service["Type"] == ["notify"]  # notify-reload is not known everywhere
    assert service["ExecStart"] == [command]
    assert service["ExecStartPre"] == [f"{command} --check"]
    assert service["ExecReload"] == [f"{command} --check", "/bin/sh -c 'kill -HUP $MAINPID'"]
    assert service["WatchdogSec"] == ["30"]
    assert service["StateDirectory"] == ["elkobroker"]
    assert service["KillMode"] == ["process"]
    assert service["LimitNOFILE"] == ["65536"]


def test_the_broker_has_a_bound_of_memory_and_is_ended_after_the_plan() -> None:
    broker, plan = (settings(unit, "Service") for unit in ("elkobroker.service", "elkobroker-plan.service"))
    assert broker["MemoryMax"] == ["2G"]
    [ours], [theirs] = broker["OOMScoreAdjust"], plan["OOMScoreAdjust"]
    assert -1000 < int(ours) < 0 < int(theirs)


def test_the_socket_is_on_loopback_at_the_brokers_port() -> None:
    assert settings("elkobroker.socket", "Socket")["ListenStream"] == ["127.0.0.1:9000"]


def systemd_analyze() -> str:
    command = shutil.which("systemd-analyze")
    if command is None:
        pytest.skip("systemd-analyze is not installed")
    version = re.match(r"systemd (\d+)", run(command, "--version", cwd=ROOT).stdout)
    if version is None or int(version[1]) < 250:
        pytest.skip("this systemd-analyze is too old to look at files")
    return command


def test_systemd_knows_every_setting(tmp_path: Path) -> None:
    command = systemd_analyze()
    for unit in ("elkobroker.service", "elkobroker.socket"):
        text = (UNITS / unit).read_text()
        # A program that exists on every machine that runs this.
        text = text.replace("=/opt/elkobroker/bin/twistd ", f"={shutil.which('true')} ")
        (tmp_path / unit).write_text(text)
    verified = run(
        command, "verify", "--man=no", tmp_path / "elkobroker.service", tmp_path / "elkobroker.socket", cwd=tmp_path
    )
    assert [line for line in verified.stderr.splitlines() if "elkobroker" in line] == []
    assert verified.returncode == 0, verified.stderr


def test_the_service_is_hardened() -> None:
    command = systemd_analyze()
    judged = run(command, "security", "--offline=true", "--no-pager", UNITS / "elkobroker.service", cwd=ROOT)
    exposure = re.search(r"Overall exposure level for elkobroker.service: ([0-9.]+)", judged.stdout)
    assert exposure is not None, judged.stderr
    assert float(exposure[1]) < MOST_EXPOSED
