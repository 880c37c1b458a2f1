"""Generated files and parts of pages are those that the code's declarations give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.generated import ROOT, generated


@pytest.mark.parametrize(("path", "text"), [pytest.param(*each, id=each[0].name) for each in generated().items()])
def test_a_generated_file_is_that_of_the_declarations(path: Path, text: str) -> None:
    assert path.read_text() == text, f"{path.relative_to(ROOT)}: run python -m tests.generated"
