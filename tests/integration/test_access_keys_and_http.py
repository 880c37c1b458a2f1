"""Users of the real daemon over mc0 (CURVE keys) and HTTP: rights and revocation."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.access import users_document
from tests.access.users import put
from tests.integration.configurations import OFF
from tests.integration.daemon import Daemon
from tests.integration.http_api import ask
from tests.integration.mc0_clients import Clients, brokerkeys
from tests.integration.test_access import TOKEN, USERS
from tests.integration.test_mc0_curve import keys_in
from tests.patience import until, written

HTTP = f"""\
[http]
endpoint = "tcp:0:interface=127.0.0.1"
[access]
file = "users.toml"
{OFF}[[elko.listeners]]
endpoint = "tcp:0:interface=127.0.0.1"
"""


@contextmanager
def running(folder: Path, config: str = HTTP, users: str = USERS) -> Iterator[Daemon]:
    put(folder / "users.toml", users)
    (folder / "x.toml").write_text(config)
    with Daemon(folder, "--config", "x.toml") as daemon:
        yield daemon
        daemon.signal(signal.SIGTERM)
        daemon.ended()
        assert "Traceback" not in "".join(daemon.log)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_users_have_their_names_only_and_a_revoked_token_none(tmp_path: Path) -> None:
    service = {"hostport": "10.0.0.1:80", "ttl": 60}
    with running(tmp_path) as daemon:
        robot, ann, bob = bearer(TOKEN), basic("ann", "pencil"), basic("bob", "crayon")
        assert ask(daemon, "PUT", "/v1/services/robot-a/1", service, **robot)[0] == 201
        assert ask(daemon, "PUT", "/v1/services/bob-a/1", service, **robot)[0] == 403
        assert ask(daemon, "GET", "/v1/services/robot-a", **bob)[0] == 403
        assert ask(daemon, "GET", "/v1/services/robot-a", **ann)[0] == 200
        assert ask(daemon, "GET", "/v1/services/robot-a")[0] == 401
        status, problem = ask(daemon, "POST", "/v1/actions/shutdown", {}, **bob, **{"X-Request-ID": "from-bob"})
        assert (status, problem["request_id"]) == (403, "from-bob")
        daemon.wait_for("from-bob] audit: bob")
        put(
            tmp_path / "users.toml", USERS.replace(users_document.token_hash(TOKEN), users_document.token_hash("other"))
        )
        daemon.wait_for("the users file changed")
        assert ask(daemon, "GET", "/v1/services/robot-a", **robot)[0] == 401
        assert ask(daemon, "GET", "/v1/services/robot-a", **ann)[1]["services"] == []
        (act,) = map(json.loads, written(tmp_path / "state" / "audit.jsonl").splitlines())
    assert (act["user"], act["operation"], act["result"]) == ("bob", "admin.shutdown", "refused: forbidden")
    assert act["request_id"] == "from-bob"


def test_services_are_withdrawn_by_the_right_to_their_names(tmp_path: Path) -> None:
    right = '[[rights]]\nusers = ["bob"]\noperations = ["admin.withdraw"]\nnames = ["robot-b*"]\n'
    service = {"hostport": "10.0.0.1:80", "ttl": 60}
    with running(tmp_path, users=USERS + right) as daemon:
        robot, ann, bob = bearer(TOKEN), basic("ann", "pencil"), basic("bob", "crayon")

        def withdraw(name: str | None, **headers: str) -> int:
            [found] = ask(daemon, "GET", f"/v1/services/{name or 'robot-a'}", **ann)[1]["services"]
            body = {"provider": found["provider"], **({} if name is None else {"name": name})}
            return ask(daemon, "POST", "/v1/actions/withdraw", body, **headers)[0]

        for name in ("robot-a", "robot-bank"):
            assert ask(daemon, "PUT", f"/v1/services/{name}/1", service, **robot)[0] == 201
        assert withdraw("robot-a", **bob) == withdraw(None, **bob) == withdraw("robot-bank", **robot) == 403
        assert withdraw("robot-bank", **bob) == 200
        assert withdraw(None, **ann) == 200
        assert ask(daemon, "GET", "/v1/services/robot-bank", **ann)[1]["services"] == []
        log = tmp_path / "state" / "audit.jsonl"
        until(lambda: written(log).count("\n") == 5)
    acts = [json.loads(line) for line in log.read_text().splitlines()]
    refused = "refused: forbidden"
    assert [(act["user"], act["result"]) for act in acts] == [
        ("bob", refused), ("bob", refused), ("robot", refused), ("bob", "done"), ("ann", "done"),
    ]  # fmt: skip


def test_too_many_requests_of_a_user_are_refused(tmp_path: Path) -> None:
    config = HTTP.replace("[access]", "[access]\nrequests_per_user = 1.0\nrequests_burst = 5")
    with running(tmp_path, config) as daemon:
        answers = [ask(daemon, "GET", "/v1/services/robot-a", **bearer(TOKEN))[0] for _ in range(8)]
        assert 429 in answers
        assert ask(daemon, "GET", "/v1/services/bob-a", **basic("bob", "crayon"))[0] != 429


MC0 = """\
[mc0]
endpoint = "tcp://127.0.0.1:0"
secret_key_file = "keys/broker.private"
handshake = 0.3
[http]
enabled = false
[access]
file = "users.toml"
[dbp]
enabled = false
[mtl]
enabled = false
[[elko.listeners]]
name = "main"
endpoint = "tcp:0:interface=127.0.0.1"
"""

NODES = """\
[[users]]
name = "web1"
keys = ["{web1}"]
[[users]]
name = "web2"
keys = ["{web2}"]
[[rights]]
users = ["web*"]
operations = ["publish", "subscribe"]
names = ["{{user}}.*", "all"]
[[rights]]
users = ["web*"]
operations = ["subscribe"]
names = ["elkobroker.services"]
[[rights]]
users = ["web1"]
operations = ["find"]
names = ["web1-*"]
[[rights]]
users = ["anonymous"]
operations = ["find", "offer"]
listeners = ["elko*"]
"""


def test_the_topics_of_the_registry_show_what_a_key_may_find(tmp_path: Path) -> None:
    for name in ("broker", "web1", "web2"):
        brokerkeys("new", name, "--dir", tmp_path / "keys")
    pairs = {name: keys_in(tmp_path, name) for name in ("web1", "web2")}
    users = NODES.format(**{name: pair.public.decode() for name, pair in pairs.items()})
    with running(tmp_path, MC0, users) as daemon, Clients(f"tcp://127.0.0.1:{_mc0_port(daemon)}") as clients:
        one = clients.subscribed(b"one", "elkobroker.services", keys=pairs["web1"])
        other = clients.subscribed(b"other", "all", keys=pairs["web2"])
        assert other.ask("SUB|ID|1||elkobroker.services").startswith("ERROR")
        with daemon.connect() as server:
            for name in ("web2-shop", "web1-shop"):
                server.send(to="client", op="willserve", services=[{"service": name, "hostport": "h:1"}])
            assert '"service":"web1-shop"' in one.hear()
            put(tmp_path / "users.toml", users.replace('"web1-*"', '"web3-*"'))
            daemon.wait_for("the users file changed")
            for name in ("web1-bank", "web3-bank"):
                server.send(to="client", op="willserve", services=[{"service": name, "hostport": "h:1"}])
            assert '"service":"web3-bank"' in one.hear()


def _mc0_port(daemon: Daemon) -> int:
    return int(daemon.wait_for(r"mc0 on tcp://127\.0\.0\.1:(\d+) \(curve\)").group(1))
