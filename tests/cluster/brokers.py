"""A cluster for tests: the real etcd, and real brokers on this machine."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from tests.cluster.real_etcd import Etcd
from tests.integration.daemon import Daemon, Peer
from tests.integration.http_api import ask
from tests.patience import until

TTL = 5
"""The least TTL, in seconds: tests of dead brokers wait for it."""


class Broker(Daemon):
    """A broker of a cluster, with HTTP requests."""

    name = ""

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """The status and the JSON of an answer over HTTP."""
        return ask(self, method, path, body)

    def get(self, path: str) -> Any:
        """The JSON of a successful answer."""
        status, answer = self.call("GET", path)
        assert status == 200, (path, status, answer)
        return answer

    def offer(self, name: str, hostport: str, instance: str = "1", ttl: float = 600) -> None:
        """Offer a service over HTTP."""
        path = f"/v1/services/{quote(name, safe='')}/{instance}"
        status, answer = self.call("PUT", path, {"hostport": hostport, "ttl": ttl})
        assert status in (200, 201), (status, answer)

    def found(self, name: str) -> list[str]:
        """The addresses of a service, as a find over HTTP returns them."""
        status, answer = self.call("GET", f"/v1/services/{quote(name, safe='')}")
        return [each["hostport"] for each in answer["services"]] if status == 200 else []

    def server(self, label: str, name: str, hostport: str) -> Peer:
        """A connected Elko server that offers a service."""
        peer = self.connect("client", label=label)
        peer.send(to="client", op="willserve", services=[{"service": name, "hostport": hostport}])
        peer.done()
        return peer

    def degraded(self) -> dict[str, str]:
        """The reasons of `/readyz` by their subject. The status is 503 where a busy machine stalls the loop."""
        _, answer = self.call("GET", "/readyz")
        return {each["what"]: each["reason"] for each in answer.get("degraded", [])}

    def members(self) -> list[str]:
        """The names of the brokers of the cluster."""
        return [each["member"] for each in self.get("/v1/cluster")["members"]]


class Brokers:
    """Brokers that share an etcd, each in a directory of its own. ``etcd`` are more arguments of `Etcd`."""

    def __init__(self, directory: Path, *names: str, members: int = 1, ttl: int = TTL, **etcd: Any) -> None:
        self.directory = directory
        self.names = names
        self.etcd = Etcd(directory / "etcd", members, **etcd)
        self._ttl = ttl
        self._stack = ExitStack()
        self.running: dict[str, Broker] = {}

    def __enter__(self) -> Brokers:
        self._stack.__enter__()
        try:
            self._stack.enter_context(self.etcd)
            for name in self.names:
                self.start(name)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None:
            for name, broker in self.running.items():
                print(f"--- log of {name} ---", *broker.log[-40:], sep="\n")
        self._stack.close()

    def __getitem__(self, name: str) -> Broker:
        return self.running[name]

    def launch(
        self, name: str, *options: str, directory: str = "", config: str = "", env: dict[str, str] | None = None
    ) -> Broker:
        """Start a broker, without waiting for anything. ``config`` is more text of its configuration file."""
        place = self.directory / (directory or name)
        place.mkdir(exist_ok=True)
        file = place / "broker.toml"
        file.write_text(
            '[elko]\n[[elko.listeners]]\nendpoint = "tcp:0:interface=127.0.0.1"\n'
            '[mc0]\nendpoint = "tcp://127.0.0.1:0"\n[dbp]\nendpoint = "tcp://127.0.0.1:0"\nbeacon = []\n'
            f"[cluster]\nttl = {self._ttl}\n{config}"
        )
        urls = ",".join(each.url for each in self.etcd.members)
        broker = Broker(place, "--config", str(file), "--cluster", urls, "--name", name, *options, env=env)
        broker.name = name
        self._stack.enter_context(broker)
        return broker

    def start(self, name: str, *options: str, config: str = "", env: dict[str, str] | None = None) -> Broker:
        """Start a broker, or start it again with its state, and wait until it serves."""
        broker = self.running[name] = self.launch(name, *options, config=config, env=env)
        broker.wait_for("console on")
        until(lambda: name in broker.members(), f"{name} is a member")
        return broker

    def stop(self, name: str) -> int:
        """Stop a broker in order. Returns its exit status."""
        broker = self.running.pop(name)
        broker.process.terminate()
        return broker.ended()

    def drain(self, name: str) -> None:
        """Drain a broker, and wait until all of its clients have gone."""
        broker = self.running[name]
        status, answer = broker.call("POST", "/v1/actions/drain", {"deadline": 60})
        assert (status, answer["state"] in ("draining", "drained")) == (200, True), (status, answer)
        until(lambda: broker.get("/v1/drain")["state"] == "drained", f"{name} is drained")

    def kill(self, name: str) -> None:
        """Kill a broker."""
        broker = self.running.pop(name)
        broker.process.kill()
        broker.ended()

    def see(self, service: str, *hostports: str) -> None:
        """Wait until all brokers find exactly these addresses of a service."""
        for name, broker in self.running.items():
            until(lambda: sorted(broker.found(service)) == sorted(hostports), f"{name} finds {service} at {hostports}")  # noqa: B023
