"""Builds the documentation as a site that needs no network and no server: `make docs` runs this in an environment of
its own.

The pages are those of the repository as they are. The menu is the list of docs/README.md, so a page that is listed
there is in the site.

    python etc/site.py FOLDER     the site of this version is in FOLDER/VERSION; FOLDER/index.html leads to the latest
                                  version there. On a server, each page has a menu of them, by FOLDER/versions.json
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]

COPIED = (
    "*.md",
    "LICENSE",
    "docs/**/*",
    "spark/README.md",
    "bench/**/*.md",
    "etc/*.toml",
    "tests/transcripts/**/*.txt",
)
"""The pages, and the files to which they link."""

FENCE = re.compile(r"^(``` ?\w+) .*$", re.MULTILINE)
"""The first line of a block of code with words for the tests, which MkDocs takes for text."""

SCRIPTS = {
    "mermaid": ("11.15.0", "dist/mermaid.min.js", "diagrams are shown as text"),
    "iframe-worker": ("1.0.4", "shim/index.js", "the search needs a server"),
}
"""Scripts of npm that run in the reader's browser, with their versions, files, and what is missing without them."""


def menu(page: str) -> list[dict[str, list[dict[str, str]]]]:
    """Return the sections of docs/README.md with their links, as MkDocs has them."""
    sections = []
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title, _, rest = section.partition("\n")
        links = re.findall(r"^- \[([^]]+)\]\(([^)#]+\.md)\)", rest, re.MULTILINE)
        entries = [{name: str((Path("docs") / path).as_posix())} for name, path in links]
        sections.append({title: [{name: _within(path)} for each in entries for name, path in each.items()]})
    return sections


def _within(path: str) -> str:
    """Return a path without ``..``."""
    return str((ROOT / path).resolve().relative_to(ROOT))


def configuration(version: str, pages: Path, site: Path, scripts: dict[str, str]) -> dict[str, object]:
    """Return the configuration of MkDocs."""
    fence = {"name": "mermaid", "class": "mermaid", "format": "@mermaid"}
    return {
        "site_name": f"elkobroker {version}",
        "docs_dir": str(pages),
        "site_dir": str(site),
        "theme": {
            "name": "material",
            # Fonts of the system: the site loads nothing from elsewhere.
            "font": False,
            "features": [
                "navigation.sections",
                "navigation.top",
                "search.highlight",
                "content.code.copy",
                "toc.follow",
            ],
        },
        "plugins": ["search", "offline"],
        "extra_javascript": [scripts["mermaid"]] if scripts["mermaid"] else [],
        # Without one, the site would load it from elsewhere.
        "extra": {
            "polyfills": [scripts["iframe-worker"] or "iframe-worker"],
            # The menu of versions, from versions.json beside their folders.
            "version": {"provider": "mike"},
        },
        "markdown_extensions": [
            "tables",
            "attr_list",
            {"toc": {"permalink": True, "slugify": "@slugify"}},
            "pymdownx.highlight",
            {"pymdownx.superfences": {"custom_fences": [fence]}},
        ],
        # The repository's own tests check links; some lead to files that are no pages.
        "validation": {"links": {"not_found": "info", "unrecognized_links": "info", "anchors": "warn"}},
        "nav": [
            {"elkobroker": "README.md"},
            {"Overview": "docs/README.md"},
            *menu((ROOT / "docs/README.md").read_text()),
        ],
    }


def written(config: dict[str, object]) -> str:
    """Return a configuration as YAML: JSON, but for two functions, which have tags."""
    text = json.dumps(config, indent=1)
    text = text.replace('"@mermaid"', "!!python/name:pymdownx.superfences.fence_code_format")
    # Anchors as the forges make them.
    return text.replace('"@slugify"', "!!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}")


def fetch(pages: Path, package: str, version: str, file: str) -> str:
    """Copy a script of an npm package into the site. Returns its path there, "" where npm cannot be asked."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(
                ["npm", "pack", "--silent", f"{package}@{version}"], cwd=folder, check=True, capture_output=True
            )
            subprocess.run(["tar", "-xzf", f"{package}-{version}.tgz"], cwd=folder, check=True)
        except (OSError, subprocess.CalledProcessError):
            print(f"site: npm has no {package}: {SCRIPTS[package][2]}", file=sys.stderr)
            return ""
        target = pages / "scripts" / f"{package}.js"
        target.parent.mkdir(exist_ok=True)
        shutil.copy(Path(folder, "package", file), target)
    return f"scripts/{package}.js"


def versions(target: Path) -> list[str]:
    """Return the versions whose sites are in a folder, the latest first."""
    there = [each.parent.name for each in target.glob("*/index.html")]
    return sorted(there, key=lambda version: [int(part) for part in re.findall(r"\d+", version)], reverse=True)


def main(target: Path) -> int:
    """Build the site. Returns the exit status."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    site = target.resolve() / version
    with tempfile.TemporaryDirectory() as folder:
        pages = Path(folder, "pages")
        for pattern in COPIED:
            for path in ROOT.glob(pattern):
                if path.is_file():
                    copy = pages / path.relative_to(ROOT)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, copy)
                    if copy.suffix == ".md":
                        copy.write_text(FENCE.sub(r"\1", copy.read_text()))
        config = Path(folder, "mkdocs.yml")
        scripts = {name: fetch(pages, name, *given[:2]) for name, given in SCRIPTS.items()}
        config.write_text(written(configuration(version, pages, site, scripts)))
        command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", str(config)]
        done = subprocess.run(command, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    if done.returncode == 0:
        there = versions(target)
        entrance = f"{there[0]}/index.html"
        page = f'<!doctype html><title>elkobroker</title><meta http-equiv="refresh" content="0; url={entrance}">'
        (target / "index.html").write_text(f"{page}\n")
        listed = [{"version": each, "title": each, "aliases": []} for each in there]
        (target / "versions.json").write_text(f"{json.dumps(listed)}\n")
        print(f"site: {site / 'index.html'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
