"""Token buckets: their rates, and bounded tables."""

from __future__ import annotations

from twisted.internet.task import Clock

from broker.core.rates import ADDRESSES, Bucket, Rates


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(3, 100.0)
    assert [bucket.take(2, 3, 100.0) for _ in range(5)] == [True, True, True, False, False]
    assert not bucket.take(2, 3, 100.4)
    assert bucket.take(2, 3, 100.5)
    assert not bucket.take(2, 3, 100.6)
    assert bucket.take(2, 3, 101.0)


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    bucket = Bucket(2, 0.0)
    assert [bucket.take(10, 2, 1e9) for _ in range(3)] == [True, True, False]


def test_a_clock_that_is_set_back_takes_nothing_from_a_bucket() -> None:
    bucket = Bucket(5, 3_600.0)
    assert bucket.take(1, 5, 3_600.0)
    assert bucket.take(1, 5, 0.0)
    assert bucket.take(1, 5, 1.0)


def test_every_key_has_its_own_rate() -> None:
    clock = Clock()
    rates: Rates[str] = Rates(clock.seconds)
    assert [rates.take("a", 1, 2) for _ in range(3)] == [True, True, False]
    assert rates.take("b", 1, 2)
    clock.advance(1)
    assert [rates.take("a", 1, 2) for _ in range(2)] == [True, False]


def test_a_table_of_rates_is_bounded_and_evicts_the_least_recently_used_key() -> None:
    rates: Rates[int] = Rates(Clock().seconds)
    assert rates.take(0, 0, 1)
    assert rates.take(1, 0, 1)
    for key in range(2, ADDRESSES):
        rates.take(key, 0, 1)
    assert not rates.take(0, 0, 1)
    assert rates.take(ADDRESSES, 0, 1)
    assert not rates.take(0, 0, 1), "it was used just now"
    assert rates.take(1, 0, 1), "it was evicted"


def test_a_token_that_is_given_back_is_there_again_and_a_full_bucket_is_not_stored() -> None:
    rates: Rates[str] = Rates(Clock().seconds)
    assert rates.has("a", 1, 2)
    assert len(rates) == 0
    assert [rates.take("a", 1, 2) for _ in range(2)] == [True, True]
    assert not rates.has("a", 1, 2)
    rates.give_back("a", 1, 2)
    assert rates.has("a", 1, 2)
    rates.give_back("a", 1, 2)
    assert len(rates) == 0
