"""Convert between cluster microseconds and aware datetimes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(time_us: int) -> datetime:
    """Convert cluster microseconds to an aware datetime."""
    return _EPOCH + timedelta(microseconds=time_us)


def us_of(time: datetime) -> int:
    """Convert an aware datetime to cluster microseconds."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def show_time(moment: datetime | None) -> str | None:
    """Format a time as ISO 8601, UTC."""
    return None if moment is None else moment.isoformat(timespec="milliseconds")
