"""Endpoints that change something: each call is recorded in the audit log, with its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import attrs
from msgspec import Meta

from broker.access import acts
from broker.access.acts import Act, Audit
from broker.admin.api.orders import Orders
from broker.admin.api.pieces import answer
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IControl, ILaunchers, IRegistry
from broker.core.model import BROKER, MAX_NAME, MAX_TEXT
from broker.web.http_endpoint import Call, Endpoint
from broker.web.messages import Response
from broker.web.problem import Problem

ORDERS = ("reinit", "say")
"""Actions that a session of a wire carries out, and records in the audit log."""

Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]

MAX_SAID = 10_000
"""Characters of a text to users."""


@attrs.frozen
class Shutdown:
    """The end of the process: in order, or at once with ``kill``."""

    kill: bool = False


@attrs.frozen
class Reinit:
    """Reinitializes the Elko servers with that label, hostport or id, or all."""

    server: Text = "all"


@attrs.frozen
class Say:
    """A text to a context or a user of the director, or to a user in that context; one of them is given."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_SAID)]
    context: Text | None = None
    user: Text | None = None


@attrs.frozen
class Launch:
    """The name of a program of the launcher table."""

    name: Text


@attrs.frozen
class Withdraw:
    """A provider, and the service name to withdraw; without a name, all of its services."""

    provider: Annotated[int, Meta(ge=1, le=2**53)]
    name: Name | None = None


@attrs.frozen
class Done:
    """Result of an action: ``text`` is a sentence, or the answer of the wire."""

    text: str


@attrs.frozen
class Withdrawn:
    """The number of services that were withdrawn."""

    services: int


def audited(endpoint: Endpoint, audit: Audit, listener: str) -> Endpoint:
    """Return an endpoint whose calls are recorded in the audit log, with their results."""
    handler, operation = endpoint.handler, endpoint.operation or endpoint.name

    def recorded(call: Call) -> Any:
        return acts.audited(audit, Act(call.principal, listener, operation, _object(call)), partial(handler, call))

    return attrs.evolve(endpoint, handler=recorded)


def endpoints(
    registry: IRegistry, control: IControl, launchers: ILaunchers, orders: Orders, audit: Audit, listener: str
) -> list[Endpoint]:
    """Return the endpoints of the actions. ``listener`` is the title of the listener in the audit log."""

    def shut_down(call: Call) -> Response:
        control.shut_down(call.body.kill)
        return answer(Done("the broker ends"), 202)

    def reinit(call: Call) -> Response:
        return answer(Done(orders.give(call.principal, "", "reinit", {"server": call.body.server})))

    def say(call: Call) -> Response:
        about = {"text": call.body.text, "context": call.body.context, "user": call.body.user}
        given = {name: value for name, value in about.items() if value is not None}
        if len(given) == 1:
            raise Problem(400, "say needs a context or a user")
        return answer(Done(orders.give(call.principal, "director", "say", given)))

    def launch(call: Call) -> Response:
        name = call.body.name
        if all(each.name != name for each in launchers.describe()):
            raise Problem(404, f"there is no launcher {name[:80]!r}", Reason.UNKNOWN_TARGET)
        text = launchers.launch(name)
        if not text.startswith("start "):
            # The protocol's answer is "fail NAME REASON".
            raise Problem(409, f"the launcher {name!r} failed: {text.removeprefix(f'fail {name} ')}")
        return answer(Done(text))

    def withdraw(call: Call) -> Response:
        provider, name = call.body.provider, call.body.name
        if name is not None:
            _may_withdraw(call, name)
        found = None if provider == BROKER else registry.provider(provider)
        if found is None:
            raise Problem(404, "there is no such provider", Reason.UNKNOWN_TARGET)
        unwanted = [service for service in found.services if name is None or service.name == name]
        if not unwanted:
            raise Problem(404, "the provider offers no such service", Reason.NO_SUCH_SERVICE)
        names = {service.name for service in unwanted}
        for each in sorted(names):
            _may_withdraw(call, each)
        registry.withdraw(provider, names)
        return answer(Withdrawn(len(unwanted)))

    def action(
        name: str, operation: str, summary: str, handler: Callable[[Call], Response], body: type, **more: Any
    ) -> Endpoint:
        endpoint = Endpoint(
            "POST",
            f"/v1/actions/{name}",
            name,
            summary,
            handler,
            body=body,
            operation=operation,
            writes=True,
            tag="actions",
            **{"answer": Done, **more},
        )
        return endpoint if name in ORDERS else audited(endpoint, audit, listener)

    return [
        action("shutdown", "admin.shutdown", "Ends the process.", shut_down, Shutdown, status=202),
        action("reinit", "admin.reload", "Reinitializes Elko servers.", reinit, Reinit),
        action("say", "admin.say", "Sends a text to users or contexts of the director.", say, Say),
        action("launch", "admin.launch", "Starts a program of the launcher table.", launch, Launch),
        action(
            "withdraw",
            "admin.withdraw",
            "Withdraws services of a provider.",
            withdraw,
            Withdraw,
            answer=Withdrawn,
            by_name=True,
        ),
    ]


def _may_withdraw(call: Call, name: str) -> None:
    """Raise `Refusal` FORBIDDEN unless the user may withdraw services of that name."""
    if not call.grants.may("admin.withdraw", name):
        raise Refusal(Reason.FORBIDDEN, f"this user may not withdraw services called {name[:80]!r}")


def _object(call: Call) -> str:
    """Return the parameters of a call as they are recorded: names and values, without the text that is said."""
    about: Mapping[str, object] = {} if call.body is None else attrs.asdict(call.body)
    about = {**call.path, **{name: value for name, value in about.items() if value is not None and name != "text"}}
    return " ".join(f"{name}={value}" for name, value in about.items())
