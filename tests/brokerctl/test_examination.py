"""``check`` and ``doctor``."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from broker.app.configuration import SCHEMA
from broker.brokerctl.doctor import SOON, Level, examine_configuration, expiry
from broker.config.key import declared, secret_files
from tests.access.users import put
from tests.brokerctl.server import Canned, Server, ctl, page
from tests.config.certificates import certificate
from tests.integration.daemon import ROOT

PYTHON = {"PYTHONPATH": str(ROOT)}


@pytest.mark.long
def test_check_is_that_of_the_daemon(tmp_path: Path) -> None:
    good = tmp_path / "good.toml"
    good.write_text("[mc0]\nenabled = false\n")
    result = ctl("check", good, **PYTHON)
    assert result.exit_code == 0
    assert "listener main: bound to 127.0.0.1:9000" in result.stdout
    bad = tmp_path / "bad.toml"
    bad.write_text('[broker]\ngrace = "\\u001b"\n')
    result = ctl("check", bad, **PYTHON)
    assert (result.exit_code, result.stdout) == (
        1, f"{bad}:2: broker.grace: must be a number, not a string\n"
    )  # fmt: skip
    assert ctl("check", tmp_path / "missing.toml", **PYTHON).exit_code == 1


@pytest.mark.long
def test_check_tries_ports_if_asked(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = tmp_path / "a.toml"
        file.write_text(
            f'[[elko.listeners]]\nendpoint = "tcp:{port}:interface=127.0.0.1"\n'
            + "".join(f"[{wire}]\nenabled = false\n" for wire in ("mc0", "dbp", "mtl", "http", "console"))
        )
        assert ctl("check", file, **PYTHON).exit_code == 0
        result = ctl("check", "--ports", file, **PYTHON)
    assert result.exit_code == 1
    assert f"127.0.0.1:{port}" in result.stdout.splitlines()[-1]


def examined(*words: object, **env: str) -> tuple[int, dict[str, tuple[str, str]]]:
    result = ctl("doctor", "--json", *words, **PYTHON, **env)
    return result.exit_code, {row["what"]: (row["level"], row["text"]) for row in json.loads(result.stdout)}


def test_doctor_examines_this_machine() -> None:
    code, found = examined("--offline")
    assert code == 0
    assert {"file descriptors", "Python"} <= found.keys()


def healthy(server: Server, **headers: str) -> None:
    server.answer("/healthz", Canned({"status": "ok"}, headers=headers))
    server.answer("/readyz", {"ready": True, "reasons": []})
    server.answer("/v1/status", {"version": "1.2.3"})


def test_doctor_asks_the_broker(server: Server) -> None:
    healthy(server)
    code, found = examined("--url", server.url)
    assert code == 0
    assert found["broker"][0] == "ok"
    assert found["version"] == ("ok", "elkobroker 1.2.3")
    reasons = [{"what": "listener mtl", "reason": "taken"}]
    server.answer("/readyz", Canned({"ready": False, "reasons": reasons}, 503))
    code, found = examined("--url", server.url)
    assert (code, found["listener mtl"]) == (1, ("error", "taken"))


def test_limits_and_disk_are_those_of_the_broker_that_is_asked(server: Server) -> None:
    healthy(server)
    assert "in this shell" in examined("--url", server.url)[1]["file descriptors"][1]  # an older broker
    about = {"descriptors": 65_536, "open": 700, "somaxconn": 4_096, "disk": "/there", "free": 5 * 1024**3}
    server.answer("/v1/machine", about)
    _, found = examined("--url", server.url)
    assert found["file descriptors"] == ("ok", "700 of 65536 are open at the broker")
    assert (found["somaxconn"], found["disk of /there"]) == (("ok", "4096"), ("ok", "5.0 GiB free"))
    server.answer("/v1/machine", {**about, "open": 60_000, "somaxconn": None, "free": 1024**2})
    code, found = examined("--url", server.url)
    last = ("error", "1.0 MiB free: the broker cannot store its state much longer")
    assert (code, found["file descriptors"][0], found["disk of /there"]) == (1, "warning", last)
    assert "somaxconn" not in found
    server.answer("/v1/machine", {**about, "free": 0})
    full = ("error", "0 B free: the broker cannot store its state")
    assert examined("--url", server.url)[1]["disk of /there"] == full


def test_doctor_examines_the_cluster_of_the_broker(server: Server) -> None:
    healthy(server)
    members = [{"member": "a", "here": True}, {"member": "b", "linked": True}]
    server.answer("/v1/cluster", {"clustered": True, "members": members})
    at = "http://10.0.0.1:2379"
    server.answer("/v1/views/cluster/etcd", {"rows": [{"endpoint": at, "state": "healthy", "clock": 0.4}]})
    code, found = examined("--url", server.url)
    assert (code, found["cluster"], found[f"etcd {at}"]) == (0, ("ok", "2 brokers, with open links"), ("ok", "healthy"))
    server.answer("/v1/cluster", {"clustered": True, "members": [*members, {"member": "c", "linked": False}]})
    row = {"endpoint": at, "state": "away", "clock": -90.0, "defragment": False}
    server.answer("/v1/views/cluster/etcd", {"rows": [row]})
    code, found = examined("--url", server.url)
    assert code == 0
    assert found["cluster"] == ("warning", "no link is open to c: messages of topics do not pass")
    assert found[f"etcd {at}"][1].startswith("its clock is -90 s from that of the broker")
    server.answer("/v1/views/cluster/etcd", {"rows": [row | {"clock": 0.1, "defragment": True}]})
    assert "run etcdctl defrag" in examined("--url", server.url)[1][f"etcd {at}"][1]


def test_doctor_examines_the_bridges_that_are_up(server: Server) -> None:
    healthy(server)
    row = {"name": "east", "state": "up", "services_in": 3, "services_out": 1, "refused": 0}
    server.answer("/v1/views/broker/bridges", {"rows": [row, row | {"name": "south", "state": "waiting"}]})
    code, found = examined("--url", server.url)
    assert (code, found["bridge east"], "bridge south" in found) == (0, ("ok", "3 services come, 1 go"), False)
    server.answer("/v1/views/broker/bridges", {"rows": [row | {"refused": 2, "error": "no right"}]})
    code, found = examined("--url", server.url)
    assert found["bridge east"] == (
        "warning",
        "3 services come, 1 go; 2 were refused, the last one because no right",
    )


def test_a_broker_that_does_not_answer_is_an_error() -> None:
    code, found = examined("--url", "http://127.0.0.1:1")
    assert code == 1
    assert found["broker"] == ("error", "http://127.0.0.1:1 cannot be reached: Connection refused")


def test_files_of_a_configuration_are_examined(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "soon", days=3)
    old, _ = certificate(tmp_path, "old", days=-1)
    key.chmod(0o644)
    put(tmp_path / "users.toml", "nobody = true\n")
    file = tmp_path / "a.toml"
    file.write_text(
        '[access]\nfile = "users.toml"\n[[elko.listeners]]\n'
        f'endpoint = "tls:0:certificate={cert.name}:key={key.name}:ca={old.name}:interface=127.0.0.1"\n'
        f'[broker]\nstate = "{tmp_path}/state"\n'
    )
    code, found = examined("--offline", "--config", file)
    assert code == 1
    assert found[str(tmp_path / "users.toml")] == ("ok", "mode 0600")
    assert found[str(key)][0] == "error"
    assert "all users of this machine can use it" in found[str(key)][1]
    assert found[str(cert)][0] == "warning"
    assert found[str(old)][0] == "error"
    assert found[f"disk of {tmp_path}/state"][0] == "warning"


def test_each_file_with_a_secret_is_examined(tmp_path: Path) -> None:
    ca, key = certificate(tmp_path, "old", days=-1)
    keys = [each for section in SCHEMA.sections for each in secret_files(section.values, section.name)]
    assert {"access.file", "cluster.key", "notify.rules.secret_file", "mtl.secret_key_file"} <= set(keys)
    names = [*map(str, range(len(keys))), "f", key.name]
    for name in names:
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o604)
    file = tmp_path / "a.toml"
    file.write_text(
        "".join(f'{key} = "{number}"\n' for number, key in enumerate(keys))
        + f'cluster.ca = "{ca.name}"\nbridges.to.key = "{"k" * 40}"\n'
        f'http.endpoint = "tls:0:key={key.name}:passphrase_file=f"\n'
    )
    _, found = examined("--offline", "--config", file)
    levels = {Path(what).name: level for what, (level, _) in found.items() if Path(what).parent == tmp_path}
    assert levels == dict.fromkeys((*names, ca.name, file.name), "error")


def secrets(table: type[attrs.AttrsInstance], here: str) -> Iterator[str]:
    """Yield the dotted keys of a table whose values are secrets."""
    for each in declared(table):
        inner = each.entry or each.table
        if inner is not None:
            yield from secrets(inner, f"{here}.{each.name}")
        elif each.key.secret:
            yield f"{here}.{each.name}"


def test_a_configuration_with_a_secret_is_one_itself(tmp_path: Path) -> None:
    keys = [each for section in SCHEMA.sections for each in secrets(section.values, section.name)]
    assert {"cluster.password", "mtl.secret_key", "notify.rules.command"} < set(keys)
    file = tmp_path / "a.toml"
    for key in keys:
        for value, level in (('"x"', Level.ERROR), ('["x"]', Level.ERROR), ('""', None)):
            file.write_text(f"{key} = {value}\n")
            file.chmod(0o604)
            assert next((each.level for each in examine_configuration(file)), None) is level, key
        file.chmod(0o640)
        assert not [each for each in examine_configuration(file) if each.level is not Level.OK]
    file.write_text('cluster.password = "x"\n')
    file.chmod(0o644)
    told = ctl("doctor", "--offline", "--config", file, **PYTHON).stdout
    assert f"error   {file}: mode 0644: all users of this machine can use it" in told


@pytest.mark.parametrize(("left", "level"), [(-1.0, Level.ERROR), (SOON - 1.0, Level.WARNING), (SOON + 1.0, Level.OK)])
def test_a_certificate_is_a_warning_a_month_before_its_end(left: float, level: Level) -> None:
    assert expiry("x", 1_800_000_000 + left, 1_800_000_000).level is level


def test_files_of_a_context_are_examined(tmp_path: Path, server: Server) -> None:
    token = tmp_path / "token"
    token.write_text("ebt_x\n")
    token.chmod(0o604)
    contexts = tmp_path / "contexts.toml"
    contexts.write_text('current = "a"\n[contexts.a]\nurl = "http://127.0.0.1:1"\ntoken_file = "token"\n')
    code, found = examined("--offline", ELKOBROKER_CONTEXTS=str(contexts))
    assert code == 1
    assert found[str(token)][0] == "error"
    contexts.write_text("x = [")
    code, found = examined(ELKOBROKER_CONTEXTS=str(contexts))
    assert (code, found["context"][0]) == (1, "error")


def test_doctor_prints_lines_for_people(server: Server) -> None:
    healthy(server)
    result = ctl("--url", server.url, "doctor", **PYTHON)
    assert any(line.startswith("ok      broker: ") for line in result.stdout.splitlines())


def test_doctor_tries_the_addresses_of_services(server: Server) -> None:
    healthy(server)
    with socket.create_server(("127.0.0.1", 0)) as open_port, socket.create_server(("127.0.0.1", 0)) as other:
        closed = other.getsockname()[1]
        other.close()
        places = {
            "bank": f"127.0.0.1:{open_port.getsockname()[1]}",
            "shop": f"127.0.0.1:{closed}",
            "mail": "no-such-host.invalid:25",
            "path": "/run/mail.sock",
        }
        rows = [{"service": name, "hostport": place, "protocol": "tcp"} for name, place in places.items()]
        server.answer(
            "/v1/services", page(*rows, {"service": "udp", "hostport": f"127.0.0.1:{closed}", "protocol": "udp"})
        )
        result = ctl("--url", server.url, "doctor", "--json", **PYTHON)
    found = sorted(row["text"] for row in json.loads(result.stdout) if row["what"] == "addresses")
    assert found == [
        "mail at no-such-host.invalid:25: the name of its host cannot be looked up at this machine",
        f"shop at 127.0.0.1:{closed}: nothing listens on its port: the connection is refused",
    ]
