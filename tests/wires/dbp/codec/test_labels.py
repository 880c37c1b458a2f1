"""The tags and the meta in an info of DBP, which is free."""

from __future__ import annotations

import pytest

from broker.wires.dbp.codec.listings import labels


@pytest.mark.parametrize(
    ("info", "found"),
    [
        (b'{"port": 1}', {}),
        (b'{"tags": ["v2", "v2"], "port": 1}', {"tags": ("v2", "v2")}),
        (b'{"tags": [], "meta": {"team": "money"}}', {"tags": (), "meta": {"team": "money"}}),
        (b'{"zone": "east"}', {"zone": "east"}),
        (b'{"zone": 7}', {}),
        (b'{"tags": "v2", "meta": {"team": "money"}}', {"meta": {"team": "money"}}),
        (b'{"zone": "east", "tags": ["v2", 7], "meta": null}', {"zone": "east"}),
        (b'{"meta": {"team": 7}}', {}),
        (b'{"other": "\\"tags\\""}', {}),
        (b'"tags"', {}),
    ],
)
def test_labels_of_an_info(info: bytes, found: dict[str, object]) -> None:
    assert labels(info) == found
