"""Files and parts of pages that are made of what the code declares: ``python -m tests.generated`` writes them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import get_args, get_type_hints
from unittest.mock import Mock

import attrs
from msgspec import Meta

from broker.app.bridge_parts import WIRE
from broker.app.cluster_health import COUNTERS as OF_HEALTH
from broker.app.cluster_health import ClusterHealth
from broker.app.configuration import SCHEMA
from broker.app.process import DAEMON
from broker.app.wires import WIRES
from broker.bridge.bridges import COUNTERS as OF_BRIDGES
from broker.brokerctl.cli import cli, manual_page
from broker.cluster.links.link_messages import LINK_COUNTERS, link_counters
from broker.cluster.links.links import links_view
from broker.cluster.settings import COUNTERS as OF_CLUSTER
from broker.config import document
from broker.export.journal_records import MEMBERS, DetailedRecord
from broker.operate import metrics
from broker.operate.actions import ACTIONS
from broker.operate.metrics import CounterMetrics, Family, table_families
from broker.operate.table_endpoints import ListQuery
from broker.wires.dbp.dbp_wire import dbp_views
from broker.wires.dns.dns_wire import dns_views
from broker.wires.elko.broker_wire import broker_views
from broker.wires.elko.director_wire import director_views
from broker.wires.http.http_wire import http_views
from broker.wires.mc0 import mc0_wire
from broker.wires.mtl import mtl_tables
from broker.wires.tables import AnyView, Counter, Documentation

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

WIDTH = 120


def items(texts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a list."""
    for text in texts:
        yield from textwrap.wrap(
            text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )


def key_tables() -> str:
    """Return the tables of all keys."""
    return document.tables((each.name, each.default) for each in SCHEMA.sections)


# Metrics

TITLES = {
    "elko": "Elko and the director",
    "director": "Elko and the director",
    "dbp": "DBP",
    "mtl": "MTL",
    "dns": "DNS",
    "http": "HTTP",
}
"""Headings of the wires' metrics, where they are not the name of the wire."""


def shared(family: Family) -> bool:
    """Return True if several wires have the metric."""
    return "wire" in family.labels


def metric_sections() -> Iterator[tuple[str, Iterable[Family]]]:
    """Yield the headings of the page of metrics, each with its metrics."""
    by_owner: dict[str, list[Counter]] = {"Core": [*DAEMON]}
    for wire in WIRES:
        by_owner.setdefault(TITLES.get(wire.name, wire.name), []).extend(wire.counters)
    by_owner |= {
        "The cluster": [each for each in (*OF_CLUSTER, *OF_HEALTH) if each not in LINK_COUNTERS],
        "Bridges": [*OF_BRIDGES],
        "Links of the cluster and of bridges": [*LINK_COUNTERS, *link_counters(WIRE)],
    }
    every = CounterMetrics(Documentation([each for counters in by_owner.values() for each in counters])).families()
    yield "State", (*metrics.OF_STATE, *metrics.OF_TIMES, *metrics.OF_PLAN)
    yield "Connections and messages of all wires", filter(shared, every)
    yield (
        "Tables of wires and of the cluster",
        {each: None for view in table_views() for each in table_families(view).values()},
    )
    for title, counters in by_owner.items():
        own = [each for each in CounterMetrics(Documentation(counters)).families() if not shared(each)]
        yield title, (*(metrics.OF_CLUSTER if title == "The cluster" else ()), *own)


def table_views() -> Iterator[AnyView]:
    """Yield the tables whose rows are counted, without the parts that have the rows."""
    part = Mock()
    yield from broker_views(part)
    yield from director_views(part)
    yield from dbp_views(part, part)
    yield from mtl_tables.views(part, part, part, part, part)
    yield from mc0_wire.views(part, part, part)
    yield from http_views(part, part)
    yield from dns_views(part, part, part)
    yield links_view(part)
    yield ClusterHealth.view(part)


def metric_tables() -> str:
    """Return the lists of all metrics."""
    lines: list[str] = []
    for title, families in metric_sections():
        by_help: dict[str, list[str]] = {}
        for each in families:
            labels = f"{{{','.join(each.labels)}}}" if each.labels else ""
            by_help.setdefault(each.help, []).append(f"`{each.name}{labels}`")
        lines += [f"## {title}", "", *items(f"{', '.join(names)}: {text}" for text, names in by_help.items()), ""]
    return "\n".join(lines)


# The API


