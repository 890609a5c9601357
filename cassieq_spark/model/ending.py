"""Find the next step of a lane's deletion by the rows read (docs/design/repair.md). Pure; I1, I9.

    L = 2^62  ->  no monoton row  ->  no data

Each step first notes, in a pointer of its own, a fact that the next step can find nowhere else: how
far the data was dropped when L went up, and where it ends when the monoton row goes. So a deletion
that was cut off, or that runs twice at once, continues where it was, and leaves nothing [T15].
"""

from __future__ import annotations

from dataclasses import dataclass

from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.pointer import Pointers


@dataclass(frozen=True, slots=True, kw_only=True)
class Raise:
    """Note that all below ``dropped`` is gone, then raise L: no put is acknowledged any more."""

    dropped: BucketNo


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Note where the ids end, then remove the monoton row as read: no id is handed out any more."""

    end: BucketNo


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Drop the buckets from ``first`` to before ``end``, then note that they are gone."""

    first: BucketNo
    end: BucketNo


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The lane has nothing left but its pointers, which stay for ever."""


Step = Raise | Close | Drop | Over


def next_step(end: BucketNo | None, pointers: Pointers, *, at_most: int) -> Step:
    """Return the next step of a deleter, whichever steps others have done before.

    Args:
        end: The bucket where the ids end, by the monoton row; None: there is no row.
        pointers: Read *after* that row: if the row went in between, its end would be unseen.
        at_most: The most buckets to drop before that is noted.
    """
    if not pointers.is_deleted:
        return Raise(dropped=pointers.repair)
    if end is not None:
        return Close(end=end)
    if pointers.dropped < pointers.end:
        last = min(pointers.dropped + at_most, pointers.end)
        return Drop(first=pointers.dropped, end=BucketNo(last))
    return Over()
