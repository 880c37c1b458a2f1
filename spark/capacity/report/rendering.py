"""The templates of the report, which hold all of its HTML and sentences; the values come from the modules beside this.

Rules:
- Every text is escaped where it is put into a template. A character that XML does not allow becomes a replacement
  character.
- A name that a template does not get, or a value of None that no filter has made a text of, is an error, not an empty
  place on a page.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from spark.capacity.report import formats

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
    for filter_ in (
        formats.moment,
        formats.date,
        formats.number,
        formats.percent,
        formats.duration,
        formats.ahead,
        formats.counted,
    ):
        environment.filters[filter_.__name__] = filter_
    environment.globals |= {"DASH": formats.DASH, "ROWS": ROWS}
    return environment
