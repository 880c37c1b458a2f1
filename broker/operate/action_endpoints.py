"""The operators' actions carried out: by one function for the console and HTTP, and the endpoints of HTTP.

All of it is made of the table `broker.operate.actions`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, get_args, get_origin, get_type_hints

import attrs
from twisted.internet.defer import Deferred

from broker.access.principal import Act, Audit, NoAudit, Principal, forbidden, perform, refused
from broker.access.rights import Grants
from broker.core.errors import Malformed, Reason
from broker.core.operator_interfaces import IOperations, KeyState, QueueMessages, Reply
from broker.operate.action_parameters import MAX_NAME
from broker.operate.actions import ACTIONS, Action, ActionRow, Route, rows
from broker.rest.http_endpoint import Call, Endpoint, template_variables
from broker.rest.messages import Response, answer, answer_in_steps
from broker.rest.problem import Problem

_UNAUDITED = NoAudit()
"""In place of the audit log for what clients do on every wire without a line there."""


@attrs.frozen(eq=False)
class Actions:
    """The actions over the operations of the daemon, for the listener of that title in the audit log."""

    operations: IOperations
    audit: Audit
    listener: str

    def perform(self, action: Action, parameters: Any, principal: Principal, grants: Grants) -> Any:
        """Carry out an action. Returns its answer, or a Deferred of it. Raises `Refusal`."""
        given = attrs.asdict(parameters, recurse=False)
        about = " ".join(f"{name}={value}" for name, value in given.items() if name != "text" and value is not None)
        names = [given[name] for name in action.names]
        if action.by_name:
            given["may"] = partial(grants.may, action.right, kind=action.kind)
        if action.authored:
            given["principal"] = principal

        def carry_out() -> Any:
            for name in names:
                if not grants.may(action.right, name, action.kind):
                    raise forbidden(principal, action.right, name[:MAX_NAME])
            return getattr(self.operations, action.method)(**given)

        audit = self.audit if action.audited else _UNAUDITED
        act = Act(principal, self.listener, action.right, about)
        result = perform(audit, act, grants, carry_out, action.some)
        return _awaited(result) if action.audited and isinstance(result, Deferred) else result

    def typed(self, action: Action, words: Sequence[str], principal: Principal, grants: Grants) -> Any:
        """Carry out an action as it was typed. Raises `Refusal`."""
        try:
            parameters = action.typed(words)
        except ValueError as error:
            self.misused(action, principal)
            raise Malformed(Reason.PARAMETER, f"{action.name}: {error}; usage: {action.usage}") from None
        return self.perform(action, parameters, principal, grants)

    def misused(self, action: Action, principal: Principal) -> None:
        """Record an action that is refused for its parameters."""
        if action.audited:
            self.audit.record(Act(principal, self.listener, action.right, "", refused(Reason.PARAMETER)))


def _awaited(result: Deferred[Any]) -> Deferred[Any]:
    """Return a Deferred of the same result. If it is cancelled, since the caller has gone, the act goes on: it has
    begun, and the audit log has the result of what was done."""
    awaited: Deferred[Any] = Deferred()
    result.chainDeferred(awaited)
    return awaited


# The endpoints.


@attrs.frozen
class ActionTable:
    """The actions that the user may do."""

    actions: Sequence[ActionRow]


@attrs.frozen
class Configuration:
    """The keys of the running configuration; ``problems`` are the reasons for which the daemon is not ready."""

    keys: Sequence[KeyState]
    problems: Sequence[str]


def action_endpoints(actions: Actions) -> list[Endpoint]:
    """Return the endpoints of all actions, of the state that they change, and of the table."""
    operations = actions.operations

    def table(call: Call) -> Response:
        def may(action: Action) -> bool:
            if action.names:
                return bool(call.grants.named(action.right, action.kind).patterns)
            return call.grants.may_some(action.right) if action.by_name else call.grants.may(action.right)

        return answer(ActionTable(rows(may)))

    def config(call: Call) -> Response:
        reasons = [*operations.not_ready(), *operations.degraded()]
        problems = [f"{each.what}: {each.reason}" for each in reasons]
        return answer(Configuration(operations.settings(), problems))

    found = [
        Endpoint(
            "GET", "/v1/actions", "list_actions", "Returns the actions that the user may do, with their parameters.",
            table, answer=ActionTable, operation=None, tag="actions",
        ),
        Endpoint(
            "GET", "/v1/config", "config", "Returns all keys with their values; secrets are hidden.", config,
            answer=Configuration, tag="control",
        ),
    ]  # fmt: skip
    for action in ACTIONS:
        # The further ways have the names that clients know.
        name = f"act_{action.method}" if action.routes else action.method
        found.append(_endpoint(actions, action, Route("POST", f"/v1/actions/{action.name}", name)))
        found += [_endpoint(actions, action, route) for route in action.routes]
        if action.state is not None:
            read = getattr(operations, action.state.method)
            found.append(
                Endpoint(
                    "GET",
                    action.state.path,
                    action.state.name,
                    action.state.help,
                    partial(_state, read),
                    answer=_answer_type(read),
                    tag="control",
                )
            )
    return found


def _state(read: Any, call: Call) -> Response:
    return answer(read())


def _endpoint(actions: Actions, action: Action, route: Route) -> Endpoint:
    """Return the endpoint of a way to an action."""
    elsewhere = {*template_variables(route.path), *route.fixed}
    deletes = route.method == "DELETE"
    body = None if deletes else _body(action, route, elsewhere) if elsewhere else action.parameters
    status = 204 if deletes else action.status

    returned = _answer_type(getattr(actions.operations, action.method))

    def answered(result: Any) -> Response:
        if deletes:
            return Response(204)
        # These have bodies of messages, which may be long.
        return answer_in_steps(result, status) if returned in (Reply, QueueMessages) else answer(result, status)

    def handler(call: Call) -> Response | Deferred[Any]:
        parameters = call.body
        if elsewhere:
            given = {} if call.body is None else attrs.asdict(call.body, recurse=False)
            try:
                parameters = action.decoded({**given, **call.path, **route.fixed})
            except ValueError as error:
                actions.misused(action, call.principal)
                raise Problem(400, str(error)) from None
        result = actions.perform(action, parameters, call.principal, call.grants)
        return result.addCallback(answered) if isinstance(result, Deferred) else answered(result)

    return Endpoint(
        route.method,
        route.path,
        route.name,
        action.summary,
        handler,
        body=body,
        answer=None if deletes else returned,
        operation=action.right,
        by_name=action.some,
        writes=True,
        tag="actions",
        status=status,
    )


def _body(action: Action, route: Route, elsewhere: Collection[str]) -> type[Any]:
    """Return the type of a body without the parameters that are elsewhere in the request."""
    hints = get_type_hints(action.parameters, include_extras=True)
    fields = {each.name: each for each in attrs.fields(action.parameters) if each.name not in elsewhere}
    body = attrs.make_class(
        f"{route.name.title()}Body",
        {name: attrs.field(type=hints[name], default=each.default) for name, each in fields.items()},
        frozen=True,
    )
    body.__doc__ = action.parameters.__doc__
    return body


def _answer_type(method: Any) -> Any:
    """Return the type of the answers of a method of the operations."""
    type_ = get_type_hints(method)["return"]
    return get_args(type_)[0] if get_origin(type_) is Deferred else type_
