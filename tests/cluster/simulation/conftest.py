"""The fixture of the real etcd, for the suite that the fake etcd shares with it."""

from __future__ import annotations

from tests.cluster.etcd.conftest import one_etcd

__all__ = ["one_etcd"]
