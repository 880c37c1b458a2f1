"""How long tests wait for an event before they fail: one figure for all that wait in real time.

A test waits for the event itself and never sleeps for a fixed time. So the figure costs nothing where the event comes,
and may be generous: on a machine that has twenty times as much to do, each step takes twenty times as long.
"""

PATIENCE = 120.0
"""Seconds after which an event that should have come has not: twenty times the few seconds that the slowest step, the
start of a daemon with all wires, takes on a machine with one other thing to do."""
