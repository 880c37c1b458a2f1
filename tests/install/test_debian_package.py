"""The Debian package, on a small machine under a systemd of its own: from `apt install` to `apt purge`."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from broker.core.queues import sqlite_store
from broker.core.store import SCHEMA
from tests.config.certificates import certificate
from tests.console_blocks import command_of, printed, shows_but_numbers
from tests.install.systemd_host import SystemdHost, make_root
from tests.install.test_install import PRINT_HELPER
from tests.integration.test_earlier_versions import LAYOUTS, unpack
from tests.integration.test_upgrade import FIRST
from tests.packages import program
from tests.patience import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="a machine of one's own needs root"),
]

ROOT = Path(__file__).parents[2]
PUT = "curl --silent --fail --request PUT --json"
HTTP = '[http]\nendpoint = "tcp:9080:interface=127.0.0.1"\n'
TLS = """[http]
endpoint = "tls:9443:interface=127.0.0.1:certificate=/etc/elkobroker/cert.pem:key=/etc/elkobroker/key.pem"
"""
LIBRARIES = "/usr/lib/elkobroker/lib/python3.11/site-packages"
DROP_IN = "/run/systemd/system/elkobroker.service.d"
SOCKET = f"""[access]
file = "{LIBRARIES}/broker/config/users-open.toml"
[[elko.listeners]]
endpoint = "systemd:domain=INET:index=0"
"""
PEER = r"""
import json, socket, sys
peer = socket.create_connection(("127.0.0.1", 9000))
service, offered = sys.argv[1], [{"service": each, "hostport": "h.example:1"} for each in sys.argv[2:]]
asked = [{"op": "auth", "label": "peer"}, {"op": "willserve", "services": offered}, {"op": "find", "service": service}]
for each in asked if offered else [asked[0], asked[2]]:
    peer.sendall(json.dumps({"to": "client", **each}).encode() + b"\n\n")
got = b""
while b"desc" not in got and (more := peer.recv(4096)):
    got += more
print(got, flush=True)
# Its service is there until the broker stops.
while offered and peer.recv(4096):
    pass
print("closed")
"""
"""A program that finds its first argument, and offers the others before that."""
CERTIFICATE = 'import ssl; print(ssl.get_server_certificate(("127.0.0.1", 9443)), end="")'
CHANGELOG = """elkobroker (0) unstable; urgency=low

  * For autopkgtest.

 -- The elkobroker authors <elkobroker@example.org>  Thu, 01 Jan 1970 00:00:00 +0000
