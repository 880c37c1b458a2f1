"""Clients, for other programs: they use the wires, and know nothing of the broker's inside.

`mtl` is the client of MTL for programs with a reactor, `blocking` the same for programs without one.
"""
