"""The templates of the report, with all of its HTML and sentences; other modules of the package provide the values.

Rules:
- Every text is escaped where it is put into a template. A character that XML does not allow becomes a replacement
  character.
- A name without a value, and a value of None that no filter has turned into text, are errors: neither leaves an empty
  place on a page.
"""

import re
from datetime import datetime
from functools import cache
from math import isfinite
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

# Numbers, times and durations as text: the filters of the templates. An unknown value is a dash.

DASH = "\u2013"


def moment(value: datetime | None) -> str:
    """Return a time in UTC, to the minute."""
    return DASH if value is None else value.strftime("%Y-%m-%d %H:%M UTC")


def number(value: float | None, digits: int = 1) -> str:
    """Return a number with at most ``digits`` digits after the point; one beyond all numbers is unknown."""
    if value is None or not isfinite(value):
        return DASH
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(value: float | None, digits: int = 1) -> str:
    """Return a fraction as a percentage."""
    return DASH if value is None else f"{number(value * 100, digits)} %"


PRINTED_ODDS = (1, 2, 5, 10, 20, 50)
"""Percentages as which odds are printed: past odds held within a factor of two."""


def chance(odds: float) -> str:
    """Return odds as the nearest of `PRINTED_ODDS`."""
    return f"{min(PRINTED_ODDS, key=lambda one: abs(one - 100.0 * odds))} %"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return DASH
    if seconds < 120:
        return f"{number(seconds, 0)} s"
    if seconds < 7200:
        return f"{number(seconds / 60, 0)} min"
    return f"{number(seconds / 3600)} h"


def ahead(hours: float) -> str:
    """Return the length of a look ahead."""
    return {24: "a day", 168: "a week"}.get(int(hours), counted(hours, "hour"))


def counted(number_of_them: float, one: str, many: str | None = None) -> str:
    """Return a number with its noun."""
    return f"{number(number_of_them, 0)} {one if number_of_them == 1 else many or one + 's'}"


FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML does not allow or advises against."""

ROWS = 50
"""Rows of a table that could be long; the others are counted below it. All are in the tables."""


def rendered(name: str, **values: Any) -> str:
    """Return a template of the folder ``templates`` with its values."""
    return FORBIDDEN.sub("\ufffd", _environment().get_template(name).render(**values))


def _known(value: Any) -> Any:
    """Return a value that may stand on a page. Raises TypeError for one that is missing."""
    if value is None:
        raise TypeError("a template shows a value that is missing")
    return value


@cache
def _environment() -> Environment:
    environment = Environment(
        # Reads from a folder and from a .zip, from which a cluster may have the package.
        loader=PackageLoader("spark.capacity.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_known,
        trim_blocks=True,
        lstrip_blocks=True,
        # The report is written in one piece, and the templates of a run do not change.
        auto_reload=False,
    )
    environment.filters |= {made.__name__: made for made in (moment, number, percent, chance, duration, ahead, counted)}
    environment.globals |= {"DASH": DASH, "ROWS": ROWS}
    return environment
