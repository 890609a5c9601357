"""Decide by a row's time whether the process that wrote it is still at work.

The row's TTL does not tell: it counts from the clock of the node that took the write. A row that
was taken by a node whose clock was an hour ahead stays an hour too long.
"""

from __future__ import annotations


def leads(since_us: int, *, now_us: int, lease_s: float) -> bool:
    """Whether a leader that last renewed its lead at ``since_us`` still has it.

    No leader writes a time that is further ahead than a lead lasts: then the cluster's clock was
    wrong.
    """
    return abs(now_us - since_us) <= lease_s * 1e6


def is_at_work(at_us: int, *, now_us: int, timeout_s: float) -> bool:
    """Whether a writer whose newest heartbeat was at ``at_us`` still counts as at work.

    A time ahead of now counts: later heartbeats, by a clock that is right again, cannot replace it.
    """
    return now_us - at_us <= timeout_s * 1e6
