"""What every wire can do, in words that belong to none: each wire is driven through these two roles.

A wire joins the suite by a class here with `provider` and `seeker`, over the farm's one registry. Where it lacks a
behaviour, its role says so by `pytest.skip` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tests.session.recording import Client, Farm, desc


class Offering(Protocol):
    """A server that offers services."""

    def offer(self, name: str, hostport: str) -> None: ...
    def withdraw(self, name: str) -> None: ...
    def load(self, load: float) -> None: ...
    def die(self) -> None:
        """Go without a word."""


class Seeking(Protocol):
    """Somebody who looks for services."""

    def find(self, name: str) -> list[str]:
        """Where that service is offered now, as hostports in the order of the offers."""

    def wait(self, name: str, seconds: int) -> None:
        """Wait for that service."""

    def waited(self) -> list[str] | None:
        """What the wait has found: None while it lasts, an empty list when it was in vain."""

    def loads(self) -> list[float]:
        """The loads of all providers."""

    def watch(self) -> None:
        """Begin to hear of services that come and go."""

    def heard(self) -> list[tuple[str, bool]]:
        """Names of services that came (True) or went (False) since the last call."""


class Elko:
    """The Elko Broker wire."""

    def __init__(self, farm: Farm) -> None:
        self._farm = farm

    def provider(self, label: str) -> Offering:
        return _ElkoOffering(self._farm.client(label))

    def seeker(self) -> Seeking:
        return _ElkoSeeking(self._farm.client("seeker"), self._farm.admin())


class _ElkoOffering:
    def __init__(self, client: Client) -> None:
        self._client = client

    def offer(self, name: str, hostport: str) -> None:
        self._client.offer(desc(name, hostport))

    def withdraw(self, name: str) -> None:
        self._client.say("client", "wontserve", services=[name])

    def load(self, load: float) -> None:
        self._client.say("client", "load", factor=load)

    def die(self) -> None:
        self._client.drop()


class _ElkoSeeking:
    def __init__(self, client: Client, admin: Client) -> None:
        self._client = client
        self._admin = admin

    def find(self, name: str) -> list[str]:
        return _hostports(self._client.find(name))

    def wait(self, name: str, seconds: int) -> None:
        self._client.say("client", "find", service=name, wait=seconds)

    def waited(self) -> list[str] | None:
        answers = self._client.take()
        return _hostports(answers) if answers else None

    def loads(self) -> list[float]:
        [answer] = self._admin.ask("admin", "loaddesc")
        return [each["load"] for each in answer["desc"] if each["label"] != "seeker"]

    def watch(self) -> None:
        self._admin.ask("admin", "watch", services=True)

    def heard(self) -> list[tuple[str, bool]]:
        return [(each["service"], notice["on"]) for notice in self._admin.take() for each in notice["desc"]]


def _hostports(answers: list[dict[str, Any]]) -> list[str]:
    return [each["hostport"] for answer in answers for each in answer["desc"] if "failure" not in each]


WIRES: dict[str, Callable[[Farm], Elko]] = {"elko": Elko}
"""Every wire, by name."""
