"""Every counter of a daemon is documented."""

from __future__ import annotations

import re
from pathlib import Path

from broker.app.process import COUNTERS, DAEMON
from broker.app.wires import WIRES

BROKER = Path(__file__).parents[2] / "broker"

SOURCES = sorted(path for path in BROKER.rglob("*.py") if path.parent.name != "config")
"""All modules but those of the configuration, whose keys look like counters."""

NAMES = "mc0|dbp|mtl|elko|director|journal|registry"
LITERAL = re.compile(rf'refusal_log\.count\("([a-z0-9_]+)"|"((?:{NAMES})[a-z0-9_]*\.[a-z_-]+)":')
"""A counter in the source: counted by name, or given by a method ``counts``."""


def test_no_counter_is_documented_twice() -> None:
    names = [counter.name for counter in (*DAEMON, *(each for wire in WIRES for each in wire.counters))]
    assert len(names) == len(set(names))


def test_each_counter_of_the_source_is_documented() -> None:
    for path in SOURCES:
        for family, name in LITERAL.findall(path.read_text()):
            counter = COUNTERS.of(family or name)
            assert counter is not None, (path, family or name)
            assert counter.help
