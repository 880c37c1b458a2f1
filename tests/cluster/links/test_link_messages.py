"""The codec of links, and the endpoints that members publish."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.links.link_messages import (
    HELLO,
    MAX_WORD,
    Introduction,
    address,
    introduction,
    read_introduction,
    read_refused,
    read_stamp,
    refused,
)
from broker.core.errors import Malformed

words = st.text(max_size=MAX_WORD // 4)


@given(words, words, words, words, st.integers(0, 999_999_999))
def test_an_introduction_comes_back(name: str, instance: str, peer: str, peer_instance: str, version: int) -> None:
    try:
        values = Introduction(name, instance, peer, peer_instance, version)
        frames = introduction(HELLO, values)
    except UnicodeEncodeError:  # surrogates, which no name has
        return
    assert read_introduction([*frames, b"of a later version"]) == values


@given(st.lists(st.binary(max_size=300), max_size=10))
def test_nothing_but_malformed_escapes(frames: list[bytes]) -> None:
    for read in (read_introduction, read_stamp):
        with contextlib.suppress(Malformed):
            read(frames)
    assert len(read_refused(frames)) <= MAX_WORD


def test_a_reason_is_cut() -> None:
    assert read_refused(refused("x" * 1_000)) == "x" * MAX_WORD


@pytest.mark.parametrize(
    ("link", "wanted"),
    [
        ("10.0.0.1:9002", ("10.0.0.1", 9002)),
        ("[::1]:9002", ("::1", 9002)),
        ("broker-a.example:1", ("broker-a.example", 1)),
        ("tcp://10.0.0.1:9002", ("10.0.0.1", 9002)),
        ("", None),
        ("10.0.0.1", None),
        (":9002", None),
        ("10.0.0.1:0", None),
        ("10.0.0.1:65536", None),
        ("10.0.0.1:²", None),
        ("10.0.0.1:-1", None),
    ],
)
def test_endpoints_of_members(link: str, wanted: tuple[str, int] | None) -> None:
    assert address(link) == wanted
