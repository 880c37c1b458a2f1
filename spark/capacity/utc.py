"""Moments in UTC. A moment without a zone is one of UTC."""

from datetime import UTC, datetime


def utc(moment: datetime) -> datetime:
    """Return the same moment in UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
