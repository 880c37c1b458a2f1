"""Benchmarks: a folder for each wire and for the journal, and ``common`` for the parts that several of them use.

They run from the root of the project, as ``python -m bench.mc0.cost`` for example. README.md lists all of them.
"""
