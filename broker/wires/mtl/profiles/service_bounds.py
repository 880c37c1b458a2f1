"""Bounds of the profile "service": one value for requests, workers and reply inboxes."""

from __future__ import annotations

import attrs


@attrs.frozen
class ServiceBounds:
    """Bounds of all virtual hosts together, where no other scope is given. Beyond one, a request is refused."""

    requests: int = 100_000
    """Requests that wait, or that workers have: 90 MB beside their bodies. A thousand workers with usual windows have
    that many; a caller that expects more replies does not get them in time."""

    waiting: int = 10_000
    """Waiting requests of one service: more than its workers can process before callers give up."""

    kept: int = 128 * 1024 * 1024
    """Bytes of all requests that wait or may be sent again, and of replies that wait for their callers to read."""

    workers: int = 1_000
    """Workers of one service: each request compares all of them, which takes a fifth of a millisecond then."""

    jobs: int = 100_000
    """Pairs of worker and service: some 50 MB."""

    tries: int = 20
    """Deliveries of one request: a request that breaks every worker that takes it has broken few by then."""

    look_ahead: int = 100
    """Returned requests that are searched for one that a worker has not had before."""

    backlog: int = 1_000
    """Replies that wait for one reader, behind the messages that wait for it in the transport."""
