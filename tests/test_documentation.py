"""The documentation is complete and its links lead somewhere: indexes, anchors, the pre-commit configuration."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from broker.app.configuration import example

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RECORDS = sorted(DOCS.glob("adr/[0-9]*.md"))
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("bench/**/*.md"), ROOT / "spark" / "README.md"]

LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)\s]+)\)")


def text_of(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """The links of a page to files of the project: the file, and the anchor or an empty string."""
    for target in LINK.findall(text_of(page)):
        if not target.startswith(("https://", "http://", "mailto:")):
            file, _, anchor = target.partition("#")
            yield (page.parent / file).resolve() if file else page, anchor


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", plain).strip().lower().replace(" ", "-")
        found.add(anchor if anchor not in found else f"{anchor}-1")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    missing = [
        f"{file}#{anchor}"
        for file, anchor in links(page)
        if not file.exists() or (anchor and anchor not in anchors(file))
    ]
    assert not missing


MOST_WORDS = 50_000
"""Words of all pages but decision records, outside of blocks of code: what one reader can still survey."""


MOST_WORDS_OF_RESULTS = 8_000
"""Words of the pages of results: each figure once, for the present version."""


@pytest.mark.parametrize(
    ("pages", "most"),
    [
        ([*DOCS.glob("*.md"), *DOCS.glob("protocols/*.md")], MOST_WORDS),
        ([ROOT / "bench/results.md", *(ROOT / "bench/results").glob("*.md")], MOST_WORDS_OF_RESULTS),
    ],
    ids=["documentation", "results"],
)
def test_the_pages_have_no_more_words_than_can_be_surveyed(pages: list[Path], most: int) -> None:
    assert sum(any(map(str.isalnum, word)) for page in pages for word in text_of(page).split()) <= most


def test_the_index_has_each_page_of_the_documentation() -> None:
    listed = {file for file, _ in links(DOCS / "README.md")}
    pages = {*DOCS.glob("*.md"), *DOCS.glob("protocols/*.md"), DOCS / "adr" / "README.md"} - {DOCS / "README.md"}
    assert pages <= listed


def test_the_index_of_decisions_has_each_record_with_its_title() -> None:
    later_ones = r"\(replaced (?:in part )?by (\d+(?:, \d+)*)\)"
    row = re.compile(rf"^\| \[(\d+)\]\((\S+)\) \| (.*?)(?: {later_ones})? \|$", re.MULTILINE)
    rows = row.findall((DOCS / "adr" / "README.md").read_text())
    titles = [record.read_text().partition("\n")[0] for record in RECORDS]
    assert sorted((name, f"# {number}. {title}") for number, name, title, _ in rows) == sorted(
        zip([record.name for record in RECORDS], titles, strict=True)
    )
    assert {name: later for _, name, _, later in rows if later} == {
        record.name: ", ".join(number.lstrip("0") for number in later)
        for record in RECORDS
        if (later := re.findall(r"^\*\*Replaced(?: in part)?\*\* by \[(\d+)\]", record.read_text(), re.MULTILINE))
    }


def test_the_threat_model_has_the_figures_of_the_attacks() -> None:
    section = (ROOT / "bench/results/robust.md").read_text().partition("## Attacks")[2].partition("\n## ")[0]
    rows = [
        line.replace(",", "").split("|")[1:-1] for line in re.findall(r"^\| [a-z0-9]+-.*\|$", section, re.MULTILINE)
    ]

    def kept(row: list[str], *columns: int) -> int:
        """The least share of answers beside the attack, of the listener or of the others."""
        return min(int(re.findall(r"(\d+)%", row[column])[-1]) for column in columns)

    datagrams = [kept(row, 1) for row in rows if row[0].strip().startswith("dns-udp-")]
    others = [kept(row, 2, *[1] * (not row[0].strip().startswith("dns-udp-"))) for row in rows]
    newcomers = [int(row[3].strip(" %")) for row in rows]
    more, left = (max(int(row[column]) for row in rows) for column in (5, 6))
    shown = " ".join((DOCS / "threat-model.md").read_text().split())
    for sentence in (
        f"{len(rows)} kinds | peers that were connected before keep {min(others)} to 100 %",
        f"in a flood by UDP, {min(datagrams)} to {max(datagrams)} %); {min(newcomers)} to 100 % of the newcomers",
        f"up to {more} MiB more, of which at most {left} stay",
    ):
        assert sentence in shown


def test_no_two_decisions_have_the_same_number() -> None:
    assert len({record.name[:4] for record in RECORDS}) == len(RECORDS)


def test_the_glossary_has_each_term_once_and_in_order() -> None:
    terms = re.findall(r"^\| \*\*(.*?)\*\*", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert len(terms) > 10
    assert all(one.lower() < other.lower() for one, other in pairwise(terms))


def test_the_changelog_has_the_version_of_the_package_or_fragments_of_it() -> None:
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())
    version, kinds = read["project"]["version"], [kind["directory"] for kind in read["tool"]["towncrier"]["type"]]
    fragments = [path.name for path in (ROOT / "changelog.d").iterdir() if path.name != ".gitkeep"]
    fragment = re.compile(rf"\+[a-z0-9-]+\.({'|'.join(kinds)})\.md")
    assert [name for name in fragments if not fragment.fullmatch(name)] == []
    text = (ROOT / "CHANGELOG.md").read_text()
    assert read["tool"]["towncrier"]["start_string"] in text
    assert fragments or re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", text, re.MULTILINE)


def test_the_shipped_configuration_has_the_examples_of_all_sections() -> None:
    assert (ROOT / "etc" / "elkobroker.toml").read_text() == example()


def test_pre_commit_runs_what_make_check_runs() -> None:
    assert re.findall(r"^ +entry: (.*)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE) == [
        "make --no-print-directory check"
    ]


MODULE = re.compile(
    r"(?<![\w/])((?:broker|spark|app|admin|config|core|export|net|wires|client|tests)/[\w/]+\.(?:py|c))\b"
)


def modules(page: Path) -> set[str]:
    """The modules that a page names, those of diagrams too. Folders of the broker are named without ``broker/``."""
    return {name for name in MODULE.findall(page.read_text()) if "NAME" not in name}


@pytest.mark.parametrize("name", ["architecture.md", "metrics.md", "glossary.md", "../CONTRIBUTING.md"])
def test_modules_that_the_documentation_names_exist(name: str) -> None:
    found = modules(DOCS / name)
    assert found
    assert not {module for module in found if not (ROOT / module).exists() and not (ROOT / "broker" / module).exists()}
