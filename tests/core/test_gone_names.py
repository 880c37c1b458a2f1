"""Names that have gone: the newest ones are known, with their times."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from broker.core.gone_names import BUCKETS, SPARE, GoneNames

MOST = 4
NAMES = [str(number) for number in range(1_000) if not hash(str(number)) % BUCKETS]
"""Names of one bucket."""


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(NAMES[:9]))))
def test_the_newest_names_are_known(steps: list[tuple[bool, str]]) -> None:
    names = GoneNames(int(MOST * BUCKETS / SPARE) + 1)
    expected: OrderedDict[str, float] = OrderedDict()
    for time, (goes, name) in enumerate(steps):
        known = expected.pop(name, None) is not None
        if goes:
            names.add(name, float(time))
            expected[name] = float(time)
            if len(expected) > MOST:
                expected.popitem(last=False)
        else:
            assert names.discard(name) is known
        assert len(names) == len(expected)
        assert {each: names.get(each) for each in NAMES[:9] if names.get(each) is not None} == expected


def test_many_names_are_known() -> None:
    names = GoneNames(100 * BUCKETS)
    for number in range(1_000):
        names.add("", float(number))
        names.add(f"{number}", float(number))
    assert len(names) == 1_001
    assert names.get("") == 999.0
    assert [names.get(f"{number}") for number in range(1_000)] == [float(number) for number in range(1_000)]
    assert names.get("nobody") is None