def list_parameters() -> str:
    """Return the list of the parameters of lists."""
    of = {name: get_args(hint)[1] for name, hint in get_type_hints(ListQuery, include_extras=True).items()}
    return "\n".join(
        [
            *items(
                f"`{field.name}`{bounds(field.default, of[field.name])}: {of[field.name].description}"
                for field in attrs.fields(ListQuery)
            ),
            "",
            "",
        ]
    )


def bounds(default: object, about: Meta) -> str:
    """Return the default of a number, and its maximum."""
    return f" (default {default:,}, maximum {about.le:,})" if default and isinstance(default, int) else ""


def action_table() -> str:
    """Return the table of the actions with their rights."""
    by_right: dict[tuple[str, str], list[str]] = {}
    for action in ACTIONS:
        by_right.setdefault((action.right, f"{action.kind}s" if action.some else ""), []).append(f"`{action.name}`")
    rows = [f"| {', '.join(names)} | `{right}` | {kind} |" for (right, kind), names in by_right.items()]
    return "\n".join(["| actions | right | names |", "| --- | --- | --- |", *rows, "", ""])


# The journal

TYPES = {int: "integer", float: "number", str: "text"}
"""Types of members, as the page names them."""


def member_table() -> str:
    """Return the table of the members of records."""
    # The members that the encoding adds are in no class.
    types = {"v": int, "broker": str, "boot": str, "seq": int, **get_type_hints(DetailedRecord)}
    rows = []
    for name, (unit, meaning) in MEMBERS.items():
        type_ = next(iter(get_args(types[name])), types[name])  # the first of ``int | None``
        rows.append(f"| `{name}` | {TYPES[type_]} |{f' {unit}' if unit else ''} | {meaning} |")
    return "\n".join(["| member | type | unit | meaning |", "|---|---|---|---|", *rows, "", ""])


# The tables of the capacity jobs


def column_tables() -> str:
    """Return the tables with their columns, and each meaning once."""
    # Here, since Spark takes a second to import, and most callers want something else.
    from spark.capacity.tables.schema import MEMBERS as OF_RECORDS
    from spark.capacity.tables.schema import SNAPSHOT, TABLES, Table

    of_records = set(OF_RECORDS.split()) - set(CHANGED.split())

    def described(table: Table, name: str) -> str:
        unit, text = table.meaning(name)
        return f"`{name}`{f' ({unit})' if unit else ''}: {text}."

    tables: list[str] = []
    seen: list[Table] = []
    meanings: dict[str, str] = {}
    for table in (*TABLES, SNAPSHOT):
        # A table that begins with all columns of the one before it, with their meanings, has only the others named.
        begun = seen[-1] if seen and not table.own else None
        if begun and table.schema.names[: len(begun.schema.names)] != begun.schema.names:
            begun = None
        names = [f"Columns of {begun.name}"] if begun else []
        for name in table.schema.names[len(begun.schema.names) if begun else 0 :]:
            text = described(table, name)
            exception = name in table.own or meanings.setdefault(name, text) != text
            names.append(text[:-1] if exception else f"`{name}`")
        seen.append(table)
        dated = ", dated" if table.dated else ""
        tables.append(f"**{table.name}**: {table.purpose}{dated}. {'; '.join(names)}.")
    # In the order of the tables, since a meaning may refer to the column before.
    others = (text for name, text in meanings.items() if name not in of_records)
    return "\n".join(["## Tables", "", *items(tables), "", "## Columns", "", *items(others), "", ""])


CHANGED = "broker boot seq service load full_load in_flight requests errors dropped coalesced"
"""Members of records that tables change; docs/export.md has the meanings of all others."""


# The files

PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "configuration.md": {"keys": key_tables},
    "export.md": {"members": member_table},
    "http-api.md": {"parameters": list_parameters, "actions": action_table},
    "metrics.md": {"metrics": metric_tables},
    "tables.md": {"tables": column_tables},
}
"""The generated parts of the pages: each stands between the marks ``<!-- NAME -->`` and ``<!-- end of NAME -->``."""


def page(name: str) -> str:
    """Return a page with its generated parts, and all else as it is."""
    text = (DOCS / name).read_text()
    for part, made in PARTS[name].items():
        begin, end = f"<!-- {part} -->\n", f"<!-- end of {part} -->\n"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{made()}{rest[rest.index(end) :]}"
    return text


def generated() -> dict[Path, str]:
    """Return the text of each file that is generated, or has generated parts."""
    return {
        ROOT / "etc" / "elkobroker.toml": SCHEMA.example(),
        ROOT / "etc" / "man" / "brokerctl.1": manual_page(cli),
        **{DOCS / name: page(name) for name in PARTS},
    }


def main() -> None:
    """Write the files."""
    for path, text in generated().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
