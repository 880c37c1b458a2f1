"""Keys of former versions whose values are constants now, since nobody needs others."""

from __future__ import annotations

FIXED = {
    "access.audit_files": "10 rotated files are kept",
    "checks.silent_ttls": "it is 5 leases",
    "cluster.gather": "it is 0.03 s",
    "cluster.load_interval": "it is 1 s",
    "dns.stalled_after": "it is 30 s",
    "http.burst": "it is 1000 connections",
    "http.kept_open": "it is 75 s",
    "http.request_within": "it is 30 s",
    "http.stalled_after": "it is 30 s",
    "http.write_buffer": "it is 4 MiB",
    "mtl.most_window": "it is 1000",
}
"""The value by the key."""


def why(key: str) -> str | None:
    """Return the error of such a key; None for any other."""
    return f"is no key any more: {FIXED[key]}. Remove it" if key in FIXED else None
