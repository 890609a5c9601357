"""Find an intent's outcome from its CAS's outcome and the row afterwards. Pure.

The tag comes first (`events.fate_of`). Marks count only where the tags no longer tell [R8].
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cassieq_spark.model.ids import union
from cassieq_spark.model.rows.intents import Ask, Claimed, Settle
from cassieq_spark.model.settlement import Ack, Judged, Release

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cassieq_spark.model.bucket import Bucket, Lease
    from cassieq_spark.model.rows.intents import Effect, Result
    from cassieq_spark.model.rows.waiting import Entry


def leases_of(effect: Effect) -> tuple[Lease, ...]:
    """Return the leases that a claim got."""
    return effect.result.leases if isinstance(effect.result, Claimed) else ()


def still_held(row: Bucket | None, leases: Iterable[Lease]) -> tuple[Lease, ...]:
    """Return what the row still holds of these leases: others may have settled or claimed some.

    Each lease counts with its own messages only: others may hold some of the same lease, with other
    ends.
    """
    found: list[Lease] = []
    entries = () if row is None else row.leases
    for lease in leases:
        same = [one for one in entries if one.lease_id == lease.lease_id]
        there = [one for one in same if one.runs & lease.runs]
        if there:
            runs = union(one.runs & lease.runs for one in there)
            found.append(replace(lease, runs=runs, until_us=min(one.until_us for one in there)))
    return tuple(found)


def is_told(entry: Entry, result: Result) -> bool:
    """Whether a settlement may get this result, though a CAS of it is in doubt.

    "Stale" or "acked" may mean that the CAS took effect, and that others got the message since. An
    ack that took effect can be seen for ever (I4), so it gets its result.
    """
    if not entry.doubts or not isinstance(result, Judged) or not isinstance(entry.intent, Settle):
        return True
    ended = result.stale.keys() | result.never.keys()
    return not any(
        (ask.lease_id in ended or result.acked) and not isinstance(ask.action, Ack)
        for ask in entry.intent.asks
    )


def given_back(leases: Iterable[Lease]) -> Settle:
    """Release messages that nobody was handed: uncounted, and by their runs (I2) [P18]."""
    release = Release(is_counted=False)
    return Settle(asks=tuple(Ask(lease.lease_id, release, lease.runs) for lease in leases))
