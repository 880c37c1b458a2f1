"""The state of one invocation: the options that all commands share, and the way to the broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import attrs
import click
from twisted.internet.defer import Deferred

from broker.brokerctl import running
from broker.brokerctl.contexts.choice import Given, chosen
from broker.brokerctl.contexts.context import Context
from broker.brokerctl.contexts.credentials import authorization
from broker.brokerctl.http.client import TIMEOUT, Client
from broker.brokerctl.output.output import Color, Format, Output

Result = TypeVar("Result")


@attrs.define
class Session:
    """The shared options."""

    given: Given = attrs.field(factory=Given)
    format: Format = Format.TABLE
    color: Color = Color.AUTO
    timeout: float = TIMEOUT

    @property
    def output(self) -> Output:
        """The output of this process in the chosen format."""
        return Output.standard(self.format, self.color)

    def chosen(self) -> tuple[str, Context]:
        """Return the name and the context of the chosen broker. Raises `Failure`."""
        return chosen(self.given, os.environ)

    def run(self, work: Callable[[Client], Coroutine[Deferred[Any], Any, Result]]) -> Result:
        """Return the result of a conversation with the chosen broker. Raises `Failure`."""
        return self.run_many(lambda reactor, connect: work(connect()))

    def run_many(self, work: Callable[[Any, Callable[[], Client]], Coroutine[Deferred[Any], Any, Result]]) -> Result:
        """Return the result of ``work(reactor, connect)``; each call of ``connect`` makes a client."""
        _, context = self.chosen()
        # The password is asked for before the reactor runs: both take the terminal.
        field = authorization(context, _ask if sys.stdin.isatty() else None)
        clients: list[Client] = []

        async def main(reactor: Any) -> Result:
            def connect() -> Client:
                clients.append(Client(reactor, context, self.timeout, field))
                return clients[-1]

            try:
                return await work(reactor, connect)
            finally:
                for client in clients:
                    await client.close()

        return running.run(main)


def _ask(user: str) -> str:
    answer: str = click.prompt(f"Password of {user}", hide_input=True, err=True)
    return answer
