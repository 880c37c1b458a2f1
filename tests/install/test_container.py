"""The image of `etc/container`: built on a base made by mmdebstrap, it starts the real daemon as an ordinary user.

It takes minutes, so it runs where buildah and mmdebstrap are installed, which the test command does not do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
TRUSTED = ("/etc/ssl/certs", "/usr/local/share/ca-certificates")
"""The certificates of this machine: pip must trust in the image what it trusts here."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The command line of buildah with the image's name, in a storage of its own."""
    buildah, mmdebstrap = shutil.which("buildah"), shutil.which("mmdebstrap")
    if buildah is None or mmdebstrap is None or os.geteuid() != 0:
        pytest.skip("buildah, mmdebstrap and root are needed")
    where = tmp_path_factory.mktemp("container")
    root = where / "root"
    include = "--include=python3,python3-venv,ca-certificates,etcd-server"
    done = subprocess.run([mmdebstrap, "--variant=minbase", include, "bookworm", str(root)], check=False)
    if done.returncode != 0:
        pytest.skip("mmdebstrap cannot fetch Debian here")
    command = [buildah, "--storage-driver", "vfs", "--root", str(where / "storage"), "--runroot", str(where / "run")]

    def run(*words: str) -> str:
        return subprocess.run([*command, *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    base = run("from", "scratch")
    run("add", "-q", base, str(root), "/")
    run("commit", "-q", base, "base")
    volumes = [word for place in TRUSTED if Path(place).exists() for word in ("--volume", f"{place}:{place}:ro")]
    build = ["bud", "--isolation", "chroot", "--network", "host", "--pull-never", *volumes]
    files = ["--ignorefile", ".containerignore", "--file", "etc/container/Containerfile"]
    run(*build, "--build-arg", "BASE=localhost/base", *files, "--tag", "elkobroker", ".")
    made = run("from", "--pull-never", "localhost/elkobroker")
    yield [*command, "run", "--isolation", "chroot", "--network", "host", "--user", "9000:9000", made, "--"]
    subprocess.run([*command, "rm", "--all"], check=False, capture_output=True)


def test_the_image_runs_the_daemon_as_an_ordinary_user(image: list[str]) -> None:
    """Its own configuration, with the request of its health check, until SIGTERM."""
    health = "import os, urllib.request as r; print(r.urlopen(os.environ['HEALTH_URL']).status)"
    script = f"""
id -u
/opt/elkobroker/bin/twistd -n --pidfile= elkobroker --config /etc/elkobroker/elkobroker.toml >/tmp/log 2>&1 &
until /opt/elkobroker/bin/python -c "{health}" 2>/dev/null || ! kill -0 $!; do sleep 0.1; done
kill $!; wait $!
cat /tmp/log
etcd --version
"""
    command = [*image, "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("9000\n200\n"), done.stdout + done.stderr
    assert "elko listener 'main' on 0.0.0.0:9000" in done.stdout or "elko listener 'main' on :::9000" in done.stdout
    assert "Server Shut Down" in done.stdout
    assert "etcd Version" in done.stdout
