"""Numbers, times and lengths of time as text: the filters of the templates. A value that is not known is a dash."""

from __future__ import annotations

from datetime import datetime

DASH = "\u2013"


def moment(value: datetime | None) -> str:
    """Return a time in UTC, to the minute."""
    return DASH if value is None else value.strftime("%Y-%m-%d %H:%M UTC")


def date(value: datetime) -> str:
    return value.strftime("%Y-%m-%d")


def number(value: float | None, digits: int = 1) -> str:
    """Return a number with at most so many digits after the point."""
    if value is None:
        return DASH
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share of one in percent."""
    return DASH if value is None else f"{number(value * 100, digits)} %"


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
