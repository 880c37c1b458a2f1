"""Brokers of several sites: real daemons with bridges, and the configuration of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from broker import brokerkeys
from tests.integration.configurations import ROUTERS, TCP, listener
from tests.integration.daemon import Daemon
from tests.integration.http_api import ask


@attrs.define
class Site:
    """A site: its name, its CURVE key, and its daemon once it runs. ``port`` is that of its bridges."""

    name: str
    folder: Path
    public: str
    port: int = 0
    daemon: Daemon = attrs.field(init=False)

    @classmethod
    def of(cls, name: str, folder: Path) -> Site:
        """Make the folder and the key of a site."""
        private, public = brokerkeys.new(name, str(folder / name), force=False)
        return cls(name, private.parent, public.read_text().strip())

    def start(self, *bridges: str, more: str = "", listen: str = "127.0.0.1", runner: Sequence[str] = ()) -> Daemon:
        """Start the daemon with these tables of bridges."""
        path = self.folder / "elkobroker.toml"
        path.write_text(
            f'[http]\nendpoint = "{TCP}"\n{ROUTERS}{more}{listener("main")}'
            f'[bridges]\nsite = "{self.name}"\nsecret_key_file = "{self.name}.private"\n'
            f'listen = "tcp://{listen}:{self.port}"\n{"".join(bridges)}'
        )
        self.daemon = Daemon(self.folder, "--config", str(path), "--state", str(self.folder / "state"), runner=runner)
        self.port = int(self.daemon.wait_for(r"links between brokers on \S+:(\d+) ").group(1))
        return self.daemon

    def offer(self, name: str, hostport: str = "192.0.2.1:80", **more: Any) -> None:
        """Register an instance over HTTP."""
        assert ask(self.daemon, "PUT", f"/v1/services/{name}/one", {"hostport": hostport, **more})[0] in (200, 201)

    def withdraw(self, name: str) -> None:
        """Withdraw that instance."""
        assert ask(self.daemon, "DELETE", f"/v1/services/{name}/one")[0] == 204

    def services(self) -> dict[str, dict[str, Any]]:
        """The rows of all services but the broker's own, by name."""
        rows = ask(self.daemon, "GET", "/v1/services")[1]["rows"]
        return {row["service"]: row for row in rows if row["provider"]}

    def bridge(self, name: str) -> dict[str, Any]:
        """The row of a bridge."""
        rows = ask(self.daemon, "GET", "/v1/views/broker/bridges")[1]["rows"]
        return next(row for row in rows if row["name"] == name)


def bridge(to: Site, connect: bool | str = False, **keys: Any) -> str:
    """The table of a bridge to a site; ``connect``: this side connects, on loopback or to that endpoint."""
    lines = [f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}" for key, value in keys.items()]
    if connect:
        lines.append(f'connect = "{f"tcp://127.0.0.1:{to.port}" if connect is True else connect}"')
    return "\n".join(["[[bridges.to]]", f'name = "{to.name}"', f"key = '{to.public}'", *lines, ""])


EVERY: dict[str, Any] = {f"{way}_{what}": ["*"] for way in ("send", "receive") for what in ("services", "topics")}
"""Keys of a bridge over which all travels, both ways."""
