"""Define the settings of a queue, which are stored with it."""

from __future__ import annotations

from typing import Final

from cassieq_spark.model.dedup import MAX_WINDOW_S, MIN_WINDOW_S
from cassieq_spark.model.lanes import MAX_PRIORITIES, MAX_SHARDS
from cassieq_spark.options import values
from cassieq_spark.options.option import FOUR_HUNDRED_DAYS_S, QUEUE, THIRTY_DAYS_S, Option

QUEUE_SETTINGS: Final[tuple[Option, ...]] = (
    Option(
        name="bucket_size",
        scopes=QUEUE,
        values=values.whole(1, 100_000, from_text=False),
        default=100_000,
        unit="ids",
        doc="The number of ids in a bucket. LWTs are paid per bucket, so fewer and larger "
        "buckets are cheaper.",
    ),
    Option(
        name="priorities",
        scopes=QUEUE,
        values=values.whole(1, MAX_PRIORITIES, from_text=False),
        default=1,
        unit="classes",
        doc="The number of priorities. `put` takes a priority from 0 to one less than this; a "
        "higher one is handed out first. It cannot change.",
    ),
    Option(
        name="shards",
        scopes=QUEUE,
        values=values.whole(1, MAX_SHARDS, from_text=False),
        default=1,
        unit="lanes",
        doc="The number of lanes of each priority, for many producers and consumers at once. "
        "Messages of one `key` stay in one lane. `priorities` times `shards` is 64 at most. It "
        "cannot change.",
    ),
    Option(
        name="fairness",
        scopes=QUEUE,
        values=values.share(0.5),
        default=0.1,
        unit="share",
        doc="The share of what is handed out that is offered to a lower priority first, from 0 "
        "to 0.5. With 0, a lower priority gets nothing while a higher one has messages.",
    ),
    Option(
        name="schedule_after",
        scopes=QUEUE,
        values=values.seconds(0, 86_400, from_text=False),
        default=900.0,
        unit="seconds",
        doc="A message that is due later than this from now waits in a part of its own, so that "
        "it costs nothing until its time comes.",
    ),
    Option(
        name="schedule_period",
        scopes=QUEUE,
        values=values.seconds(60, 86_400, from_text=False),
        default=3_600.0,
        unit="seconds",
        doc="Scheduled messages that are due within the same period share such a part. A message "
        "may be due at most 10,000 periods ahead, and at most 400 days. It cannot change.",
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
        "in it. Messages that come one by one, or a few at a time, do not wait for it.",
    ),
    Option(
        name="gap_timeout",
        scopes=QUEUE,
        values=values.seconds(0.1, 86_400, from_text=False),
        default=10.0,
        unit="seconds",
        doc="How long a reserved bucket may stay empty before it is closed.",
    ),
    Option(
        name="retention",
        scopes=QUEUE,
        values=values.seconds(60, FOUR_HUNDRED_DAYS_S, from_text=False),
        unit="seconds",
        example=345_600,
        doc="How long a message is kept that nobody gets, counted from when it is due. Then it "
        "expires. It counts for buckets that are sealed after it was set. Unset: for ever.",
    ),
    Option(
        name="dead_letter_expired",
        scopes=QUEUE,
        values=values.flag(),
        default=False,
        doc="Whether expired messages go to the dead-letter queue, with the reason `expired`. "
        "Otherwise they are dropped.",
    ),
    Option(
        name="dedup_window",
        scopes=QUEUE,
        values=values.seconds(MIN_WINDOW_S, MAX_WINDOW_S, from_text=False),
        unit="seconds",
        example=3_600,
        doc="How long a `dedup_key` stands for the first message that was put with it: a further "
        "put of the key stores nothing. A longer window counts for keys that are put after it was "
        "set. Unset: keys are refused.",
    ),
)
