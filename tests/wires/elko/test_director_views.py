"""The views of the director: Context Servers, contexts and users."""

from __future__ import annotations

from broker.wires.elko.director_wire import director_views
from tests.wires.contexts import page
from tests.wires.elko.director_recording import DirectorFarm, closes, opens


def test_servers_contexts_and_users_are_shown() -> None:
    farm = DirectorFarm()
    found = director_views(farm.director)
    one, other = farm.server("cs-1", capacity=10), farm.server("cs-2")
    opens(one, "context-inn", "user-ann", "user-bob")
    opens(other, "context-hall", "user-ann")
    [server] = page(found, "director providers", "cs-1")
    assert (server["users"], server["contexts"], server["capacity"], server["hostports"]) == (2, 1, 10, ["cs-1:9000"])
    assert page(found, "director contexts") == [
        {"context": "context-inn", "provider": "cs-1", "users": 2},
        {"context": "context-hall", "provider": "cs-2", "users": 1},
    ]
    assert page(found, "director users", "user-a*") == [
        {"user": "user-ann", "contexts": ["context-inn", "context-hall"]}
    ]
    closes(one, "context-inn")
    assert [row["user"] for row in page(found, "director users")] == ["user-ann"]


def test_what_closes_during_the_reading_is_left_out() -> None:
    farm = DirectorFarm()
    server = farm.server("cs-1")
    for name in ("context-a", "context-b", "context-c"):
        opens(server, name)
    contexts = next(view for view in director_views(farm.director) if view.table == "contexts")
    items = iter(contexts.items())
    first = next(items)
    closes(server, "context-b")
    assert [contexts.row(item)["context"] for item in (first, *items)] == ["context-a", "context-c"]
