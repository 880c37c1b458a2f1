"""The image of `etc/Containerfile`: built on a base made by debootstrap, it starts the real daemon as an ordinary user.

It takes minutes, so it runs where buildah and debootstrap are installed, which the test command does not do.
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
    buildah, debootstrap = shutil.which("buildah"), shutil.which("debootstrap")
    if buildah is None or debootstrap is None or os.geteuid() != 0:
        pytest.skip("buildah, debootstrap and root are needed")
    where = tmp_path_factory.mktemp("container")
    root = where / "root"
    include = "--include=python3,python3-venv,ca-certificates"
    done = subprocess.run([debootstrap, "--variant=minbase", include, "bookworm", str(root)], check=False)
    if done.returncode != 0:
        pytest.skip("debootstrap cannot fetch Debian here")
    command = [buildah, "--storage-driver", "vfs", "--root", str(where / "storage"), "--runroot", str(where / "run")]

    def run(*words: str) -> str:
        return subprocess.run([*command, *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    base = run("from", "scratch")
    run("add", "-q", base, str(root), "/")
    run("commit", "-q", base, "base")
    volumes = [word for place in TRUSTED if Path(place).exists() for word in ("--volume", f"{place}:{place}:ro")]
    build = ["bud", "--isolation", "chroot", "--network", "host", "--pull-never", *volumes]
    run(*build, "--build-arg", "BASE=localhost/base", "--ignorefile", ".containerignore", "--file", "etc/Containerfile",
        "--tag", "elkobroker", ".")  # fmt: skip
    made = run("from", "--pull-never", "localhost/elkobroker")
    yield [*command, "run", "--isolation", "chroot", "--network", "host", "--user", "9000:9000", made, "--"]
    subprocess.run([*command, "rm", "--all"], check=False, capture_output=True)


def test_the_image_runs_the_daemon_as_an_ordinary_user(image: list[str]) -> None:
    options = ["--mc0-port", "0", "--mtl-port", "0", "--dbp-port", "0", "--console-port", "0"]
    # Twisted handles SIGTERM (bit 14 of the caught signals) once the reactor runs: before, the signal just kills.
    script = f"""
id -u
/opt/elkobroker/bin/twistd -n --pidfile= elkobroker --port 0 --state /var/lib/elkobroker {" ".join(options)} >/tmp/log &
caught() {{ echo $(( 0x$(sed -n 's/^SigCgt:.//p' /proc/$1/status) >> 14 & 1 )); }}
until [ "$(caught $!)" = 1 ] && grep -q 'console on' /tmp/log || ! kill -0 $!; do sleep 0.1; done
kill $!; wait $!
cat /tmp/log
"""
    done = subprocess.run([*image, "sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("9000\n"), done.stderr
    assert "elko listener 'main' on 127.0.0.1:" in done.stdout
    assert "Server Shut Down" in done.stdout
