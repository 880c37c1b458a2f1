"""Configurations of daemons: listeners on free ports of this machine, and wires that are off."""

from __future__ import annotations

from pathlib import Path

from tests.config.certificates import certificate
from tests.integration.mc0_clients import brokerkeys

TCP = "tcp:0:interface=127.0.0.1"
"""An endpoint on a free port."""

OFF = "[mc0]\nenabled = false\n[dbp]\nenabled = false\n[mtl]\nenabled = false\n"
"""The ZeroMQ wires are off."""


ROUTERS = """\
[mc0]
endpoint = "tcp://127.0.0.1:0"
[dbp]
endpoint = "tcp://127.0.0.1:0"
beacon = []
[mtl]
endpoint = "tcp://127.0.0.1:0"
"""
"""The ZeroMQ wires are on free ports."""

DNS = f"""\
[dns]
enabled = true
endpoint = "{TCP}"
"""
"""DNS is on a free port."""


def listener(name: str, *lines: str, endpoint: str = TCP, of: str = "elko") -> str:
    """Return the table of a listener, which has these lines besides."""
    return "\n".join([f"[[{of}.listeners]]", f'name = "{name}"', f'endpoint = "{endpoint}"', *lines, ""])


PORTS_OF_EVERY_LISTENER = 13
"""The TCP ports of `every_listener`: one for each endpoint, and a second one for the data flows of MTL."""


def every_listener(directory: Path, more: str = "") -> tuple[str, str]:
    """Write a configuration with every listener and more tables, and return the options of a daemon that has it."""
    public, private = certificate(directory, "broker")
    config = directory / "elkobroker.toml"
    config.write_text(
        more
        + _WIRES
        + listener("director", of="director")
        + listener("main")
        + listener("websocket", 'transport = "websocket"')
        + listener("http", 'transport = "http"', 'path = "/"')
        + listener("rtcp", 'transport = "rtcp"')
        + listener("tls", endpoint=f"tls:0:certificate={public}:key={private}:interface=127.0.0.1")
    )
    return "--config", str(config)


def curve_listeners(directory: Path) -> tuple[str, str]:
    """Write a configuration in which mc0 and MTL have CURVE and let any key in, and return the options of a daemon that
    has it."""
    brokerkeys("new", "broker", "--dir", directory / "keys")
    curve = 'secret_key_file = "keys/broker.private"\n'
    config = directory / "elkobroker.toml"
    wires = _WIRES.replace("[mc0]\n", f"[mc0]\n{curve}").replace("[mtl]\n", f"[mtl]\n{curve}")
    config.write_text(wires + listener("main"))
    return "--config", str(config)


_WIRES = f"""
[console]
endpoint = "{TCP}"
{ROUTERS}{DNS}limit_loopback = true
[http]
endpoint = "{TCP}"
[director]
enabled = true
"""
