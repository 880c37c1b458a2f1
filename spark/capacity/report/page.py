"""The report: HTML that needs nothing else, and two tables as CSV.

It is made of the small tables, as rows. It measures nothing and decides nothing: its claims were decided by the jobs,
and stand in the tables.

Rules:
- A page opens offline: no script, no reference to anything outside of it but to pages of the same report.
- With more than `PAGED` services the report is an index, and each service has a page of its own.
- The modules beside this make frozen values of the rows; the templates hold all HTML and sentences.
- Every text from the journal is hostile until it is escaped, and is kept apart from the text around it (``bdi``), so
  that a name can neither be markup nor turn the direction of the text that follows.
- A number that is not known is a dash, and an empty table says why it is empty. Zero is said only where zero was found.
- All times are in UTC. The page has no time of its own, so that the same tables give the same bytes.
- A promise stands beside its outcome.
"""

from collections.abc import Sequence
from pathlib import Path

from spark.capacity.report import first_screen, sections
from spark.capacity.report.files import PAGES, table_csv
from spark.capacity.report.rendering import rendered
from spark.capacity.report.service_rows import PAGED, ServiceRows, Tables, services_of
from spark.capacity.report.service_section import section_of
from spark.capacity.tables.store import put_text

CSV_TABLES = ("gold_plan", "gold_provider_day")


def write(out: Path, tables: Tables, paged: int = PAGED) -> list[Path]:
    """Write the report, ``gold_plan.csv`` and ``gold_provider_day.csv`` to ``out``. Returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    made = [out / f"{name}.csv" for name in CSV_TABLES]
    for path in made:
        put_text(path, table_csv(tables.get(path.stem, ())))
    services, pages = services_of(tables, paged), out / PAGES
    wanted = {out / service.page: service for service in services if service.page}
    for path, service in wanted.items():
        pages.mkdir(exist_ok=True)
        put_text(path, rendered("service.html", section=section_of(service)), lasting=False)
    # The index last: its pages are there.
    put_text(out / "report.html", render(tables, services))
    for old in set(pages.glob("*.html")) - set(wanted):
        old.unlink()
    return sorted([*made, out / "report.html"])


def links_of(tables: Tables, paged: int = PAGED) -> dict[str, str]:
    """Return the path of the section or page on each service, by its name: relative to the folder of the report."""
    return {service.name: service.page or f"report.html{service.link}" for service in services_of(tables, paged)}


def render(tables: Tables, services: Sequence[ServiceRows]) -> str:
    """Return the page, or the index where services have pages of their own."""
    last_sign = max((row["last"] for row in tables.get("silver_signs", ())), default=None)
    return rendered(
        "report.html",
        head=first_screen.head(services, tables["gold_service_1h"].span("h"), last_sign),
        rows=first_screen.glance(services),
        pooled=first_screen.pooled(services),
        pooled_week=first_screen.pooled(services, "odds_week"),
        sharing=first_screen.sharing(services),
        sections=(section_of(service) for service in services if not service.page),
        reliability=sections.reliability(tables.get("gold_provider_day", ())),
        balance=sections.balance(tables.get("gold_balance_day", ())),
        promises=sections.promises(services),
        quality=sections.quality(tables),
        unclaimed=sections.unclaimed(services, tables),
    )
