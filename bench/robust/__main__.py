"""Robustness: hostile peers at every listener, silent and slow ones, kills; and what good peers and newcomers notice.

    python -m bench.robust [--rows PATTERN,...] [--connections N] [--seconds S] [--sources N] [--json FILE] [--list]

bench/README.md says what the rows are. The exit status is 1 if a goal was missed.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

import attrs

from bench import harness, machine
from bench.harness import Figure, figure_table, table
from bench.robust import dns_attacks, elko_attacks, http_attacks, links, logins, measure, zmtp_attacks, zmtp_hellos
from bench.robust.swarm import SOURCES
from bench.servers import FailedError
from bench.traffic import Stuck

DOORS = [*elko_attacks.DOORS, *http_attacks.DOORS, *zmtp_attacks.DOORS, *dns_attacks.DOORS]

SCENARIOS = {**zmtp_hellos.SCENARIOS, **links.SCENARIOS, **logins.SCENARIOS}
"""Rows that are not an attack by a swarm: each has figures of its own."""


def main() -> int:
    """Run the rows that the command line selects. Returns the exit status."""
    arguments = ArgumentParser(description="Hostile, silent and slow peers at every listener, and kills.")
    arguments.add_argument("--connections", type=int, default=1_000, help="hostile peers at once")
    arguments.add_argument("--sources", type=int, default=SOURCES, help="addresses that they come from")
    arguments.add_argument("--seconds", type=float, help="of each row, instead of 10 or its own")
    titles = {door.name: f"{door.wire}: {door.title}" for door in DOORS}
    titles |= {name: scenario.title for name, scenario in SCENARIOS.items()}
    options, names = harness.parsed(arguments, titles)
    about = harness.begin()
    shares: list[measure.Shares] = []
    outcomes: dict[str, list[Figure]] = {}
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            if name in SCENARIOS:
                outcomes[name] = SCENARIOS[name].measured(options.seconds)
            else:
                door = next(door for door in DOORS if door.name == name)
                shares.append(measure.measure(door, options.connections, options.seconds or 10.0, options.sources))
                print(table(measure.HEADINGS, [shares[-1].cells()]), file=sys.stderr, flush=True)
        except (Stuck, FailedError, OSError, EOFError) as error:  # the other rows are measured all the same
            outcomes[name] = [Figure("the row failed", repr(error), "runs", False)]
    print(f"load average at the end: {machine.load_average()}\n")
    if shares:
        print("Shares of pings answered within 50 ms, and of newcomers within a second; memory in MiB.\n")
        print(table(measure.HEADINGS, [each.cells() for each in shares]))
        for each in shares:
            for line in each.unexpected:
                print(f"{each.door.name}: log: {line}")
    for name, figures in outcomes.items():
        print(f"\n{titles[name]}\n\n{figure_table(figures)}")
    harness.write(
        options.json,
        about,
        # Without the functions that make the peers: they have no form in JSON.
        doors=[attrs.asdict(each, filter=lambda _, value: not callable(value)) for each in shares],
        scenarios={name: [attrs.asdict(figure) for figure in figures] for name, figures in outcomes.items()},
    )
    missed = [each.misses() for each in shares]
    missed += [[figure.what for figure in figures if figure.met is False] for figures in outcomes.values()]
    return 1 if any(missed) else 0


if __name__ == "__main__":
    sys.exit(main())
