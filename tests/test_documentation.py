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


def test_no_two_decisions_have_the_same_number() -> None:
    assert len({record.name[:4] for record in RECORDS}) == len(RECORDS)


def test_the_glossary_has_each_term_once_and_in_order() -> None:
    terms = re.findall(r"^\| \*\*(.*?)\*\*", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert len(terms) > 10
    assert all(one.lower() < other.lower() for one, other in pairwise(terms))


def test_the_changelog_has_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(rf"^## \[?{re.escape(version)}\]?", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


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


@pytest.mark.parametrize("name", ["architecture.md", "metrics.md", "glossary.md"])
def test_modules_that_the_documentation_names_exist(name: str) -> None:
    found = modules(DOCS / name)
    assert found
    assert not {module for module in found if not (ROOT / module).exists() and not (ROOT / "broker" / module).exists()}
