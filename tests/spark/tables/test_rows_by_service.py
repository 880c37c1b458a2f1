"""Rows that are made when they are asked for."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from spark.capacity.tables.row_values import RECENT, RowsByService

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def hours(services: int, count: int = 3) -> list[dict[str, object]]:
    return [
        {"service": f"s{service}", "h": NOW - timedelta(hours=hour), "demand_mean": 1.0 * service, "capacity": 9.0}
        for hour in range(count)
        for service in range(services)
    ]


def by_hour(row):
    return row["h"]


def test_each_service_has_its_rows_and_there_are_no_others() -> None:
    rows = hours(3 * RECENT)
    told = RowsByService(pa.Table.from_pylist(rows))
    assert set(told) == {row["service"] for row in rows}
    for _ in range(2):
        for service in told:
            mine = [row for row in rows if row["service"] == service]
            assert sorted(told[service], key=by_hour) == sorted(mine, key=by_hour)
    assert told.get("nobody", ()) == ()
    assert (told.first("s1"), told.first("nobody")) == (next(row for row in rows[::-1] if row["service"] == "s1"), {})
    assert told.span("h") == (NOW - timedelta(hours=2), NOW)


def test_a_look_for_a_service_makes_no_rows() -> None:
    class Counted(RowsByService):
        made = 0

        def __getitem__(self, service: str) -> list[dict[str, object]]:
            self.made += 1
            return super().__getitem__(service)

    told = Counted(pa.Table.from_pylist(hours(3)))
    assert [service in told for service in ("s0", "s2", "nobody")] == [True, True, False]
    assert told.made == 0


def test_nothing_is_nothing() -> None:
    empty = RowsByService(pa.Table.from_pylist(hours(1)).slice(0, 0))
    assert (len(empty), bool(empty), empty.span("h")) == (0, False, None)
