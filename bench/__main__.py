"""All rows: ``python -m bench [--rows PATTERN,...] [--quick] [--list]``. bench/README.md has the method."""

from __future__ import annotations

import sys
from importlib import import_module

from bench import harness

MODULES = (
    "elko",
    "director",
    "mc0",
    "dbp",
    "mtl",
    "dns",
    "http",
    "scale",
    "stalls",
    "journal",
    "links",
    "cluster",
    "spark",
)

if __name__ == "__main__":
    rows = {
        f"{module}-{name}": row
        for module in MODULES
        for name, row in import_module(f"bench.rows.{module}").ROWS.items()
    }
    sys.exit(harness.main(rows))
