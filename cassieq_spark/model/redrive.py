"""Turn visible messages of a bucket row into dead sets with a target, for a redrive (ADR 16). Pure.

Holds I2, I4: messages that are leased, delayed, dead or acked by now are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

from cassieq_spark.model import lease as lease_rules
from cassieq_spark.model.bucket import Bucket, Returned, Status, merge_returned
from cassieq_spark.model.dead import REDRIVE, DeadSet
from cassieq_spark.model.ids import QueueName, Runs, union
from cassieq_spark.model.lease import is_expired, past, taken_out

SETS_TOGETHER: Final = 16
"""The most dead sets that one CAS makes: a row does not grow with the number of targets [R6]."""


def visible(row: Bucket, now_us: int) -> tuple[Returned, ...]:
    """Return the messages a claim could take now, and those out of deliveries."""
    if row.status is not Status.SEALED:
        return ()
    return merge_returned(lease_rules.visible(row, now_us))


def leased(row: Bucket, now_us: int) -> tuple[Returned, ...]:
    """Return the messages that somebody holds."""
    return merge_returned(
        Returned(deliveries=lease.delivery_count, runs=lease.runs)
        for lease in row.leases
        if not is_expired(lease, now_us)
    )


def delayed(row: Bucket, now_us: int) -> tuple[Returned, ...]:
    """Return the messages that are not due yet."""
    return merge_returned(
        Returned(deliveries=group.deliveries, runs=group.runs - past(row, now_us))
        for group in row.delayed
        if group.due_us > now_us
    )


def send_on(
    row: Bucket,
    chosen: Mapping[QueueName, Runs],
    new_id: Callable[[], UUID],
    *,
    now_us: int,
) -> tuple[Bucket, tuple[DeadSet, ...]]:
    """Take visible messages into new, closed dead sets, one per target and delivery count [R14].

    Args:
        chosen: The messages by target; no message has two targets.

    Returns:
        The row afterwards, and the sets taken: at most `SETS_TOGETHER` sets; fewer mean that
            nothing is left.
    """
    sets: list[DeadSet] = []
    for target, wanted in sorted(chosen.items()):
        for part in visible(row, now_us):
            if (runs := part.runs & wanted) and len(sets) < SETS_TOGETHER:
                sets.append(
                    DeadSet(
                        set_id=new_id(),
                        runs=runs,
                        deliveries=part.deliveries,
                        died_us=now_us,
                        reason=REDRIVE,
                        target=target,
                    )
                )
    if not sets:
        return row, ()
    gone = union(part.runs for part in sets)
    after = taken_out(row, gone, now_us=now_us)
    return replace(after, dead=(*row.dead, *sets)), tuple(sets)
