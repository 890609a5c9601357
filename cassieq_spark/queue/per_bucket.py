"""Work on many buckets, so that one without an answer stops no other (ADR 21). Holds I10."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from math import inf
from typing import Final, TypeVar

from cassieq_spark.errors import CassieqError, StoreError
from cassieq_spark.model.bucket import Bucket
from cassieq_spark.model.ids import BucketNo, LaneId, Place
from cassieq_spark.model.outcome import Stored
from cassieq_spark.queue.lane import Lane

R = TypeVar("R")
K = TypeVar("K", BucketNo, Place)

LATER_S: Final = 1.0
"""A look waits this long for each bucket after it has waited for one in vain."""


async def each_bucket(
    lane: Lane, work: Callable[[K], Awaitable[R]], buckets: Iterable[K]
) -> dict[K, R]:
    """Run ``work`` for every bucket, side by side. Raise an error when all others are done [T5].

    Args:
        buckets: Numbers of buckets of this lane, or places in any lanes of its queue.

    Raises:
        CassieqError: The error of the first bucket that failed, with its number. An error about the
            whole queue comes first.
    """
    done, failed = await per_bucket(lane, work, buckets)
    if failed:
        raise first_of(failed)
    return done


async def per_bucket(
    lane: Lane, work: Callable[[K], Awaitable[R]], buckets: Iterable[K]
) -> tuple[dict[K, R], dict[K, CassieqError]]:
    """Return the result of ``work`` for each bucket, and the errors of failed ones."""
    todo = list(buckets)
    done: dict[K, R] = {}
    failed: dict[K, CassieqError] = {}
    for bucket, result in zip(todo, await lane.store.session.each(work, todo), strict=True):
        if isinstance(result, CassieqError):
            failed[bucket] = named(result, lane, bucket)
        else:
            done[bucket] = result
    return done, failed


async def read_rows(
    lane: Lane, buckets: Iterable[BucketNo], away: dict[BucketNo, CassieqError]
) -> dict[BucketNo, Stored[Bucket] | None]:
    """Read rows, for a look at many buckets. Add those that do not answer to ``away``, with errors.

    Once a bucket did not answer, the wait for the next ones is short: there may be one in every
    window [T5].
    """
    with lane.store.session.within(each_s=LATER_S if away else inf):
        rows, unread = await lane.buckets.read_many(buckets)
    away |= {bucket: named(error, lane, bucket) for bucket, error in unread.items()}
    return rows


def first_of(failed: Mapping[K, CassieqError]) -> CassieqError:
    """Choose the error to raise for all: a deleted queue says more than a missing answer."""
    errors = sorted(failed.values(), key=lambda error: isinstance(error, StoreError))
    if len(errors) > 1:
        others = f" ({len(errors) - 1} more buckets failed)"
        if not errors[0].message.endswith(others):
            errors[0].message += others
    return errors[0]


def named(error: CassieqError, lane: Lane, at: BucketNo | Place) -> CassieqError:
    """Add the bucket to the text of an error."""
    if isinstance(at, Place):
        lane, at = lane.sibling(at.lane), at.bucket
    if isinstance(error, StoreError) and f"bucket {at} of " not in error.message:
        error.message = f"{lane.bucket_title(at)}: {error.message}"
    return error


def by_lane(found: Iterable[tuple[LaneId, BucketNo]]) -> defaultdict[LaneId, list[BucketNo]]:
    """Group buckets by their lanes."""
    grouped: defaultdict[LaneId, list[BucketNo]] = defaultdict(list)
    for lane_id, bucket in found:
        grouped[lane_id].append(bucket)
    return grouped
