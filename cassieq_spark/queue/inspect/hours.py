"""Count scheduled messages by the hour in which they fall due."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cassieq_spark.model.frozen import frozen
from cassieq_spark.queue.inspect.stats import not_due_in
from cassieq_spark.queue.inspect.waiting import count_scheduled
from cassieq_spark.queue.message import time_of
from cassieq_spark.queue.schedule import begun_and_later

if TYPE_CHECKING:
    from cassieq_spark.queue.lane import Lane

HOUR_US: Final = 3_600_000_000


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledHour:
    """Messages of one priority that fall due in one hour.

    Attributes:
        due_from: The begin of the hour, UTC; with a ``schedule_period`` longer than an hour, the
            begin of the period.
        priority: Their priority.
        messages: Their number.
    """

    due_from: datetime
    priority: int
    messages: int


async def by_hour(lane: Lane) -> list[ScheduledHour]:
    """Count scheduled messages that are not due yet, soonest first, highest priority first.

    Raises:
        StoreError: Some buckets did not answer: a count without them would be wrong.
    """
    period_us = lane.settings.period_us
    counts: Counter[tuple[int, int]] = Counter()
    begun, later = await begun_and_later(lane)
    counting = [(one, not_due_in) for one in begun]
    counting += [(one, count_scheduled) for one in later]
    found = await lane.store.session.map(lambda pair: pair[1](pair[0]), counting)
    for (one, _), messages in zip(counting, found, strict=True):
        if messages and (due := one.due) is not None:
            hour = due.begins_us(period_us) // HOUR_US * HOUR_US
            counts[hour, -due.priority] += messages
    return [
        ScheduledHour(due_from=time_of(hour), priority=-priority, messages=counts[hour, priority])
        for hour, priority in sorted(counts)
    ]
