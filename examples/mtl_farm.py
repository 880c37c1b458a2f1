"""Registry watcher over MTL, for Twisted: prints the services of the farm as they change.

python examples/mtl_farm.py --broker tcp://127.0.0.1:5975
"""

from __future__ import annotations

import argparse
from typing import Any

from twisted.internet.task import react

from broker.client.mtl import Client
from broker.client.profiles import registry
from broker.client.profiles.registry import Service
from broker.client.settings import Event


async def main(reactor: Any) -> None:
    """Watch until interrupted, also across restarts of the broker."""
    arguments = argparse.ArgumentParser(description="Watch the farm.")
    arguments.add_argument(
        "--broker",
        default="tcp://127.0.0.1:5975",
        help="endpoint of the broker, or A,B,... [%(default)s]",
    )
    arguments.add_argument("--service", help="only services of this name")
    options = arguments.parse_args()

    client = Client(reactor, options.broker.split(","))
    reactor.addSystemEventTrigger("before", "shutdown", client.close)
    view = await registry.services(client, options.service, on_change, on_event)
    print(f"watching the farm: {len(view.entries)} services", flush=True)
    await view.ended


def on_change(event: str, service: Service) -> None:
    """Print a change. After a restart of the broker these are the differences."""
    sign = {"up": "+", "down": "-", "update": "*"}[event]
    print(f"{sign} {service.name} at {service.hostport} (provider {service.provider})", flush=True)


def on_event(event: Event, why: str) -> None:
    """Print loss and recovery of the connection."""
    print(f"the broker is {'back' if event is Event.BACK else f'away: {why}'}", flush=True)


if __name__ == "__main__":
    react(main)
