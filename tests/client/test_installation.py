"""The client as it is installed: with its own dependencies and none of the daemon's, and with its types."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.patience import PATIENCE
from tests.test_packaging import wheel_of_the_checkout

pytestmark = pytest.mark.long

PROGRAM = """
import importlib, pkgutil
import broker.client
from broker.client.dealer import ZeroMQ
from broker.client.settings import Settings
from broker.client.testing import FakeBroker

for module in pkgutil.walk_packages(broker.client.__path__, "broker.client."):
    importlib.import_module(module.name)

with FakeBroker().blocking_client() as client:
    client.write("queue", ["jobs"]).send(b"x")
    print(client.read("queue", ["jobs"]).take().body)

for name in ("cattrs", "nacl", "OpenSSL", "wsproto"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{name} is installed")
"""

TYPED = """
from broker.client.blocking import Client, Request
from broker.wires.mtl.codec.field_table import Value


def serve(request: Request) -> bytes:
    value: Value = request.properties["x"]
    return request.body if value else request.resource


with Client("tcp://127.0.0.1:5975") as client:
    client.serve("bank", window="many").work(serve)
"""


def names_of(wheel: Path) -> set[str]:
    """The names of the distributions that a wheel without extras requires, directly or not."""
    [metadata] = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA")]
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    required = [line.partition(": ")[2] for line in text.splitlines() if line.startswith("Requires-Dist: ")]
    found: set[str] = set()
    while required:
        requirement = Requirement(required.pop())
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name not in found:
            found.add(requirement.name)
            required += importlib.metadata.requires(requirement.name) or []
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a virtual environment with the wheel and its base dependencies, as pip would install them."""
    folder = tmp_path_factory.mktemp("installed")
    wheel_of_the_checkout(folder)
    [wheel] = folder.glob("elkobroker-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=PATIENCE)
    [library] = (folder / "venv" / "lib").glob("python*/site-packages")
    for name in names_of(wheel):
        files = importlib.metadata.files(name) or []
        for top in {file.parts[0] for file in files} - {".."}:
            there = importlib.metadata.distribution(name).locate_file(top)
            if not (library / top).exists():
                (library / top).symlink_to(str(there))
    archive = zipfile.ZipFile(wheel)
    archive.extractall(library, [name for name in archive.namelist() if not name.startswith("twisted/")])
    return folder / "venv" / "bin" / "python"


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_the_client_runs_without_the_dependencies_of_the_daemon(python: Path, tmp_path: Path) -> None:
    done = run(python, "-I", "-c", PROGRAM, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "b'x'\n"), done.stderr


def test_keys_are_made_without_them(python: Path, tmp_path: Path) -> None:
    done = run(python, "-I", "-m", "broker.brokerkeys", "new", "node", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"node.private", "node.public"}


def test_programs_are_checked_against_its_types(python: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TYPED)
    checked = run(sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "program.py", cwd=tmp_path)
    errors = [line for line in checked.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 2, checked.stdout + checked.stderr
    assert 'got "bytes | str"' in errors[0]
    assert 'Argument "window" to "serve" of "Client" has incompatible type "str"' in errors[1]
