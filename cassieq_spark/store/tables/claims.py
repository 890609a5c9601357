"""Column ``claims`` of table ``bucket`` holds what changes with every claim, as bytes (ADR 19).

It is a map, so that a later release may add to it. Words and ids that many entries share are stored
once, and entries refer to them by number: `model.row_limits` has the most bytes of an entry [T2].
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from operator import sub
from typing import Any, Final
from uuid import UUID

import msgpack

from cassieq_spark.model.bucket import Bucket, Lease, Returned
from cassieq_spark.model.dead import DeadSet
from cassieq_spark.model.expiry import MINUTE_US, Delayed, Expiring
from cassieq_spark.model.ids import EMPTY, QueueName, Runs

CORRUPT = (ValueError, TypeError, LookupError, AttributeError, struct.error)
"""The errors that `decode` may raise for bytes that `encode` did not write."""


def encode(row: Bucket) -> bytes:
    """Encode all of a row that has no column of its own."""
    claims: dict[str, Any] = {
        name: encode_one(value)
        for name, field, encode_one, _ in _PARTS
        if (value := getattr(row, field))
    }
    if deaths := _encode_deaths(row.dead):
        claims["deaths"] = deaths
    if row.expires_us is not None:
        claims["expires"] = row.expires_us
    return bytes(msgpack.packb(claims))


def decode(encoded: bytes) -> dict[str, Any]:
    """Decode the fields of a `Bucket` that `encode` wrote; empty fields are left out.

    Raises:
        RowCorrupt: A set of ids cannot be read.
        ValueError, TypeError, KeyError, IndexError, struct.error: The bytes are not from `encode`.
    """
    claims = msgpack.unpackb(encoded)
    if "deaths" in claims:
        claims["dead"].append(claims["deaths"])
    return {
        field: decode_one(claims[name]) for name, field, _, decode_one in _PARTS if name in claims
    }


def encode_leases(leases: tuple[Lease, ...]) -> list[Any]:
    """Store holders once, and ends as differences to the first."""
    numbers: dict[tuple[str, UUID | None], int] = {}
    base_us = leases[0].until_us
    entries = []
    for lease in leases:
        number = numbers.setdefault((lease.owner, lease.run), len(numbers))
        entries.append(
            [
                lease.lease_id.bytes,
                number,
                lease.delivery_count,
                lease.runs.encode(),
                lease.until_us - base_us,
            ]
        )
    holders = [[owner] if run is None else [owner, run.bytes] for owner, run in numbers]
    return [base_us, holders, entries]


def decode_leases(encoded: Any) -> tuple[Lease, ...]:
    """Read what `encode_leases` wrote."""
    base_us, names, entries = encoded
    holders = [(owner, UUID(bytes=run[0]) if run else None) for owner, *run in names]
    leases = []
    for lease_id, number, count, runs, ends in entries:
        owner, run = holders[number]
        leases.append(
            Lease(
                lease_id=UUID(bytes=lease_id),
                owner=owner,
                run=run,
                delivery_count=count,
                runs=Runs.decode(runs),
                until_us=base_us + ends,
            )
        )
    return tuple(leases)


def encode_dead(dead: tuple[DeadSet, ...]) -> list[Any]:
    """Store sets and reasons once; most sets have no target of their own."""
    sets: dict[UUID, int] = {}
    heads: list[list[Any]] = []
    reasons: dict[str, int] = {}
    entries = []
    for part in dead:
        number = sets.setdefault(part.set_id, len(heads))
        if number == len(heads):
            heads.append(_head(part))
        reason = reasons.setdefault(part.reason, len(reasons))
        entries.append([number, reason, part.deliveries, part.died_us, part.runs.encode()])
    return [heads, list(reasons), entries]


def decode_dead(encoded: Any) -> tuple[DeadSet, ...]:
    """Read what `encode_dead` wrote."""
    sets, reasons, entries, *deaths = encoded
    heads = [
        (UUID(bytes=set_id), is_open, QueueName(target[0]) if target else None)
        for set_id, is_open, *target in sets
    ]
    dead = []
    for number, reason, deliveries, died_us, runs in entries:
        set_id, is_open, target = heads[number]
        dead.append(
            DeadSet(
                set_id=set_id,
                runs=Runs.decode(runs),
                deliveries=deliveries,
                died_us=died_us,
                reason=reasons[reason],
                target=target,
                is_open=is_open,
            )
        )
    for at, times in deaths[0] if deaths else ():
        dead[at] = replace(dead[at], earlier=_decode_times(dead[at].died_us, times))
    return tuple(dead)


def _encode_deaths(dead: tuple[DeadSet, ...]) -> list[Any]:
    """Encode the times of single messages, beside the sets: older releases do not look there."""
    return [[at, _encode_times(part)] for at, part in enumerate(dead) if part.earlier]


def _encode_times(part: DeadSet) -> list[Any]:
    """Store times as steps back from the last one, which is stored with its set."""
    encoded: list[Any] = []
    after_us = part.died_us
    for us, runs in reversed(part.earlier):
        encoded += [after_us - us, runs.encode()]
        after_us = us
    return encoded


def _decode_times(died_us: int, encoded: list[Any]) -> tuple[tuple[int, Runs], ...]:
    times = accumulate(encoded[::2], sub, initial=died_us)
    next(times)  # the last time itself
    runs = map(Runs.decode, encoded[1::2])
    return tuple(reversed(list(zip(times, runs, strict=True))))


def _head(part: DeadSet) -> list[Any]:
    head = [part.set_id.bytes, part.is_open]
    return head if part.target is None else [*head, part.target]


def _encode_delayed(groups: tuple[Delayed, ...]) -> list[Any]:
    """Store due times as differences: 2,000 groups take about 10 KB instead of 30 [R7]."""
    encoded: list[Any] = []
    before = 0
    for group in groups:
        entry = [group.due_us - before, group.runs.encode()]
        # Nearly all were put with a delay, so they have 0 deliveries, which are left out.
        encoded.append([*entry, group.deliveries] if group.deliveries else entry)
        before = group.due_us
    return encoded


def _encode_returned(parts: tuple[Returned, ...]) -> list[Any]:
    return [[part.deliveries, part.runs.encode()] for part in parts]


def _decode_returned(encoded: Any) -> tuple[Returned, ...]:
    return tuple(
        Returned(deliveries=deliveries, runs=Runs.decode(runs)) for deliveries, runs in encoded
    )


def _decode_delayed(encoded: Any) -> tuple[Delayed, ...]:
    times = accumulate(step for step, *_ in encoded)
    return tuple(
        Delayed(due_us=due_us, runs=Runs.decode(runs), deliveries=sum(deliveries))
        for due_us, (_, runs, *deliveries) in zip(times, encoded, strict=True)
    )


def _encode_expiring(groups: tuple[Expiring, ...]) -> list[Any]:
    """Store times as differences in whole minutes, since all are whole minutes."""
    minutes = [group.expires_us // MINUTE_US for group in groups]
    return [
        [minute - before, group.runs.encode()]
        for minute, before, group in zip(minutes, [0, *minutes], groups, strict=False)
    ]


def _decode_expiring(encoded: Any) -> tuple[Expiring, ...]:
    minutes = accumulate(step for step, _ in encoded)
    return tuple(
        Expiring(expires_us=minute * MINUTE_US, runs=Runs.decode(runs))
        for minute, (_, runs) in zip(minutes, encoded, strict=True)
    )


def _encode_revisions(revisions: tuple[tuple[int, int], ...]) -> list[bytes]:
    """Store offsets as a set, then the revisions, 63 random bits each, one after the other."""
    offsets = Runs.from_offsets(offset for offset, _ in revisions)
    return [
        offsets.encode(),
        struct.pack(f"<{len(revisions)}q", *(revision for _, revision in revisions)),
    ]


def _decode_revisions(encoded: Any) -> tuple[tuple[int, int], ...]:
    offsets, numbers = encoded
    runs = Runs.decode(offsets) if offsets else EMPTY
    return tuple(zip(runs.offsets(), struct.unpack(f"<{len(numbers) // 8}q", numbers), strict=True))


_PARTS: Final[tuple[tuple[str, str, Callable[[Any], Any], Callable[[Any], Any]], ...]] = (
    ("fresh", "fresh", Runs.encode, Runs.decode),
    ("purged", "purged", Runs.encode, Runs.decode),
    ("cancelled", "cancelled", Runs.encode, Runs.decode),
    ("returned", "returned", _encode_returned, _decode_returned),
    ("delayed", "delayed", _encode_delayed, _decode_delayed),
    ("leases", "leases", encode_leases, decode_leases),
    ("dead", "dead", encode_dead, decode_dead),
    ("revisions", "revisions", _encode_revisions, _decode_revisions),
    ("expiring", "expiring", _encode_expiring, _decode_expiring),
    ("expires", "expires_us", int, int),
    ("keys", "has_keys", bool, bool),
)
"""The parts of the map: its name there, the field of a `Bucket`, and how both become each other.
A part that is empty is left out."""
