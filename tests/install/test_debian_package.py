"""The Debian package, on a small machine under a systemd of its own: from `apt install` to `apt purge`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.install.systemd_host import SystemdHost, make_root
from tests.packages import REFUSED, program
from tests.patience import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="a machine of one's own needs root"),
]

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


@pytest.fixture
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of this checkout, in a folder of its own."""
    for name in ("dpkg-buildpackage", "dh"):
        program(name)
    where = tmp_path_factory.mktemp("package")
    environment = {**os.environ, "DIST": str(where), "TMPDIR": str(where)}
    done = subprocess.run(
        ["sh", "etc/package.sh", "deb"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if "No matching distribution" in done.stderr or "Could not fetch URL" in done.stderr:
        pytest.skip("the packages cannot be downloaded here")
    if "Unmet build dependencies" in done.stderr:
        pytest.skip(f"{REFUSED}: {done.stderr.partition('Unmet build dependencies')[2].splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    [found] = where.glob("elkobroker_*.deb")
    shared = where / "shared"
    shared.mkdir()
    return Path(shutil.copy(found, shared / "elkobroker.deb"))


@pytest.fixture
def host(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdHost]:
    """A machine without the package."""
    with SystemdHost(make_root(tmp_path_factory.mktemp("debian")), package.parent) as started:
        yield started


@pytest.fixture
def files_before(host: SystemdHost) -> set[str]:
    return files(host)


@pytest.fixture
def installed(host: SystemdHost, files_before: set[str]) -> SystemdHost:
    """The machine, on which the package's broker runs."""
    host.done("apt-get install --yes --no-install-recommends /shared/elkobroker.deb")
    until(lambda: host.run("systemctl is-active elkobroker").stdout.strip() == "active")
    return host


def files(host: SystemdHost) -> set[str]:
    """The files of the machine, without what others write."""
    places = "/etc /usr /opt /srv /lib/systemd /var/lib /run/systemd/system"
    found = host.done(f"find {places} -xdev ! -type d").splitlines()
    return {path for path in found if not re.match(r"/var/lib/(dpkg|apt|systemd)/|/etc/.*-$|/usr/.*__pycache__", path)}


def is_found(host: SystemdHost, name: str) -> bool:
    """Return True if a find over HTTP has an answer."""
    return bool(json.loads(host.done(f"curl --silent --fail http://127.0.0.1:9080/v1/services/{name}"))["services"])


def lintian_has_no_complaint(package: Path) -> None:
    command = [program("lintian"), "--fail-on", "error,warning", str(package)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def a_small_machine_has_a_broker_its_page_and_its_commands(installed: SystemdHost) -> None:
    assert "<title>" in installed.done("curl --silent --fail http://127.0.0.1:9080/")
    assert "elkobroker" in installed.done("brokerctl status")
    assert installed.done("brokerkeys --help").startswith("usage: brokerkeys")
    for path in ("bash-completion/completions/brokerctl", "man/man1/brokerctl.1.gz", "man/man1/brokerkeys.1.gz"):
        installed.done(f"test -s /usr/share/{path}")
    assert installed.done("stat --format '%a %U %G' /etc/elkobroker/elkobroker.toml") == "640 root elkobroker\n"
    assert "dropin.cache" not in installed.journal()


def a_reload_takes_a_good_file_and_refuses_a_bad_one(installed: SystemdHost) -> None:
    path = "/etc/elkobroker/elkobroker.toml"
    before = installed.done(f"cat {path}")
    installed.write(path, before.replace("[log]\n", '[log]\nlevel = "debug"\n', 1))
    installed.done("systemctl reload elkobroker")
    installed.write(path, before.replace("[log]\n", "[log]\nlevle = 1\n", 1))
    refused = installed.run("systemctl reload elkobroker")
    assert refused.returncode != 0
    assert "levle" in installed.journal()
    assert installed.done("systemctl is-active elkobroker") == "active\n"
    installed.write(path, before)
    installed.done("systemctl reload elkobroker")


def backup_and_restore_as_the_page_prints_them(installed: SystemdHost) -> None:
    section = OPERATIONS.partition("**Backup.**")[2].partition("**A full disk**")[0]
    commands = re.findall(r"^# (.*)$", section, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["brokerctl", "systemctl", "brokerctl", "systemctl"]
    put = "curl --silent --fail --request PUT --json"
    offer = '\'{"hostport": "127.0.0.1:7001", "ttl": 3600}\''
    installed.done(f"{put} {offer} http://127.0.0.1:9080/v1/services/kept/one")
    until(lambda: is_found(installed, "kept"))
    # The registry is written a quarter of a second after a change, and again at a stop.
    installed.done("systemctl restart elkobroker")
    backup, *restore = commands
    assert installed.done(backup).startswith("/srv/elkobroker.tar.gz: ")
    # The disk was lost, and the broker has begun with an empty one.
    installed.done("systemctl stop elkobroker && rm -r /var/lib/private/elkobroker/* && systemctl start elkobroker")
    assert not is_found(installed, "kept")
    for command in restore:
        installed.done(command)
    assert is_found(installed, "kept")
    installed.done("ls -d /var/lib/private/elkobroker/before-restore-*")
    installed.done("rm /srv/elkobroker.tar.gz")


def the_watchdog_starts_a_hung_broker_again(installed: SystemdHost) -> None:
    installed.done("mkdir -p /run/systemd/system/elkobroker.service.d")
    installed.write("/run/systemd/system/elkobroker.service.d/watchdog.conf", "[Service]\nWatchdogSec=2\n")
    installed.done("systemctl daemon-reload && systemctl restart elkobroker")
    first = installed.done("systemctl show --property MainPID --value elkobroker").strip()
    installed.done(f"kill -STOP {first}")
    until(lambda: installed.run("systemctl show --property NRestarts --value elkobroker").stdout.strip() == "1")
    until(lambda: installed.run("systemctl is-active elkobroker").stdout.strip() == "active")
    installed.done("rm -r /run/systemd/system/elkobroker.service.d && systemctl daemon-reload")


def a_purge_leaves_nothing(installed: SystemdHost, files_before: set[str]) -> None:
    installed.done("apt-get purge --yes elkobroker")
    assert files(installed) - files_before == set()
    assert installed.run("getent passwd elkobroker").stdout == ""
    assert installed.run("ls -d /var/lib/private/elkobroker /var/lib/elkobroker /etc/elkobroker").returncode != 0


def test_a_package_from_its_installation_to_its_purge(
    package: Path, installed: SystemdHost, files_before: set[str]
) -> None:
    # One test, since each process of the tests would build a package and a machine for its own part of several.
    lintian_has_no_complaint(package)
    a_small_machine_has_a_broker_its_page_and_its_commands(installed)
    a_reload_takes_a_good_file_and_refuses_a_bad_one(installed)
    backup_and_restore_as_the_page_prints_them(installed)
    the_watchdog_starts_a_hung_broker_again(installed)
    a_purge_leaves_nothing(installed, files_before)
