"""Check the rules that every bucket row must keep, whoever wrote it (docs/invariants.md). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from cassieq_spark.model.bucket import FINISHED, Bucket
from cassieq_spark.model.ids import EMPTY, Runs

BEYOND_BUCKET = "manifest_beyond_bucket"

MEETING_NAMED = 64
"""The most places with common messages that are compared with each other and named."""

TWO_STATES = "message_in_two_states"
NO_MANIFEST = "message_in_no_manifest"
FINISHED_WITH_MESSAGES = "finished_with_messages"


def broken(row: Bucket) -> Iterator[tuple[str, str]]:
    """Yield (kind, description) of every rule that this row breaks by itself."""
    places = list(_places(row))
    for (one, its), (other, theirs) in combinations(_meeting(places), 2):
        if both := its & theirs:
            yield (
                TWO_STATES,
                f"{both.count} messages are {one} and {other}, first offset {both.first}",
            )
    for place, runs in places:
        if outside := runs - row.manifest:
            yield (
                NO_MANIFEST,
                f"{outside.count} messages that are {place} are not in its manifest, first offset "
                f"{outside.first}",
            )
    if row.status in FINISHED and row.unacked:
        yield FINISHED_WITH_MESSAGES, f"it is {row.status} and still holds {row.unacked.count}"


def beyond(row: Bucket, *, bucket_size: int) -> str | None:
    """Describe the offsets that a manifest names beyond its bucket: the next bucket's (I6) [T1]."""
    outside = row.manifest - row.manifest.below(bucket_size)
    if not outside:
        return None
    return (
        f"{outside.count} messages have offsets of {bucket_size} and more, up to {outside.last}: "
        "their ids are those of the next bucket, and nobody can ack them. Redrive the visible "
        "messages of the queue to another one"
    )


def stored_twice(spans: Iterable[Runs]) -> Runs:
    """Return the offsets that are in more than one stored row of a bucket."""
    seen = twice = EMPTY
    for span in spans:
        twice |= seen & span
        seen |= span
    return twice


def _meeting(places: list[tuple[str, Runs]]) -> list[tuple[str, Runs]]:
    """Return the first few places that share messages with another: a row may have 100,000 [T2]."""
    runs = sorted(
        (first, last, number)
        for number, (_, of_place) in enumerate(places)
        for first, last in of_place.pairs
    )
    meeting: set[int] = set()
    furthest, whose = -1, -1
    for first, last, number in runs:
        if first <= furthest:
            meeting |= {whose, number}
        if last > furthest:
            furthest, whose = last, number
    return [places[number] for number in sorted(meeting)[:MEETING_NAMED]]


def _places(row: Bucket) -> Iterator[tuple[str, Runs]]:
    """Yield each place of messages, with its messages; places must not overlap (I2, I4)."""
    yield "free", row.fresh
    for returned in row.returned:
        yield f"free after {returned.deliveries} deliveries", returned.runs
    for group in row.delayed:
        yield f"delayed to {group.due_us}", group.runs
    for lease in row.leases:
        yield f"leased as {lease.lease_id} to {lease.owner}", lease.runs
    for part in row.dead:
        yield f"dead in set {part.set_id}", part.runs
