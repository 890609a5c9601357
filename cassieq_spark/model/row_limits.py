"""Limit every part of a bucket row, and so the whole row (ADR 19) [T2].

A row is written whole by every CAS, so its size must have a bound that no use of the API passes,
and no move may be refused for it: then nothing can stop a queue. There are two kinds of parts.

*What grows with messages.* A message is in one place at a time, and every entry holds one at least:

| part | bytes for a message at most | because |
|---|---|---|
| manifest, fresh, purged, cancelled | 1/8 | `Runs.encode`: runs, or a bitmap if smaller |
| returned | 15 | an entry has a delivery count and a set of runs |
| delayed | 24 | the same with a due time; steps are widened above 4,096 groups [R7] |
| leases | 74 | an entry has an id, an end, a holder (run id, owner), a count, runs |
| dead | 35 | an entry has a set, a reason, a time, a count, runs; or it has a time and runs |
| revisions | 9 | beside its place: offsets as a set, 8 bytes for each number |

*What does not.* These have limits of their own, below: words that programs choose, closed dead
sets, tags of clients, and times to live, whose steps a seal widens [U8]. Above a limit,
words are replaced by one, and sets wait.

So a row has at most `limit_of` bytes: 9 MB with the largest buckets, if each message was claimed
and updated alone, each by a Spark run of its own. Cassandra takes mutations up to 16 MiB. An
ordinary row has less than `PREFERRED_BYTES`; claimers leave larger ones to the last, and scan on
after one with `CROWDED_LEASES`.
"""

from __future__ import annotations

from typing import Final

from cassieq_spark.model.expiry import GROUPS_BYTES

PREFERRED_BYTES: Final = 8 * 1024
PREFERRED_LEASES: Final = 64
"""The limits of a preferred row. Above either, a claimer prefers another bucket that it has seen;
above this one, a claim merges leases that ran out [R6]."""

CROWDED_LEASES: Final = 2_048
"""The live leases from which on a scan goes on after a bucket, though it may be claimed from:
each of its CASes costs as much as all of them [R6] [T11]."""

LEASES_PER_CLAIM: Final = 64
"""The most leases that one claim makes, one per delivery count, so that an offset stays small."""

RUNS_PER_LEASE: Final = 64
"""The most separate runs that a claim of a Spark query takes into one lease, so that an offset that
names them stays small; and the most in a lease that several callers share."""

OWNERS_BYTES: Final = 64 * 1024
"""The most bytes of the names of all holders of leases of one bucket. Further holders are called
`FURTHER_OWNERS`: names are for people, and a lease has an id."""

FURTHER_OWNERS: Final = "(others)"

REASONS_BYTES: Final = 256 * 1024
"""The most bytes of the reasons of all dead messages of one bucket, until repair has moved them.
Further reasons become `FURTHER_REASONS`."""

FURTHER_REASONS: Final = (
    "rejected (too many different reasons in one bucket: this one was not kept)"
)

CLOSED_SETS: Final = 16
"""The most closed dead sets for the dead-letter queue, which movers may have. The next set is
closed when one is gone, and takes in messages that die until then [R14] [T2]."""

REDRIVEN_SETS: Final = 64
"""The most dead sets with a target of their own. At this number, a redrive waits [R6]."""

TIMES_OF_DEATH: Final = 1_024
"""The most times of death in one open set. With more, times are rounded up by a small share of
the time that all of them took: a row of single rejects stays small [T2]."""

BYTES_PER_MESSAGE: Final = 84
"""The bytes of a message's place and its revision: the sum above, rounded up."""

BYTES_BESIDE: Final = OWNERS_BYTES + REASONS_BYTES + GROUPS_BYTES + 128 * 1024
"""The bytes that do not grow with messages: words, times to live, heads of sets, status columns."""


def limit_of(bucket_size: int) -> int:
    """The most bytes of a row of a bucket with this many ids."""
    return BYTES_BESIDE + bucket_size * BYTES_PER_MESSAGE
