"""The site that `make docs` builds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LOADED = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)="?(https?:|//)""")
"""Something that a browser loads from elsewhere."""


@pytest.mark.long
def test_every_listed_page_is_in_the_site_and_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    # An earlier version, which stays.
    earlier = tmp_path / "0.0.9"
    earlier.mkdir()
    (earlier / "index.html").write_text("The earlier version.")
    command = [sys.executable, str(ROOT / "etc" / "site.py"), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [site] = [each for each in tmp_path.iterdir() if each.is_dir() and each != earlier]
    assert [each["version"] for each in json.loads((tmp_path / "versions.json").read_text())] == [site.name, "0.0.9"]
    assert f"url={site.name}/index.html" in (tmp_path / "index.html").read_text()
    listed = re.findall(r"^- \[[^]]+\]\(([^)#]+)\.md\)", (ROOT / "docs/README.md").read_text(), re.MULTILINE)
    assert len(listed) > 20
    for page in listed:
        assert (site / "docs" / f"{page}.html".replace("README.html", "index.html")).resolve().is_file(), page
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    assert [str(path) for path, text in pages.items() if LOADED.search(text)] == []
    assert [str(path) for path, text in pages.items() if "```" in text] == [], "blocks of code that were not recognised"
    assert "CURVE" in (site / "search" / "search_index.js").read_text()
