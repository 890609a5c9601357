"""Define the settings of a queue, which are stored with it."""

from __future__ import annotations

from typing import Final

from cassieq_spark.options import values
from cassieq_spark.options.option import QUEUE, THIRTY_DAYS_S, Option

QUEUE_SETTINGS: Final[tuple[Option, ...]] = (
    Option(
        name="bucket_size",
        scopes=QUEUE,
        values=values.whole(1, 100_000, from_text=False),
        default=50_000,
        unit="ids",
        doc="Ids per bucket: LWTs are paid per bucket, so fewer and larger ones are cheaper.",
    ),
    Option(
        name="visibility_timeout",
        scopes=QUEUE,
        values=values.seconds(0.1, THIRTY_DAYS_S, from_text=False),
        default=30.0,
        unit="seconds",
        doc="How long a message that was got stays hidden, where a get does not say.",
    ),
    Option(
        name="max_deliveries",
        scopes=QUEUE,
        values=values.whole(1, (1 << 31) - 1, from_text=False),
        unit="deliveries",
        example=5,
        doc="After so many a message is dead. Without a dead-letter queue nothing dies.",
    ),
    Option(
        name="dead_letter_queue",
        scopes=QUEUE,
        values=values.queue_name(),
        example="orders.dead",
        doc="Where repair moves the dead; must be there already.",
    ),
    Option(
        name="repair_timeout",
        scopes=QUEUE,
        values=values.seconds(0.2, 86_400, from_text=False),
        default=15.0,
        unit="seconds",
        doc="How long a bulk writer may be silent before repair aborts its transaction.",
    ),
    Option(
        name="linger",
        scopes=QUEUE,
        values=values.seconds(0, 60, from_text=False),
        default=0.02,
        unit="seconds",
        doc="How long a bucket stays open for more messages after a reader first saw one in it.",
    ),
    Option(
        name="gap_timeout",
        scopes=QUEUE,
        values=values.seconds(0.1, 86_400, from_text=False),
        default=10.0,
        unit="seconds",
        doc="After so long a reserved bucket that is still empty is closed.",
    ),
)
