"""The language of filters: what it selects, its errors with their positions, and its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.errors import Reason, Refusal
from broker.core.model import Service
from broker.core.service_filter import MAX_DEPTH, MAX_LENGTH, read_filter

BANK = Service("bank", "h:1", 7, "tcp", "first", zone="b", tags=("v2", "a b"), meta={"team": "money", "odd.name": "1"})
BARE = Service("bank", "h:2", 8)


@pytest.mark.parametrize(
    ("text", "bank", "bare"),
    [
        ("zone=b", True, False),
        ("zone != b", False, True),
        ('zone=""', False, True),
        ('zone=b and "v2" in tags', True, False),
        ("v2 in tags", True, False),
        ("'a b' in tags", True, False),
        ("not v2 in tags", False, True),
        ("zone=c or meta.team=money", True, False),
        ("meta.odd.name=1", True, False),
        ("meta.none=''", True, True),
        ("service=bank and (zone=b or hostport=h:2)", True, True),
        ("zone=b or zone=c and v3 in tags", True, False),
        ("label=first and protocol=tcp", True, False),
        (r'label="fi\rst"', True, False),
        ("not not zone=b", True, False),
    ],
)
def test_a_filter_selects(text: str, bank: bool, bare: bool) -> None:
    chosen = read_filter(text)
    assert (chosen(BANK), chosen(BARE)) == (bank, bare)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "position 1: expected a condition, such as zone=b or v2 in tags, and not the end"),
        ("zone", "position 5: expected =, != or in tags, and not the end"),
        ("zone=", "position 6: expected a value, and not the end"),
        ("colour=red", "position 1: expected service, hostport, protocol, label, zone or meta.NAME, and not 'colour'"),
        ("zone=b v2", "position 8: expected and, or, or the end, and not 'v2'"),
        ("(zone=b", "position 8: expected and, or, or ), and not the end"),
        ("v2 in zone", "position 7: expected tags, and not 'zone'"),
        ('zone="b', "position 6: an unfinished text in quotes"),
        ("zone=b & x", "position 8: the character '&'"),
        ("zone=b and", "position 11: expected a condition"),
        ("x" * (MAX_LENGTH + 1), f"more than {MAX_LENGTH} characters"),
        ("(" * (MAX_DEPTH + 1), f"at a depth of {MAX_DEPTH} at most"),
        ("not " * (MAX_DEPTH + 1) + "zone=b", f"at a depth of {MAX_DEPTH} at most"),
    ],
)
def test_an_error_has_its_position_and_what_was_expected(text: str, error: str) -> None:
    with pytest.raises(Refusal) as refused:
        read_filter(text)
    assert error in refused.value.text
    assert refused.value.reason is Reason.PARAMETER


@given(
    st.text()
    | st.lists(st.sampled_from(["zone", "=", "!=", "(", ")", "and", "or", "not", "in", "tags", '"'])).map(" ".join)
)
def test_any_text_is_a_filter_or_a_refusal(text: str) -> None:
    try:
        chosen = read_filter(text)
    except Refusal:
        return
    assert chosen(BANK) in (True, False)
