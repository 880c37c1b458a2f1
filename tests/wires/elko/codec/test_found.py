"""The most frequent answer, which is put together by hand: it must be what encoding its message gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wires.elko.codec.blocks import encode, encode_part
from broker.wires.elko.codec.broker_messages import Found, ServiceDescOut, encode_found, encode_not_found

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize("to", ["client", "broker"])
@given(name=TEXT, tag=TEXT)
def test_put_together_as_encoded(to: str, name: str, tag: str) -> None:
    desc = [ServiceDescOut(name, hostport="h:1", label=tag)]
    assert encode_found(to, encode_part(desc), tag) == encode(Found(to=to, desc=desc, tag=tag))
    assert encode_found(to, encode_part(desc), None) == encode(Found(to=to, desc=desc))


@given(name=TEXT)
def test_what_is_not_found_as_encoded(name: str) -> None:
    desc = [ServiceDescOut(name, failure="no such service")]
    assert encode_not_found(name) == encode_part(desc)
