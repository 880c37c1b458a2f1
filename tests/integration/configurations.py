"""Configurations of daemons whose listeners have free ports of this machine."""

from __future__ import annotations

from pathlib import Path

from tests.config.certificates import certificate

TCP = "tcp:0:interface=127.0.0.1"
"""An endpoint on a free port."""

_EVERY = f"""
[console]
endpoint = "{TCP}"
[mc0]
endpoint = "tcp://127.0.0.1:0"
[dbp]
endpoint = "tcp://127.0.0.1:0"
beacon = []
[mtl]
endpoint = "tcp://127.0.0.1:0"
[dns]
enabled = true
endpoint = "{TCP}"
limit_loopback = true
[http]
endpoint = "{TCP}"
[director]
enabled = true
[[director.listeners]]
name = "director"
endpoint = "{TCP}"
[[elko.listeners]]
name = "main"
endpoint = "{TCP}"
[[elko.listeners]]
name = "websocket"
endpoint = "{TCP}"
transport = "websocket"
[[elko.listeners]]
name = "http"
endpoint = "{TCP}"
transport = "http"
path = "/"
[[elko.listeners]]
name = "rtcp"
endpoint = "{TCP}"
transport = "rtcp"
[[elko.listeners]]
name = "tls"
endpoint = "tls:0:certificate={{certificate}}:key={{key}}:interface=127.0.0.1"
"""

PORTS_OF_EVERY_LISTENER = 13
"""The TCP ports of `every_listener`: one for each endpoint, and a second one for the data flows of MTL."""


def every_listener(directory: Path) -> tuple[str, str]:
    """Write a configuration with every listener, and return the options of a daemon that has it."""
    public, private = certificate(directory, "broker")
    config = directory / "elkobroker.toml"
    config.write_text(_EVERY.format(certificate=public, key=private))
    return "--config", str(config)
