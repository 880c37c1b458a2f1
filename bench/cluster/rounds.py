"""A hundred seeded rounds of mixed faults on a farm of three brokers and three members of etcd, on network namespaces.

``python -m bench.cluster.rounds``: needs the right to make network namespaces. The rig and the same rounds in small are
in ``tests/cluster/farm``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import mean, median

from bench.common.machine import describe
from bench.common.report import table

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Run the rounds, and print Markdown."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--rounds", type=int, default=100)
    options.add_argument("--providers", type=int, default=1000)
    options.add_argument("--ttl", type=int, default=6)
    options.add_argument("--minutes", type=float, default=120.0, help="after which no further round begins")
    options.add_argument("--directory", default="", help="where the logs of etcd and the brokers stay")
    given = options.parse_args()
    print(", ".join(f"{name}: {value}" for name, value in describe().items()))
    sys.exit(_run(given))


def _run(given: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "tests.cluster.farm.rounds", "--minutes", str(given.minutes)]
    command += [
        f"--seed={given.seed}",
        f"--rounds={given.rounds}",
        f"--providers={given.providers}",
        f"--ttl={given.ttl}",
    ]
    if given.directory:
        command += ["--directory", given.directory]
    began = time.monotonic()
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            lines.append(json.loads(line))
            print(line.rstrip(), file=sys.stderr, flush=True)
    rounds = [line for line in lines if "round" in line]
    kinds = Counter(" ".join(fault.split(" at ")[0].split()[:2]) for line in rounds for fault in line["faults"])
    bad = [line for line in rounds if line["missed"] or line["trouble"] or line["ended"] or line["messages"]]
    last: dict[str, int] = rounds[-1] if rounds else Counter()
    settled = sorted(line["settled"] for line in rounds) or [0.0]
    rows = [
        ["rounds", str(len(rounds))],
        ["faults", ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))],
        ["CPU time that the hypervisor took", f"{mean(line['stolen'] for line in rounds):.0%}" if rounds else "-"],
        ["minutes", f"{(time.monotonic() - began) / 60:.0f}"],
        ["moves of providers", str(sum(line["moves"] for line in rounds))],
        ["looks at whole registries during the rounds", str(sum(line["looks"] for line in rounds))],
        ["confirmed messages of queues, and those read again", f"{last['confirmed']} / {last['again']}"],
        ["messages of the topic that arrived", str(last["received"])],
        ["rounds with anything wrong", f"{len(bad)} {[line['round'] for line in bad] or ''}"],
        ["seconds until all registries were equal, median and most", f"{median(settled)} / {settled[-1]}"],
        ["other lines", "; ".join(str(line) for line in lines if "round" not in line)],
    ]
    print(table(("what", "result"), rows))
    return running.returncode


if __name__ == "__main__":
    main()
