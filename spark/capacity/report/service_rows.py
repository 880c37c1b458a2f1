"""The rows of a service in all tables, and the claims that several parts of the report make of them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

import attrs

from spark.capacity.planning.needs import State
from spark.capacity.planning.peak_bound import Odds
from spark.capacity.planning.plan import times
from spark.capacity.report.files import PAGES
from spark.capacity.tables.row_values import Row, RowsByService, grouped, number_of

Tables = Mapping[str, Any]
"""The rows of each table by its name: sequences of rows, and for hours and forecasts of services a `RowsByService`. Any
other may be left out. There are two more than the schema has: ``broker_down``, with `broker`, `start` and `end` of each
absence of a broker; and ``set_back``, with `broker`, `boot`, `seq`, `before` and `after` of each record that shows that
a broker's clock was set back."""


@attrs.frozen
class Shortage:
    """The time from which the providers are too few: an hour, or by the trend a week.

    `now` is the hour, or the week, of the plan. `peak` is a shortage at the highest peak, of which the hour is not
    known. `at` is set for a date only.
    """

    kind: Literal["unclaimed", "now", "date", "peak", "never"]
    at: datetime | None = None


UNCLAIMED = Shortage("unclaimed")


@attrs.frozen
class Misses:
    """The bound at past moments: the number of misses, and the rate that they leave possible with 95 % confidence.

    Each moment looked `ahead_h` hours ahead; None where that is not known.
    """

    missed: float
    trials: float
    most: float | None
    ahead_h: float | None = None


@attrs.frozen
class StateTotal:
    """The services of a state: their number, their providers, those to add and to free, and the cost of those there.

    `cost` is None where there is no service, or where one has no cost.
    """

    state: State
    services: int
    now: int
    add: int
    free: int
    cost: float | None


@attrs.frozen
class ServiceRows:
    """A service in the report. Its hours are looked up when they are asked for."""

    name: str
    ident: str
    page: str | None
    """The path of its page, relative to the report; None in a report of one page."""
    plan: Row
    evaluations: Sequence[Row]
    _hours: RowsByService
    _steps: RowsByService

    @property
    def link(self) -> str:
        """The reference to its page, or to its section in a report of one page."""
        return self.page or f"#{self.ident}"

    @property
    def history(self) -> Sequence[Row]:
        """Its hours, oldest first."""
        return self._hours.get(self.name, ())

    @property
    def forecast(self) -> list[Row]:
        """The hours of the last forecast, with growth and events."""
        return [grown(step) for step in self._steps.get(self.name, ())]

    @property
    def measured(self) -> bool:
        """True if any of its hours is known."""
        return self.name in self._hours

    @cached_property
    def told(self) -> Row:
        """The members that all rows of the forecast share."""
        return self._steps.first(self.name)


def grown(step: Row) -> Row:
    """Return an hour of a forecast with the growth and the events of the policy file, as the plan takes it."""
    factor = number_of(step, "factor")
    if factor is None or factor == 1.0:
        return step
    values = {name: number_of(step, name) for name in ("p50", "hour_bound")}
    return {**step, **{name: times(value, factor) for name, value in values.items() if value is not None}}


PAGED = 60
"""Services of one page: each takes some 45 kB with its chart and its numbers."""


def services_of(tables: Tables, paged: int = PAGED) -> list[ServiceRows]:
    """Return the services; those of more than ``paged`` have a page each."""
    history, forecast = tables["gold_service_1h"], tables["gold_forecast"]
    plans = {row["service"]: row for row in tables.get("gold_plan", ())}
    evaluations = grouped(tables.get("evaluation", ()), "service")
    others = {row["service"] for name in ("gold_provider_day", "gold_balance_day") for row in tables.get(name, ())}
    names = sorted({*history, *forecast, *plans, *others})
    return [
        ServiceRows(
            name,
            f"s{number}",
            f"{PAGES}/s{number}.html" if len(names) > paged else None,
            plans.get(name, {}),
            evaluations.get(name, ()),
            history,
            forecast,
        )
        for number, name in enumerate(names)
    ]


def shortage(plan: Row) -> Shortage:
    """Return the shortage at the earliest: by the bound of the hours."""
    since = short_from(plan, "exhaust_bound")
    return Shortage("peak") if since.kind == "never" and (number_of(plan, "add") or 0) > 0 else since


def short_from(plan: Row, column: str) -> Shortage:
    """Return the shortage from a time of the plan; nothing is claimed of a service without needs."""
    if number_of(plan, "need_horizon") is None:
        return UNCLAIMED
    if (at := plan[column]) is None:
        return Shortage("never")
    return Shortage("now") if at <= plan["issued"] else Shortage("date", at)


def odds_of(row: Row, name: str = "odds") -> Odds | None:
    """Return the odds of the next day, or of the next week by the name ``odds_week``; None where they are unknown."""
    now = number_of(row, "odds_day" if name == "odds" else name)
    if now is None:
        return None
    return Odds(now, row[f"{name}_trials"], row[f"{name}_missed"], number_of(row, f"{name}_said"))


def planned_state(plan: Row) -> State:
    """Return the state of a service; unknown where the plan does not tell it."""
    return State(plan.get("state") or State.UNKNOWN)


def cost_now(plan: Row) -> float | None:
    """Return the cost of the providers that a service has; None without a cost in its policy."""
    cost, now = number_of(plan, "cost"), number_of(plan, "providers_now")
    return None if cost is None or now is None else cost * now


def totals(plans: Iterable[Row]) -> list[StateTotal]:
    """Return the total of each state, the worst first. The providers of a pool count once, in its worst state."""
    of_state: dict[State, list[Row]] = {state: [] for state in State}
    for plan in plans:
        of_state[planned_state(plan)].append(plan)
    counted = set[str]()
    return [_total(state, mine, counted) for state, mine in of_state.items()]


def _total(state: State, plans: Sequence[Row], counted: set[str]) -> StateTotal:
    """Return the total of a state; the pools that are ``counted`` are left out, and its pools are added to them."""
    once = []
    for plan in sorted(plans, key=lambda plan: -(number_of(plan, "add") or 0)):
        pool = plan["pool"]
        if pool is None or pool not in counted:
            once.append(plan)
        counted |= {pool} if pool is not None else set()
    now, add, free = (
        sum(int(number_of(plan, name) or 0) for plan in once) for name in ("providers_now", "add", "free")
    )
    costs = [cost for plan in once if (cost := cost_now(plan)) is not None]
    return StateTotal(state, len(plans), now, add, free, sum(costs) if costs and len(costs) == len(once) else None)


def missed_before(row: Row) -> Misses | None:
    """Return the record of the bound; None where it was never tried."""
    trials, missed = number_of(row, "bound_trials"), number_of(row, "bound_missed")
    if not trials or missed is None:
        return None
    return Misses(missed, trials, number_of(row, "bound_miss_most"), number_of(row, "bound_ahead_h"))
