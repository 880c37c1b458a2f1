"""`make install`, as docs/operations.md prints it, on a small machine under a systemd of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.console_blocks import printed
from tests.install.systemd_host import PACKAGES, SystemdHost, make_root

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="a machine of one's own needs root"),
]

ROOT = Path(__file__).parents[2]
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", "dist", "*.egg-info", "_*.so", ".*_cache")
NETWORK = ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt")
"""Files by which programs of another root download what those of this machine do."""


(INSTALL, _), *START = printed("docs/operations.md", "capacity jobs:", "`make install` in a checkout")
PLAN = printed("docs/operations.md", "make capacity plans", "The timer makes", ("apt-get", "/opt"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of a small Debian, in which the first command of the page has installed the checkout in /src."""
    made = make_root(tmp_path, f"{PACKAGES},make,python3-venv")
    shutil.copytree(ROOT, made / "src", ignore=NOT_COPIED, symlinks=True)
    for file in NETWORK:
        shutil.copy(file, made / file.lstrip("/"))
    # Before systemd, whose machine has no network.
    clean = ["chroot", str(made), "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-c"]
    done = subprocess.run([*clean, f"cd /src && {INSTALL}"], capture_output=True, text=True, check=False)
    if "No matching distribution" in done.stderr or "Could not fetch URL" in done.stderr:
        pytest.skip("the packages cannot be downloaded here")
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def test_the_commands_of_the_page_start_a_broker_and_make_uninstall_ends_it(root: Path, tmp_path: Path) -> None:
    with SystemdHost(root, tmp_path) as host:
        for command, _ in START:
            host.done(f"cd /src && {command}")
        host.wait_until_active()
        assert "<title>" in host.done("curl --silent --fail http://127.0.0.1:9080/")
        assert "elkobroker" in host.done("brokerctl status")
        assert host.done("stat --format '%a %U %G' /etc/elkobroker/elkobroker.toml") == "640 root elkobroker\n"
        assert "mode is different" not in host.done("journalctl --no-pager --unit elkobroker")
        for command, _ in PLAN:
            host.done(f"cd /src && {command}")
        assert host.done("systemctl is-active elkobroker-plan.timer") == "active\n"
        host.done("make --directory /src uninstall")
        assert host.run("systemctl is-active elkobroker").stdout == "inactive\n"
        assert host.run("command -v brokerctl; ls -d /opt/elkobroker").returncode != 0
        host.done("test -s /etc/elkobroker/elkobroker.toml -a -s /var/lib/private/elkobroker/elkobroker.sqlite3")
