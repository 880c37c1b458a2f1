"""Limits of the exchange between directors, each with its unit and reason."""

from __future__ import annotations

CHANNEL = "director"
"""The channel of the links between brokers. It is not lossy."""

MESSAGE_WORK = 500
"""Users and other reports in one message: some 3 ms at the recipient, and some 40 KB."""

WINDOW = 4
"""Pieces of a snapshot that may be unacknowledged. A link ends when its queue is full, and a snapshot that was sent at
once could fill it each time."""

HELD_SECONDS = 10.0
"""Seconds for which the servers of another broker stay known after the link to it has ended: as long as the entries of
a broker that died stay in etcd by default. Users are found there for as long, and reservations kept."""

DELIVERY_SECONDS = 2.0
"""Seconds within which the director that holds a server must confirm that the server was sent a reservation."""

MAX_REMOTE_LINKS = 20_000
"""Links of one other broker that are shared: twice the default limit of a director."""

MAX_WAITING_GRANTS = 20_000
"""Reservations for servers that are not known yet, after a restart. Some 10 MB; they expire like all others."""
