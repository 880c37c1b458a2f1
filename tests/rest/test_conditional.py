"""Entity tags and conditional requests."""

from __future__ import annotations

import pytest

from broker.rest.messages import Request, entity_tag, is_current, not_modified


@pytest.mark.parametrize(
    ("given", "current"),
    [
        (None, False),
        ('"7-3"', True),
        ('W/"7-3"', True),
        ('"7-2", "7-3"', True),
        ("*", True),
        ('"7-4"', False),
        ("7-3", False),
    ],
)
def test_a_copy_is_current_by_its_tag(given: str | None, current: bool) -> None:
    request = Request("GET", "/", headers={} if given is None else {"if-none-match": given})
    assert is_current(request, entity_tag(7, 3)) is current


def test_the_answer_to_a_current_copy_has_the_tag_and_no_body() -> None:
    answer = not_modified(entity_tag(7, 3, "a"))
    assert (answer.status, answer.body, dict(answer.headers)["ETag"]) == (304, b"", '"7-3-a"')
