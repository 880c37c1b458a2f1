"""The image that `etc/package.sh` makes for a release: alone, and as three brokers by the compose file."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemon import environment
from tests.packages import ALONE, need_namespaces, program
from tests.patience import PATIENCE

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a storage of its own with the image."""
    if os.geteuid() != 0:
        pytest.skip("an image is built by root")
    where = tmp_path_factory.mktemp("container")
    buildah = program("buildah")
    program("mmdebstrap")
    variables = {**os.environ, "DIST": str(where / "dist"), "TMPDIR": str(where)}
    build = ["sh", "etc/package.sh", "image"]
    done = subprocess.run(build, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    if done.stderr.endswith("setarch fails\n"):
        pytest.skip(f"mmdebstrap makes no Debian here: {' '.join(done.stderr.split()[-20:])}")
    assert done.returncode == 0, done.stderr
    [archive] = (where / "dist").iterdir()
    command = [buildah, *stored(where)]
    # podman and buildah of Debian 12 read no compressed archive.
    unpacked = where / "image.tar"
    with gzip.open(archive) as packed, unpacked.open("wb") as file:
        shutil.copyfileobj(packed, file)
    subprocess.run([*command, "pull", f"docker-archive:{unpacked}"], env=variables, check=True, capture_output=True)
    yield where
    subprocess.run([*command, "rm", "--all"], check=False, capture_output=True)
    subprocess.run(["umount", "--recursive", str(where / "storage/overlay")], check=False, capture_output=True)


def stored(where: Path) -> list[str]:
    """The options of a storage, which shares the files of layers: the driver "vfs" would copy them."""
    return ["--storage-driver", "overlay", "--root", str(where / "storage"), "--runroot", str(where / "run")]


@pytest.fixture
def image(storage: Path) -> list[str]:
    """The begin of a command in a container of the image."""
    command = [program("buildah"), *stored(storage)]
    made = subprocess.check_output([*command, "from", "--pull-never", "localhost/elkobroker"], text=True).strip()
    return [*ALONE, *command, "run", "--isolation", "chroot", "--network", "host", "--user", "9000:9000", made, "--"]


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
cat /opt/elkobroker/share/doc/elkobroker/sbom.json
"""
    command = [*image, "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("9000\n200\n"), done.stdout + done.stderr
    assert "elko listener 'main' on 0.0.0.0:9000" in done.stdout or "elko listener 'main' on :::9000" in done.stdout
    assert "Server Shut Down" in done.stdout
    assert "etcd Version" in done.stdout
    listed = json.loads(done.stdout[done.stdout.index("\n{\n") :])
    assert {"elkobroker", "twisted"} <= {each["name"].lower() for each in listed["components"]}


def test_the_image_says_how_it_is_run_stopped_and_checked(storage: Path) -> None:
    command = [program("buildah"), *stored(storage), "inspect", "--type", "image", "localhost/elkobroker"]
    config = json.loads(subprocess.check_output(command))["Docker"]["config"]
    assert (config["User"], config["StopSignal"]) == ("9000:9000", "SIGTERM")
    assert config["Healthcheck"]["Test"][:2] == ["CMD", "/opt/elkobroker/bin/python"]
    assert config["Volumes"] == {"/var/lib/elkobroker": {}}
    assert {"9000/tcp", "9080/tcp", "61616/tcp", "5246/tcp", "5246/udp", "5975/tcp", "5976/tcp"} == {
        *config["ExposedPorts"]
    }
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert (labels["title"], labels["licenses"]) == ("elkobroker", "MIT")
    assert labels["version"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_archive_has_nothing_of_its_build_in_it(storage: Path) -> None:
    """One time for all files of a layer, no log, and no name of a container: two builds give the same bytes."""
    with tarfile.open(storage / "image.tar") as packed:
        manifest = json.loads(read(packed, "manifest.json"))[0]
        text = read(packed, manifest["Config"])
        assert manifest["Config"] == f"{hashlib.sha256(text).hexdigest()}.json"
        config = json.loads(text)
        assert (config["config"]["Hostname"], config["container_config"]["Hostname"]) == ("", "")
        assert not {"container", "parent"} & set(config)
        for name in manifest["Layers"]:
            with tarfile.open(fileobj=packed.extractfile(name)) as layer:
                members = layer.getmembers()
            assert len({each.mtime for each in members}) == 1
            files = {each.name: each.size for each in members if each.isfile()}
            kept = r"(var/log/|root/\.cache/|etc/(hostname|resolv.conf|machine-id)$)"
            assert {path for path, size in files.items() if re.match(kept, path) and size} <= {"etc/machine-id"}


def test_no_module_of_the_image_is_compiled_at_a_start(image: list[str]) -> None:
    """Compiled modules do not name the time of their sources, and the cache of plugins is later than they are."""
    script = """
import pathlib, sys, sysconfig
places = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
files = [path for place in places for path in pathlib.Path(place).rglob("*.pyc")]
print(len(files) > 1000, sum(path.read_bytes()[4:8] != bytes([1, 0, 0, 0]) for path in files))
plugins = pathlib.Path(sysconfig.get_path("purelib"), "twisted/plugins")
print((plugins / "dropin.cache").stat().st_mtime > max(path.stat().st_mtime for path in plugins.glob("*.py")))
"""
    done = subprocess.run([*image, "/opt/elkobroker/bin/python", "-c", script], capture_output=True, text=True)
    assert done.stdout == "True 0\nTrue\n", done.stdout + done.stderr


def read(packed: tarfile.TarFile, name: str) -> bytes:
    file = packed.extractfile(name)
    assert file is not None
    return file.read()


CONTAINERS = """[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
tmp_dir = "{where}/libpod"
[network]
network_backend = "netavark"
network_config_dir = "{where}/networks"
[containers]
cgroups = "disabled"
log_driver = "k8s-file"
# No more than this machine permits.
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
"""

STORAGE = """[storage]
driver = "overlay"
graphroot = "{where}/storage"
runroot = "{where}/run"
"""

COMPOSED = """
ip link set lo up
# Podman and crun write there, and take the groups of a machine with both versions for none.
umount --recursive /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /run/netns /run/containers
mount -t tmpfs none /run/netns
# An earlier run left the process id of its name server there, which another process has now.
mount -t tmpfs none /run/containers
podman run --rm --entrypoint /bin/true localhost/elkobroker >&2 || exit 77
podman-compose --project-name farm up -d
ask() { curl --silent --fail --cacert cluster/broker-a/ca.pem --user "service:$PASSWORD" "$@"; }
offer='{"hostport": "192.0.2.1:7000", "ttl": 600}'
until ask https://localhost:9080/v1/services/bank/one --request PUT --data "$offer" >&2; do sleep 0.2; done
for port in 9180 9280; do
    until ask https://localhost:$port/v1/services/bank | grep 192.0.2.1:7000 >&2; do sleep 0.2; done
    echo "found at $port"
done
for name in $(podman ps --format '{{.Names}}' | sort); do
    podman healthcheck run $name && echo "$name is healthy for $(podman exec $name id -u)"
done
podman stop --time 60 $(podman ps -q) >&2
podman ps --all --format '{{.Status}}' | cut -d ' ' -f 1-2
"""
"""Commands beside those at the head of the compose file, in namespaces of their own."""

NO_CONTAINERS = 77
"""The status of these commands where podman cannot start a container at all."""


def test_the_compose_file_makes_three_brokers_that_share_a_registry(storage: Path, tmp_path: Path) -> None:
    need_namespaces()
    for each in ("podman", "podman-compose", "crun", "netavark", "aardvark-dns", "iptables", "curl"):
        program(each)
    init = [sys.executable, "-m", "broker.brokerctl", "cluster", "init", "broker-a", "broker-b", "broker-c"]
    said = subprocess.check_output(init, cwd=tmp_path, env=environment(), text=True)
    for file in [*tmp_path.glob("cluster/broker-*"), *tmp_path.glob("cluster/broker-*/*")]:
        os.chown(file, 9000, 9000)
    shutil.copy(ROOT / "etc/container/compose.yaml", tmp_path)
    for name, text in (("containers", CONTAINERS), ("storage", STORAGE)):
        (tmp_path / f"{name}.conf").write_text(text.replace("{where}", str(storage)))
    files = {
        f"CONTAINERS_{name}": f"{tmp_path}/{file}.conf"
        for name, file in (("CONF", "containers"), ("STORAGE_CONF", "storage"))
    }
    [password] = re.findall("^password of service: (.*)", said, re.MULTILINE)
    # With its own processes: they end with it.
    alone = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", COMPOSED]
    variables = environment(PASSWORD=password, **files)
    done = subprocess.run(
        alone, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if done.returncode == NO_CONTAINERS:
        pytest.skip(f"podman starts no container here: {done.stderr[-300:]}")
    healthy = "".join(f"farm_broker-{name}_1 is healthy for 9000\n" for name in "abc")
    expected = f"found at 9180\nfound at 9280\n{healthy}" + "Exited (0)\n" * 3
    assert done.stdout.endswith(expected), done.stdout + done.stderr[-3_000:]
