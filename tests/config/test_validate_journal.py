"""Values of the journal of the right types that make no sense, and the name where none is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.app.configuration import Config, problems
from broker.config.journal_settings import LEAST_LOAD, MAX_NAME, MOST_LOAD, FullLoad, Journal
from tests.config.bad_values import assert_one_problem

HERE = "[journal]\n"
LOADS = '[[journal.full_load]]\nservices = ["a"]\n'
FIT = "may have up to 64 letters, digits, dots, hyphens and underscores, the first a letter or digit, as a part of"
HIDDEN = "begins with a dot or an underscore: readers ignore such files"

BAD = [
    (HERE + 'directory = ""', 2, "journal.directory", "is no path"),
    (HERE + 'directory = "a\\u0000b"', 2, "journal.directory", "is no path"),
    (HERE + 'name = ""', 2, "journal.name", "is empty"),
    (HERE + 'name = "a/b"', 2, "journal.name", FIT),
    (HERE + 'name = "-a"', 2, "journal.name", FIT),
    (HERE + 'name = "a b"', 2, "journal.name", FIT),
    (HERE + 'name = "a\\n"', 2, "journal.name", FIT),
    (HERE + 'name = "bröker"', 2, "journal.name", FIT),
    (HERE + f'name = "{"x" * (MAX_NAME + 1)}"', 2, "journal.name", FIT),
    (HERE + 'name = ".."', 2, "journal.name", HIDDEN),
    (HERE + 'name = "_east"', 2, "journal.name", HIDDEN),
    (HERE + "keep_bytes = 1_048_576", 2, "journal.keep_bytes", "1048576 is less than segment_bytes, 67108864"),
    (
        HERE + "keep_bytes = 2_000_000\nsegment_bytes = 2_000_001",
        2,
        "journal.keep_bytes",
        "2000000 is less than segment_bytes, 2000001",
    ),
    ("[[journal.full_load]]\nservices = []\nload = 1", 2, "journal.full_load[0].services", 'is for no service; "*" is'),
    (
        '[[journal.full_load]]\nservices = ["a", ""]\nload = 1',
        2,
        "journal.full_load[0].services[1]",
        'is empty; "*" is every name',
    ),
    (LOADS + "load = 0", 3, "journal.full_load[0].load", "must be above 0, not 0"),
    (LOADS + "load = -1.5", 3, "journal.full_load[0].load", "must be above 0, not -1.5"),
    (LOADS + "load = inf", 3, "journal.full_load[0].load", "must be between 1e-09 and 1e+15, not inf"),
    (LOADS + "load = nan", 3, "journal.full_load[0].load", "not nan"),
    (LOADS + "load = 1e-10", 3, "journal.full_load[0].load", "not 1e-10"),
    (LOADS + "load = 1\n" + LOADS + "load = 0", 6, "journal.full_load[1].load", "must be above 0, not 0"),
]


@pytest.mark.parametrize(("text", "line", "key", "why"), BAD)
def test_bad_values(text: str, line: int, key: str, why: str) -> None:
    assert_one_problem(text, line, key, why)


@pytest.mark.parametrize(
    "journal",
    [
        Journal(enabled=False),
        Journal(directory="/srv/journal", name="x" * MAX_NAME),
        Journal(name="7a.b_c-"),
        Journal(segment_bytes=2_000_000, keep_bytes=2_000_000),
        Journal(full_load=(FullLoad(("*",), LEAST_LOAD), FullLoad(("a", "b-?"), MOST_LOAD))),
    ],
)
def test_good_values(journal: Journal) -> None:
    assert problems(Config(journal=journal)) == []


def test_what_is_off_is_judged_too() -> None:
    assert problems(Config(journal=Journal(enabled=False, name=""))) == [("journal.name", "is empty")]


@pytest.mark.parametrize(
    ("given_", "host", "name"),
    [
        ("east", "web1", "east"),
        (None, "web1.example.org", "web1.example.org"),
        (None, "Büro 7", "B-ro-7"),
        (None, "._hidden", "hidden"),
        (None, "x" * 300, "x" * MAX_NAME),
        (None, "", "broker"),
        (None, "...", "broker"),
        (None, "../../etc", "etc"),
    ],
)
def test_the_name_in_the_journal(given_: str | None, host: str, name: str) -> None:
    assert Journal(name=given_).effective_name(host) == name


@given(st.one_of(st.text(max_size=100), st.text("._-aé/", max_size=100)))
def test_any_host_gives_a_name_that_is_taken(host: str) -> None:
    name = Journal().effective_name(host)
    assert problems(Config(journal=Journal(name=name))) == []
    assert Journal(name=name).effective_name("other") == name


@given(
    st.builds(
        Journal,
        directory=st.one_of(st.none(), st.text(max_size=5)),
        name=st.one_of(st.none(), st.text(max_size=70), st.text("._-aZ09/", min_size=1, max_size=66)),
        segment_bytes=st.one_of(st.just(65_536), st.integers()),
        segment_seconds=st.one_of(st.just(60.0), st.floats()),
        keep_seconds=st.one_of(st.just(86_400.0), st.floats()),
        keep_bytes=st.one_of(st.just(10**9), st.integers()),
        full_load=st.lists(
            st.builds(FullLoad, st.lists(st.text(max_size=2), max_size=2).map(tuple), st.floats()), max_size=2
        ).map(tuple),
    )
)
def test_any_values_are_judged(journal: Journal) -> None:
    if not problems(Config(journal=journal)):
        assert journal.directory is None or (journal.directory and "\0" not in journal.directory)
        if journal.name is not None:
            assert 1 <= len(journal.name) <= 64
            assert journal.name[0] not in "._-"
            assert set(journal.name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
        assert journal.segment_bytes <= journal.keep_bytes <= 100 * 1024**4
        assert 1 <= journal.segment_seconds <= 86_400 <= journal.keep_seconds <= 36_525 * 86_400
        for entry in journal.full_load:
            assert entry.services
            assert all(entry.services)
            assert 0 < entry.load <= 1e15
