"""The report: HTML that needs nothing else, and two tables as CSV.

It is made of the small tables, as rows. It measures nothing and decides nothing: what it says was decided by the jobs,
and stands in the tables.

Rules:
- A page opens offline: no script, no reference to anything outside of it but to pages of the same report.
- With more than `PAGED` services the report is an index, and each service has a page of its own.
- Every text from the journal is hostile until it is escaped, and is kept apart from the text around it (``bdi``), so
  that a name can neither be markup nor turn the direction of what follows.
- A number that is not known is a dash, and an empty table says why it is empty. Zero is said only where zero was found.
- A time without a zone is UTC. The page has no time of its own, so that the same tables give the same bytes.
- A promise stands beside what became of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from spark.capacity.report.chart import escape
from spark.capacity.report.files import replace, table_csv
from spark.capacity.report.first_screen import glance, header
from spark.capacity.report.markup import Row, Tables, time_of
from spark.capacity.report.rows_by_service import RowsByService
from spark.capacity.report.sections import balance, promises, quality, reliability, unclaimed
from spark.capacity.report.service_section import ServiceRows, service_section, services_of
from spark.capacity.report.style import STYLE

PAGED = 60
"""Services of one page: each takes some 45 kB with its chart and its numbers."""

CSV_TABLES = ("gold_plan", "gold_provider_day")


def write(out: Path, tables: Tables, paged: int = PAGED) -> list[Path]:
    """Write the report, ``gold_plan.csv`` and ``gold_provider_day.csv`` to ``out``. Returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    made = [out / f"{name}.csv" for name in CSV_TABLES]
    for path in made:
        replace(path, table_csv(tables.get(path.stem, ())))
    services, pages = services_of(tables), out / "services"
    wanted = services if len(services) > paged else []
    for service in wanted:
        pages.mkdir(exist_ok=True)
        back = '<p><a href="../report.html">All services</a></p>'
        replace(
            out / service.page,
            _document(f"{service.name}: capacity plan", back + service_section(service)),
            lasting=False,
        )
    # The index last: what it links to is there.
    replace(out / "report.html", _render(tables, services, len(services) > paged))
    for old in set(pages.glob("*.html")) - {out / service.page for service in wanted}:
        old.unlink()
    return sorted([*made, out / "report.html"])


def links_of(tables: Tables, paged: int = PAGED) -> dict[str, str]:
    """Return the path of the section or page on each service, by its name: relative to the folder of the report."""
    services = services_of(tables)
    pages = len(services) > paged
    return {service.name: service.page if pages else f"report.html{service.section}" for service in services}


def render(tables: Tables, paged: int = PAGED) -> str:
    """Return the page, or the index where services have pages of their own."""
    services = services_of(tables)
    return _render(tables, services, len(services) > paged)


def _render(tables: Tables, services: Sequence[ServiceRows], pages: bool) -> str:
    body = [
        header(services, _span(tables.get("gold_service_1h", ()))),
        glance(services, pages),
        *(() if pages else (service_section(service) for service in services)),
        reliability(tables.get("gold_provider_day", ())),
        balance(tables.get("gold_balance_day", ())),
        promises(services),
        quality(tables),
        unclaimed(services, tables),
    ]
    return _document("Capacity plan", "".join(body))


def _span(hours: Sequence[Row] | RowsByService) -> tuple[datetime, datetime] | None:
    if isinstance(hours, RowsByService):
        return hours.span("h")
    times = [at for row in hours if (at := time_of(row, "h"))]
    return (min(times), max(times)) if times else None


def _document(title: str, body_html: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8" />'
        '<meta name="viewport" content="width=device-width, initial-scale=1" />'
        '<meta name="color-scheme" content="light dark" />'
        f"<title>{escape(title)}</title>\n"
        f"<style>{STYLE}</style></head>\n<body>\n<main>\n{body_html}</main></body></html>\n"
    )
