"""Templates escape every text, refuse a value that is missing, and come with the package."""

import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jinja2 import UndefinedError

from spark.capacity.report.rendering import rendered

ROOT = Path(__file__).parents[3]


def items(*names: str) -> list[str]:
    """Return the names that the last section lists as without a forecast."""
    others = dict.fromkeys(("no_full_load", "no_load", "flagged", "unjudged", "by_connection"), ())
    section = ElementTree.fromstring(rendered("unclaimed.html", unclaimed={**others, "no_forecast": names}))
    return [one.text or "" for one in section.iter("bdi")]


def test_escaped_text_is_what_it_was_when_it_is_read():
    said = "<a href='x'>\"&amp;\n{{ 1 }}"
    assert items(said, said) == [said, said]


def test_a_character_that_xml_does_not_allow_is_replaced():
    assert items("a\x07b\ud800\uffff\U0001f600") == ["a\ufffdb\ufffd\ufffd\U0001f600"]


def test_a_value_that_is_missing_is_an_error():
    with pytest.raises(UndefinedError, match="unclaimed"):
        rendered("unclaimed.html")
    with pytest.raises(TypeError, match="missing"):
        items(None)  # type: ignore[arg-type]


@pytest.mark.long
def test_the_templates_are_found_in_an_archive_of_the_package(tmp_path):
    """A cluster may have the package as a .zip."""
    archive = tmp_path / "jobs.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in (ROOT / "spark").rglob("*"):
            if path.suffix in (".py", ".html", ".css"):
                file.write(path, path.relative_to(ROOT))
    code = "import spark.capacity.report.rendering as made; print(made.__file__, made.rendered('layout.html'))"
    command = [sys.executable, "-P", "-c", code]
    made = subprocess.run(
        command, env={"PYTHONPATH": str(archive)}, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert made.stdout.startswith(str(archive))
    assert "<main>" in made.stdout
