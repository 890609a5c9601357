"""Close reserved buckets that nobody writes, so that the reader pointer can pass (design 3, 9).

A queue's readers do the same. Without this, a queue that is only written to, or that nobody reads
any more, would never be dropped (I9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.model.ids import ID_LIMIT
from cassieq_spark.queue import seal
from cassieq_spark.queue.get.scan import Rows, Scanner

if TYPE_CHECKING:
    from cassieq_spark.queue.lane import Lane


def close_gaps(lane: Lane) -> int:
    """Close buckets that were reserved long ago and are still empty; return how many.

    The proof of age is the same as a reader's: the monoton row, or a later bucket's [R11]. A bucket
    with messages stays open for its next get, or for its producer.
    """
    scanner = Scanner(lane)
    scan = scanner.scan(ID_LIMIT)
    gap_us = int(lane.settings.gap_timeout_s * 1e6)
    updated: Rows = {}
    for bucket in scan.open:
        age_us = lane.clock.now_us() - scan.oldest_later_us[bucket]
        if age_us < gap_us or lane.messages.has_any(bucket):
            continue
        closed = seal.close(lane, bucket)
        if closed is not None:
            updated[bucket] = closed.row
    scanner.advance(scan, updated)
    return len(updated)
