"""Host addresses of peers: see `broker.access.identity`."""

from __future__ import annotations

from broker.access.identity import is_local as is_loopback

__all__ = ["is_loopback"]