"""


@pytest.fixture
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of this checkout, in a folder of its own."""
    for name in ("dpkg-buildpackage", "dh"):
        program(name)
    where = tmp_path_factory.mktemp("package")
    environment = {**os.environ, "DIST": str(where), "TMPDIR": str(where), "GZIP_FAST": "1"}
    command = ["sh", "-c", command_of("CONTRIBUTING.md", "make packages")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if "No matching distribution" in done.stderr or "Could not fetch URL" in done.stderr:
        pytest.skip("the packages cannot be downloaded here")
    if "Unmet build dependencies" in done.stderr:
        unmet = done.stderr.partition("Unmet build dependencies: ")[2].splitlines()[0]
        pytest.skip(f"the package needs for its build: {unmet}")
    assert done.returncode == 0, done.stderr
    [found] = where.glob("elkobroker_*.deb")
    shared = where / "shared"
    shared.mkdir()
    # The next version: the same files by another number.
    unpacked = where / "unpacked"
    tried("dpkg-deb", "--raw-extract", found, unpacked)
    control = unpacked / "DEBIAN/control"
    control.write_text(re.sub(r"^(Version: .*)", r"\1+later", control.read_text(), flags=re.MULTILINE))
    tried("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", unpacked, shared / "later.deb")
    return Path(shutil.copy(found, shared))


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a small Debian, which nothing changes."""
    return make_root(tmp_path_factory.mktemp("debian"))


@pytest.fixture
def host(package: Path, root: Path) -> Iterator[SystemdHost]:
    """A machine without the package."""
    with SystemdHost(root, package.parent) as started:
        yield started


@pytest.fixture
def files_before(host: SystemdHost) -> set[str]:
    return files(host)


@pytest.fixture
def installed(host: SystemdHost, files_before: set[str]) -> SystemdHost:
    """The machine, on which the package's broker runs."""
    # The configuration of apt stands for the answers of a person, and for the recommended packages that are not needed.
    host.write("/etc/apt/apt.conf.d/test", 'APT::Get::Assume-Yes "true"; APT::Install-Recommends "false";')
    host.done(f"cd /shared && {command_of('docs/operations.md', 'apt install ./elkobroker_0.1.0_amd64.deb')}")
    host.done("rm /etc/apt/apt.conf.d/test")
    host.wait_until_active()
    return host


def files(host: SystemdHost) -> set[str]:
    """The files of the machine, without what others write."""
    places = "/etc /usr /opt /srv /lib/systemd /var/lib /run/systemd/system"
    found = host.done(f"find {places} -xdev ! -type d").splitlines()
    return {path for path in found if not re.match(r"/var/lib/(dpkg|apt|systemd)/|/etc/.*-$|/usr/.*__pycache__", path)}


def is_found(host: SystemdHost, name: str) -> bool:
    """Return True if a find over HTTP has an answer."""
    return bool(json.loads(host.done(f"curl --silent --fail http://127.0.0.1:9080/v1/services/{name}"))["services"])


def found_by_elko(host: SystemdHost, name: str) -> str:
    """Return the answer to a find."""
    return host.done(f"python3 -c {shlex.quote(PEER)} {name}")


def lintian_has_no_complaint(package: Path) -> None:
    command = [program("lintian"), "--fail-on", "error,warning", str(package)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def piuparts_finds_no_trace_and_autopkgtest_a_broker(package: Path, root: Path, tmp_path: Path) -> None:
    options = ["--existing-chroot", str(root), "--keep-sources-list", "--no-eatmydata", "--no-upgrade-test"]
    tried(program("piuparts"), *options, "--tmpdir", tmp_path, "--skip-minimize", "--warn-on-debsums-errors", package)
    source = tmp_path / "source"
    shutil.copytree(ROOT / "etc/debian", source / "debian")
    (source / "debian/changelog").write_text(CHANGELOG)
    copy = tmp_path / "root"
    tried("cp", "--archive", root, copy)
    shutil.copy("/etc/resolv.conf", copy / "etc")
    options = ["--setup-commands=apt-get update", "--no-built-binaries"]
    tried(program("autopkgtest"), *options, package, f"{source}/", "--", "chroot", copy)


def tried(*command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3_000:]


def a_small_machine_has_a_broker_its_page_and_its_commands(installed: SystemdHost) -> None:
    assert "<title>" in installed.done("curl --silent --fail http://127.0.0.1:9080/")
    assert "elkobroker" in installed.done("brokerctl status")
    assert installed.done("brokerkeys --help").startswith("usage: brokerkeys")
    assert installed.done(f"/usr/lib/elkobroker/bin/python -c '{PRINT_HELPER}'") == "compiled\n"
    for path in (
        "bash-completion/completions/brokerctl",
        "zsh/vendor-completions/_brokerctl",
        "fish/vendor_completions.d/brokerctl.fish",
        "man/man1/brokerctl.1.gz",
        "man/man1/brokerkeys.1.gz",
    ):
        installed.done(f"test -s /usr/share/{path}")
    assert installed.done("stat --format '%a %U %G' /etc/elkobroker/elkobroker.toml") == "640 root elkobroker\n"
    assert "dropin.cache" not in installed.journal()


def the_bill_of_materials_has_each_library(installed: SystemdHost) -> None:
    bill = json.loads(installed.done("zcat /usr/share/doc/elkobroker/sbom.json.gz"))
    assert bill["bomFormat"] == "CycloneDX"
    listed = {canonicalize_name(each["name"]): each["version"] for each in bill["components"]}
    folders = installed.done(f"cd {LIBRARIES} && ls -d *.dist-info").split()
    there = (folder.removesuffix(".dist-info").split("-") for folder in folders)
    assert listed == {canonicalize_name(name): version for name, version in there}


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


def an_upgrade_keeps_the_configuration_and_what_is_registered(installed: SystemdHost) -> None:
    path = "/etc/elkobroker/elkobroker.toml"
    changed = installed.done(f"cat {path}").replace("[log]\n", '[log]\nlevel = "debug"\n', 1)
    installed.write(path, changed)
    offer = '\'{"hostport": "127.0.0.1:7002", "ttl": 3600}\''
    installed.done(f"{PUT} {offer} http://127.0.0.1:9080/v1/services/upgraded/one")
    first = installed.done("systemctl show --property MainPID --value elkobroker")
    installed.done("apt-get install --yes --no-install-recommends /shared/later.deb")
    assert installed.done("dpkg-query --show --showformat '${Version}' elkobroker").endswith("+later")
    installed.wait_until_active()
    assert installed.done("systemctl show --property MainPID --value elkobroker") != first
    assert is_found(installed, "upgraded")
    assert installed.done(f"cat {path}") == changed
    installed.done("apt-get install --yes --allow-downgrades --no-install-recommends /shared/elkobroker_*.deb")
    installed.wait_until_active()
    assert is_found(installed, "upgraded")


def an_upgrade_leaves_the_old_broker_at_work_where_a_key_was_removed(installed: SystemdHost) -> None:
    path = "/etc/elkobroker/elkobroker.toml"
    before = installed.done(f"cat {path}")
    first = installed.done("systemctl show --property MainPID --value elkobroker")
    installed.write(path, before.replace("[console]\n", '[console]\npassword = "x"\n', 1))
    refused = installed.run("apt-get install --yes --no-install-recommends /shared/later.deb")
    assert refused.returncode != 0
    assert "brokerctl user import" in refused.stdout
    assert installed.done("systemctl show --property MainPID --value elkobroker") == first
    installed.write(path, before)
    installed.done("dpkg --configure elkobroker")
    installed.wait_until_active()
    assert installed.done("systemctl show --property MainPID --value elkobroker") != first
    installed.done("apt-get install --yes --allow-downgrades --no-install-recommends /shared/elkobroker_*.deb")


def a_restart_beside_live_peers_keeps_what_they_offer(installed: SystemdHost) -> None:
    offer = f": >/tmp/live; python3 -c {shlex.quote(PEER)} live live >>/tmp/live 2>&1 &"
    found = "curl --silent --fail http://127.0.0.1:9080/v1/services/live"
    installed.done(offer)
    until(lambda: is_found(installed, "live"))
    # The registry is written a quarter of a second after a change, and again at a stop.
    installed.done("systemctl restart elkobroker")
    assert [each["restored"] for each in json.loads(installed.done(found))["services"]] == [True]
    until(lambda: "closed" in installed.run("cat /tmp/live").stdout)
    installed.done(offer)
    until(lambda: [each["restored"] for each in json.loads(installed.done(found))["services"]] == [False])
    assert "Traceback" not in installed.journal()


def runs_from(installed: SystemdHost, source: str) -> None:
    """Stop the broker, and have its unit run an earlier version from then on, or that of the package with ""."""
    installed.done(f"systemctl stop elkobroker; rm -rf {DROP_IN} && mkdir -p {DROP_IN}")
    if source:
        # Earlier versions used libzmq, which sets the priority of its threads and reads the interfaces of the machine.
        # The compiled form of the plugin would be valid without a look at its source.
        text = "[Service]\nSystemCallFilter=\nRestrictRealtime=no\nRestrictAddressFamilies=\n"
        text += f"TemporaryFileSystem={LIBRARIES}/twisted/plugins/__pycache__:ro\n"
        for place in ("broker", "twisted/plugins/elkobroker_plugin.py"):
            text += f"BindReadOnlyPaths={source}/{place}:{LIBRARIES}/{place}\n"
        installed.write(f"{DROP_IN}/source.conf", text)
    installed.done("systemctl daemon-reload && systemctl reset-failed elkobroker")


def states_of_earlier_versions_are_taken_over_and_not_given_back(installed: SystemdHost, shared: Path) -> None:
    before = installed.done("cat /etc/elkobroker/elkobroker.toml")
    text = (FIRST / "elkobroker.toml").read_text().replace("tcp:0:", "tcp:9000:", 1)
    installed.write("/etc/elkobroker/elkobroker.toml", text)
    for commit, layouts in LAYOUTS.items():
        (shared / commit).mkdir()
        # Twisted reads a plugin that is later than its cache.
        (unpack(commit, shared / commit) / "twisted/plugins/elkobroker_plugin.py").touch()
        runs_from(installed, f"/shared/{commit}")
        installed.done("rm -rf /var/lib/private/elkobroker/* && systemctl start elkobroker")
        installed.done(f": >/tmp/peer; python3 -c {shlex.quote(PEER)} till till >>/tmp/peer 2>&1 &")
        until(lambda: "h.example:1" in installed.run("cat /tmp/peer").stdout)
        runs_from(installed, "")
        installed.done("systemctl start elkobroker")
        assert "h.example:1" in found_by_elko(installed, "till")
        runs_from(installed, f"/shared/{commit}")
        downgraded = installed.run("systemctl start elkobroker").returncode
        assert (downgraded == 0) == (layouts == (SCHEMA, sqlite_store.SCHEMA)), installed.journal()
        if downgraded:
            assert f"schema {SCHEMA}" in installed.journal()
        runs_from(installed, "")
        installed.done("systemctl start elkobroker")
        assert "h.example:1" in found_by_elko(installed, "till")
    installed.write("/etc/elkobroker/elkobroker.toml", before)
    installed.done("systemctl restart elkobroker")


def backup_and_restore_as_the_page_prints_them(installed: SystemdHost) -> None:
    (backup, shown), *restore = printed("docs/operations.md", "**Backup.**", "**A full disk**")
    offer = '\'{"hostport": "127.0.0.1:7001", "ttl": 3600}\''
    installed.done(f"{PUT} {offer} http://127.0.0.1:9080/v1/services/kept/one")
    until(lambda: is_found(installed, "kept"))
    # The registry is written a quarter of a second after a change, and again at a stop.
    installed.done("systemctl restart elkobroker")
    assert shows_but_numbers(shown, installed.done(backup))
    # The disk was lost, and the broker has begun with an empty one.
    installed.done("systemctl stop elkobroker && rm -r /var/lib/private/elkobroker/* && systemctl start elkobroker")
    assert not is_found(installed, "kept")
    for command, shown in restore:
        done = installed.done(command)
        assert not shown or shows_but_numbers(shown, done)
    assert is_found(installed, "kept")
    installed.done("ls -d /var/lib/private/elkobroker/before-restore-*")
    installed.done("rm /srv/elkobroker.tar.gz")


def configured(host: SystemdHost, text: str) -> None:
    """Start the broker with a configuration."""
    host.write("/etc/elkobroker/elkobroker.toml", text)
    host.done(command_of("docs/operations.md", "systemctl restart elkobroker"))


def a_connection_to_the_socket_of_systemd_starts_the_broker(installed: SystemdHost) -> None:
    installed.write("/etc/elkobroker/elkobroker.toml", SOCKET + HTTP)
    installed.done("systemctl stop elkobroker && systemctl start elkobroker.socket")
    assert installed.run("systemctl is-active elkobroker").stdout == "inactive\n"
    assert "desc" in found_by_elko(installed, "elkobroker.elko")
    assert installed.done("systemctl is-active elkobroker") == "active\n"
    installed.done("systemctl stop elkobroker.socket elkobroker")


def a_reload_takes_a_new_certificate(installed: SystemdHost, shared: Path) -> None:
    names = ("first", "second")
    pairs = [certificate(shared, name) for name in names]
    for _, key in pairs:
        key.chmod(0o644)
    served: list[str] = []
    for name in names:
        for part in ("cert", "key"):
            installed.done(f"install -m 640 -g elkobroker /shared/{name}.{part}.pem /etc/elkobroker/{part}.pem")
        if not served:
            configured(installed, TLS)
        else:
            installed.done("systemctl reload elkobroker")
        until(lambda: installed.run(f"python3 -c '{CERTIFICATE}'").stdout not in ["", *served])
        served.append(installed.done(f"python3 -c '{CERTIFICATE}'"))
    assert served == [public.read_text() for public, _ in pairs]


def a_full_disk_leaves_the_broker_at_work(installed: SystemdHost) -> None:
    state = "/var/lib/private/elkobroker"
    installed.done(f"systemctl stop elkobroker && mount -t tmpfs -o size=48m state {state}")
    configured(installed, HTTP)
    offer = '\'{"hostport": "127.0.0.1:7003", "ttl": 3600}\''
    installed.run(f"dd if=/dev/zero of={state}/full bs=1M")
    installed.done(f"{PUT} {offer} http://127.0.0.1:9080/v1/services/while-full/one")
    assert is_found(installed, "while-full")
    installed.done(f"rm {state}/full && {PUT} {offer} http://127.0.0.1:9080/v1/services/afterwards/one")
    installed.done("systemctl restart elkobroker")
    assert is_found(installed, "while-full")
    assert is_found(installed, "afterwards")
    installed.done(f"systemctl stop elkobroker && umount {state}")


def the_watchdog_starts_a_hung_broker_again(installed: SystemdHost) -> None:
    installed.done(f"mkdir -p {DROP_IN}")
    installed.write(f"{DROP_IN}/watchdog.conf", "[Service]\nWatchdogSec=2\n")
    installed.done("systemctl daemon-reload && systemctl restart elkobroker")
    first = installed.done("systemctl show --property MainPID --value elkobroker").strip()
    installed.done(f"kill -STOP {first}")
    until(lambda: installed.run("systemctl show --property NRestarts --value elkobroker").stdout.strip() == "1")
    installed.wait_until_active()
    installed.done(f"rm -r {DROP_IN} && systemctl daemon-reload")


def a_purge_leaves_nothing(installed: SystemdHost, files_before: set[str]) -> None:
    installed.done("apt-get purge --yes elkobroker")
    assert files(installed) - files_before == set()
    assert installed.run("getent passwd elkobroker").stdout == ""
    assert installed.run("ls -d /var/lib/private/elkobroker /var/lib/elkobroker /etc/elkobroker").returncode != 0


def test_a_package_from_its_installation_to_its_purge(
    package: Path, root: Path, installed: SystemdHost, files_before: set[str], tmp_path: Path
) -> None:
    # One test, since each process of the tests would build a package and a machine for its own part of several.
    lintian_has_no_complaint(package)
    piuparts_finds_no_trace_and_autopkgtest_a_broker(package, root, tmp_path)
    a_small_machine_has_a_broker_its_page_and_its_commands(installed)
    the_bill_of_materials_has_each_library(installed)
    a_reload_takes_a_good_file_and_refuses_a_bad_one(installed)
    an_upgrade_keeps_the_configuration_and_what_is_registered(installed)
    an_upgrade_leaves_the_old_broker_at_work_where_a_key_was_removed(installed)
    a_restart_beside_live_peers_keeps_what_they_offer(installed)
    states_of_earlier_versions_are_taken_over_and_not_given_back(installed, package.parent)
    backup_and_restore_as_the_page_prints_them(installed)
    the_watchdog_starts_a_hung_broker_again(installed)
    a_connection_to_the_socket_of_systemd_starts_the_broker(installed)
    a_reload_takes_a_new_certificate(installed, package.parent)
    a_full_disk_leaves_the_broker_at_work(installed)
    a_purge_leaves_nothing(installed, files_before)
