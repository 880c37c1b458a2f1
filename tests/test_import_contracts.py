"""The import contracts that list wires by name have all of them, and imports have no circle."""

from __future__ import annotations

import tomllib
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import grimp
import pytest

ROOT = Path(__file__).parent.parent
WIRES = {f"broker.wires.{path.parent.name}" for path in (ROOT / "broker" / "wires").glob("*/*_entry.py")}
"""The folders with a wire, as modules."""


def contract(name: str) -> dict[str, Any]:
    """Return the import contract whose name begins so."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [found] = [each for each in settings["tool"]["importlinter"]["contracts"] if each["name"].startswith(name)]
    return dict(found)


def test_all_wires_are_independent() -> None:
    assert set(contract("No wire imports another wire")["modules"]) == WIRES


@pytest.mark.parametrize(
    ("name", "besides"),
    [
        ("Administration sees views and dialects", set()),
        (
            "A client is for other programs",
            {"broker.wires.mtl"},
        ),  # its codec is allowed, and its other parts are listed
    ],
)
def test_a_contract_forbids_each_wire(name: str, besides: set[str]) -> None:
    assert WIRES - set(contract(name)["forbidden_modules"]) == besides


def test_no_import_leads_back_to_its_module() -> None:
    graph = grimp.build_graph("broker", exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # which raises a CycleError with the circle


def test_no_two_files_share_a_name() -> None:
    """The public modules of the client library keep their names, which are in programs of others."""
    modules = [path for path in (ROOT / "broker").rglob("*.py") if path.name != "__init__.py"]
    client = ROOT / "broker" / "client"
    for folder in (True, False):
        names = Counter(path.name for path in modules if path.is_relative_to(client) is folder)
        assert [name for name, count in names.items() if count > 1] == []
