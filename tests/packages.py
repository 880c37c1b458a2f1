"""Programs of the system that tests need: etcd, PostgreSQL, network namespaces, proxies, packaging.

`etc/setup.sh test` installs them. A test that is skipped because a program is missing makes the run fail, unless that
script has noted that the package cannot be had here; a test that is skipped for another reason does not. The last lines
of the run have the reason of every skip, but for those that would be the same on any machine.
"""

from __future__ import annotations

import functools
import glob
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NOTE = Path(__file__).parents[1] / ".venv" / "missing-packages"
"""The file in which `etc/setup.sh` notes the packages that it could not install, one in each line."""

PACKAGES = {
    "etcd": "etcd-server",
    "etcdctl": "etcd-client",
    "postgres": "postgresql",
    "initdb": "postgresql",
    "ip": "iproute2",
    "nft": "nftables",
    "faketime": "faketime",
    "nginx": "nginx-light",
    "haproxy": "haproxy",
    "dpkg-buildpackage": "dpkg-dev",
    "dh": "debhelper",
    "lintian": "lintian",
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "piuparts": "piuparts",
    "autopkgtest": "autopkgtest",
    "buildah": "buildah",
    "podman": "podman",
    "podman-compose": "podman-compose",
    "crun": "crun",
    "netavark": "netavark",
    "aardvark-dns": "aardvark-dns",
    "iptables": "iptables",
    "unbound": "unbound",
    "dnsmasq": "dnsmasq-base",
    "prometheus": "prometheus",
    "curl": "curl",
    "dig": "bind9-dnsutils",
    "jq": "jq",
    "node": "nodejs",
    "java": "default-jre-headless",
    "promtool": "prometheus",
    "chromium": "chromium",
    "systemd-analyze": "systemd",
    "cc": "gcc",
    "gpg": "gpg",
    "groff": "groff-base",
    "bash": "bash",
    "zsh": "zsh",
    "fish": "fish",
}
"""Programs with their packages in Debian."""

ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")
"""The begin of a command that has a network of its own, so that default ports are free."""

MISSING = "missing package"
REFUSED = "refused by the kernel"
LACKING = "not of this wire"
"""The begins of reasons of skips. That of any other skip is shown as it is."""


def program(name: str) -> str:
    """Return the path of a program of `PACKAGES`. Skips the test if it is missing."""
    # Debian keeps the programs of PostgreSQL's server, those of podman, and those for root outside an ordinary PATH.
    places = [os.environ.get("PATH", ""), "/usr/sbin", "/sbin", *sorted(glob.glob("/usr/lib/postgresql/*/bin"))[::-1]]
    places.append("/usr/lib/podman")
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        pytest.skip(f"{MISSING}: {PACKAGES[name]} (the program {name})")
    return found


@functools.cache
def _namespaces() -> str:
    """Return "" if network namespaces can be used, otherwise the reason."""
    name = f"elkobroker-probe-{os.getpid()}"
    ip = program("ip")
    made = subprocess.run([ip, "netns", "add", name], capture_output=True, text=True)
    if made.returncode == 0:
        made = subprocess.run([ip, "netns", "exec", name, "true"], capture_output=True, text=True)
        subprocess.run([ip, "netns", "delete", name], capture_output=True)
    return "" if made.returncode == 0 else " ".join(made.stderr.split()) or "without a reason"


def need_namespaces() -> None:
    """Skip the test if network namespaces cannot be had."""
    if reason := _namespaces():
        pytest.skip(f"{REFUSED}: network namespaces ({reason})")


def noted() -> frozenset[str]:
    """Return the packages that could not be installed."""
    return frozenset(NOTE.read_text().split()) if NOTE.exists() else frozenset()


def _skipped(config: pytest.Config, kind: str) -> dict[str, int]:
    """Return the reasons of a kind, "" for those of no kind, with the number of tests that were skipped for each."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    counts: dict[str, int] = {}
    for report in reporter.stats.get("skipped", ()) if reporter is not None else ():
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = text.removeprefix("Skipped: ")
        begin = next((each for each in (MISSING, REFUSED, LACKING) if reason.startswith(f"{each}: ")), "")
        if begin == kind:
            reason = reason.removeprefix(f"{begin}: ")
            counts[reason] = counts.get(reason, 0) + 1
    return counts


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Have the run fail if tests were skipped for a package that could be installed."""
    unexcused = [reason for reason in _skipped(session.config, MISSING) if reason.split()[0] not in noted()]
    if unexcused and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which tests were skipped for want of something that this machine does not have or permit."""
    for reason, count in _skipped(config, MISSING).items():
        if reason.split()[0] in noted():
            terminalreporter.write_line(f"{count} tests skipped: {reason} cannot be installed here", yellow=True)
        else:
            sentence = f"{count} tests skipped, so the run fails: {reason} is missing; run etc/setup.sh test"
            terminalreporter.write_line(sentence, red=True)
    for reason, count in _skipped(config, REFUSED).items():
        terminalreporter.write_line(f"{count} tests skipped: the kernel refuses {reason}", yellow=True)
    for reason, count in _skipped(config, "").items():
        terminalreporter.write_line(f"{count} tests skipped: {reason}", yellow=True)
