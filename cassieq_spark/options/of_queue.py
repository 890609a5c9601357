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
        doc="The number of ids in a bucket. LWTs are paid per bucket, so fewer and larger "
        "buckets are cheaper.",
    ),
    Option(
        name="visibility_timeout",
        scopes=QUEUE,
        values=values.seconds(0.1, THIRTY_DAYS_S, from_text=False),
        default=30.0,
        unit="seconds",
        doc="How long a message stays hidden after a get that sets no timeout itself.",
    ),
    Option(
        name="max_deliveries",
        scopes=QUEUE,
        values=values.whole(1, (1 << 31) - 1, from_text=False),
        unit="deliveries",
        example=5,
        doc="The number of deliveries that a message has; after the last one it is dead. "
        "Messages die only if the queue has a dead-letter queue. Unset: no limit.",
    ),
    Option(
        name="dead_letter_queue",
        scopes=QUEUE,
        values=values.queue_name(),
        example="orders.dead",
        doc="The queue that repair moves dead messages to. It must exist already.",
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
        doc="How long a bucket stays open for more messages after a reader first saw a message "
        "in it.",
    ),
    Option(
        name="gap_timeout",
        scopes=QUEUE,
        values=values.seconds(0.1, 86_400, from_text=False),
        default=10.0,
        unit="seconds",
        doc="How long a reserved bucket may stay empty before it is closed.",
    ),
)
