"""The module that twistd loads for the command ``elkobroker``.

It holds back signals until the start handles them, and restarts the interpreter, if necessary, before the broker is
imported: the imports are half of the work of a start, and the restart would repeat them. The first start builds the
compiled helpers of ZMTP, which the import of the broker loads.
"""

from __future__ import annotations

import sys

from broker.app.process_start import hold_signals, use_system_heap
from broker.missing_extra import load
from broker.net.zmtp.build import build_missing

ONLY_SHOWS = {"--check", "--check-ports", "--example", "--help", "--version"}
"""Options with which no broker runs."""

if "elkobroker" in sys.argv and not ONLY_SHOWS.intersection(sys.argv):
    hold_signals()
    use_system_heap()
    build_missing()

_tap = load("broker.tap", "twistd elkobroker", "daemon")
Options, makeService = _tap.Options, _tap.makeService
