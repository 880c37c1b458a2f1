"""Requests of pages, and those of programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.errors import Reason
from broker.net.web_origins import FROM_ELSEWHERE, MAX_SHOWN, Origins, not_allowed

PAGE = "https://game.example.org"

# Undecodable bytes of a header come as lone surrogates.
anything = st.text(st.characters(exclude_categories=[])) | st.binary(max_size=8).map(
    lambda data: data.decode("utf-8", "surrogateescape")
)


@pytest.mark.parametrize("allowed", [[], [PAGE]])
@pytest.mark.parametrize(
    ("site", "served"),
    [
        (None, True),
        ("none", True),
        ("same-origin", True),
        (" Same-Origin ", True),
        ("same-site", False),
        ("cross-site", False),
        ("Cross-Site", False),
        ("", False),
        ("none, cross-site", False),
        ("of the future", False),
        ("\udced", False),
    ],
)
def test_a_request_without_an_origin_is_judged_by_its_site(allowed: list[str], site: str | None, served: bool) -> None:
    assert Origins(allowed).allow(None, site) is served


@pytest.mark.parametrize("site", [None, "none", "same-origin", "same-site", "cross-site", "x"])
@pytest.mark.parametrize(
    ("allowed", "origin", "served"),
    [
        ([PAGE], PAGE, True),
        ([PAGE], PAGE.upper(), True),
        ([PAGE.upper()], PAGE, True),
        ([PAGE], "https://other.example.org", False),
        ([PAGE], PAGE + ":444", False),
        ([PAGE], PAGE + ":443", True),
        ([PAGE + ":443"], PAGE, True),
        ([PAGE], PAGE + ".", True),
        (["http://[::1]:80"], "http://[0::1]", True),
        (["app://game"], "App://Game", True),
        ([PAGE], "null", False),
        ([PAGE], "", False),
        ([], PAGE, False),
        (["null"], "null", True),
        (["*"], PAGE, True),
        (["*"], "null", True),
        (["*"], None, True),
        (["https://king.example"], "https://\u212aing.example", False),
        ([PAGE], "\udced", False),
    ],
)
def test_an_origin_decides_whatever_the_site_is(
    allowed: list[str], origin: str | None, served: bool, site: str | None
) -> None:
    assert Origins(allowed).allow(origin, site) is served


def test_a_request_of_a_browser_is_not_local_whether_it_has_an_origin_or_not() -> None:
    assert {"Origin", "Sec-Fetch-Site"} <= set(FROM_ELSEWHERE)


@given(st.none() | anything, st.none() | anything)
def test_any_headers_are_judged_and_can_be_told(origin: str | None, site: str | None) -> None:
    origins = Origins([PAGE])
    if not origins.allow(origin, site):
        refusal = not_allowed(origin, site)
        assert refusal.reason is Reason.HANDSHAKE
        assert refusal.text.encode().decode().isprintable()
        assert len(refusal.text) < 12 * MAX_SHOWN
    shared = origins.shared_with(origin)
    assert shared is None or shared.lower() == PAGE


def test_the_refusal_says_which_header_it_was() -> None:
    assert PAGE in not_allowed(PAGE, "cross-site").text
    assert "cross-site" in not_allowed(None, "cross-site").text
