"""Judges a history: what was promised, and what is to be seen. Pure.

Each rule is an upper bound of what a correct queue can show, so that no clock and no race makes a
correct one look wrong:

expired      A message was claimed after its time to live was over.
lost         A put that was said to be stored, or a row of a committed batch, and nobody ever acked
             it, nor tried to. At the end everything is drained, so who lost nothing has acked all.
resurrected  An ack was answered "acked" by one delivery, and there is a later delivery of the same
             message, or it is in the dead-letter queue too. By delivery counts, not by time. Or a
             message was cancelled, and is delivered.
two_leases   One delivery was handed to two holders; or the next delivery was in somebody's hands
             before the one before could have ended. A lease that a get begun at b took for n
             seconds lasts at least until b + n; what its holder extends, gives back or lets run
             out ends as he says, counted from when he began to say so.
batch        Of a sink's batch some rows are there and some are not, or one is there twice. Of a
             source's batch a later call of foreachBatch was given a row that the first was not, or
             another body under the same id; within one run, anything but the same rows.
unexpected   A message that nobody put; one that was refused, or stored twice; one that came before
             its delay was over.
order        With nothing else going on, a message came before one of a higher class.
tables       `cassieq_spark.repair.verify` has found something in the tables at the end.
stuck        What had to come to an end did not. Both are found by the runner, not here.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tests.storm.book import read, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.storm.book import Book, Handing, Place
    from tests.storm.history import Entry

KINDS = (
    "lost",
    "resurrected",
    "two_leases",
    "batch",
    "unexpected",
    "expired",
    "order",
    "tables",
    "stuck",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """One broken promise.

    Attributes:
        kind: One of `KINDS`.
    """

    kind: str
    what: str


def check(history: Iterable[Entry], *, dead_letters: str = "") -> list[Anomaly]:
    """Every broken promise in a whole history, in order of time; none: all is well.

    Args:
        dead_letters: The name of the queue to which repair moves the dead of the others.
    """
    book = read(history)
    return [
        *_lost(book),
        *_resurrected(book, dead_letters),
        *_cancelled(book),
        *_two_leases(book),
        *_sink_batches(book),
        *_source_batches(book),
        *_unexpected(book, dead_letters),
        *_expired(book, dead_letters),
        *_order(book),
    ]


def count(history: Iterable[Entry]) -> Counter[str]:
    """How much there was of what, for a line about it."""
    found: Counter[str] = Counter()
    batches: set[tuple[str, int]] = set()
    for entry in history:
        match entry["what"]:
            case "put":
                found["puts"] += len(entry["stored"])
                found["ambiguous"] += len(entry["unknown"])
            case "got":
                found["deliveries"] += len(entry["named"])
            case "cancelled":
                found["cancelled"] += entry["done"]
            case "acked":
                found["acks"] += entry["verdicts"].count("acked")
            case "rows":
                found["deliveries"] += len(entry["named"])
                batch = (entry["stream"], entry["batch"])
                found["source batches" if batch not in batches else "replays"] += 1
                batches.add(batch)
            case "committed":
                found["sink batches"] += len(entry["batches"])
                found["rows"] += len(entry["batches"]) * entry["rows"]
            case "failed":
                found["errors"] += 1
            case "unanswered":
                found["lost answers"] += 1
    return found


# --- the rules ------------------------------------------------------------------------------------


def _lost(book: Book) -> Iterator[Anomaly]:
    places = book.places()
    expired = {key for key, (early, _) in book.lives.items() if early < book.last}
    # Whoever is told that it was too late must see the message elsewhere.
    cancelled = {key for key, is_done in book.cancelled.items() if is_done is not False}
    for key in sorted(book.stored - book.ended - expired - cancelled):
        seen = sorted(places.get(key, set()))
        yield Anomaly(kind="lost", what=f"{key}: acknowledged, seen at {seen}, never acked")


def _expired(book: Book, dead_letters: str) -> Iterator[Anomaly]:
    """A get that began after the end. Dead letters live on, and so does a batch that is replayed:
    what it had leased before stays its own."""
    for (queue, message), counts in sorted(book.handed.items()):
        for number, handings in sorted(counts.items()):
            for one in handings:
                _, end = book.lives.get(one.key, (0.0, math.inf))
                is_batch = one.holder.startswith("batch ")
                lives_on = is_batch or book.redrives(one.returned) > 0
                if queue != dead_letters and not lives_on and one.begun > end:
                    yield Anomaly(
                        kind="expired",
                        what=f"{one.key} at {queue} {message}: over by {end:.3f}, delivery "
                        f"{number} was claimed after {one.begun:.3f}",
                    )


def _resurrected(book: Book, dead_letters: str) -> Iterator[Anomaly]:
    places = book.places()
    for (queue, message, count), acked_at in sorted(book.acked.items()):
        counts = book.handed.get((queue, message), {})
        later = [other for other in counts if other > count]
        for handing in book.handings((queue, message, count))[:1]:
            elsewhere = _seen_dead(book, places[handing.key], acked_at) & ({dead_letters} - {queue})
            if later or elsewhere:
                yield Anomaly(
                    kind="resurrected",
                    what=f"{handing.key}: ack of delivery {count} of {queue} {message} was "
                    f"answered at {acked_at:.3f}; also seen: deliveries {later}, {elsewhere or ''}",
                )
    yield from _settled_and_back(book)


def _seen_dead(book: Book, places: set[Place], acked_at: float) -> set[str]:
    """The queues of these places; after a redrive, only those where it was seen after that time."""
    if not book.redrives(acked_at):
        return {name for name, _ in places}
    return {
        place[0]
        for place in places
        if any(one.begun > acked_at for some in book.handed[place].values() for one in some)
    }


def _settled_and_back(book: Book) -> Iterator[Anomaly]:
    """What the source has acked; it may have lost the lease before, but to the next delivery.

    Or to one that was given back uncounted, as its claim was answered late: then the ack says so.
    """
    for stream, moments in book.settled.items():
        for (of, batch), calls in book.rows.items():
            seq = book.seqs[of, batch]
            settled_at = min((at for at, last in moments if last >= seq), default=None)
            if of != stream or settled_at is None:
                continue
            for place, (key, count) in calls[-1][1].items():
                after = book.handed[place].get(count + 1, [])
                is_back = after and min(handing.begun for handing in after) > settled_at
                if is_back and not book.was_late(stream, place):
                    yield Anomaly(
                        kind="resurrected",
                        what=f"{key}: batch {batch} of {stream} was acked by {settled_at:.3f} and "
                        f"{place} delivered for the time {count + 1} to {after[0].holder}",
                    )


def _cancelled(book: Book) -> Iterator[Anomaly]:
    places = book.places()
    for key in sorted(key for key, is_done in book.cancelled.items() if is_done):
        if places.get(key):
            what = f"{key}: cancelled, and delivered at {sorted(places[key])}"
            yield Anomaly(kind="resurrected", what=what)


def _two_leases(book: Book) -> Iterator[Anomaly]:
    for place, counts in sorted(book.handed.items()):
        for number, handings in sorted(counts.items()):
            holders = sorted({handing.holder for handing in handings})
            if len(holders) > 1:
                what = f"{handings[0].key} at {place}: delivery {number} went to {holders}"
                yield Anomaly(kind="two_leases", what=what)
        for (number, before), (following, after) in pairwise(sorted(counts.items())):
            free = max(handing.free for handing in before)
            had = min(handing.returned for handing in after)
            if had < free:
                yield Anomaly(
                    kind="two_leases",
                    what=f"{before[0].key} at {place}: delivery {number} is {before[0].holder}'s "
                    f"until {free:.3f}, {after[0].holder} had delivery {following} by {had:.3f}",
                )


def _sink_batches(book: Book) -> Iterator[Anomaly]:
    where = book.places()
    for sink, (committed, size) in book.committed.items():
        numbers = [int(key.removeprefix(f"{sink}:")) for key in where if key.startswith(f"{sink}:")]
        for batch in sorted(committed | {number // size for number in numbers}):
            seen = [where.get(key, set()) for key in rows_of(sink, batch, size)]
            missing = sum(not one for one in seen)
            if 0 < missing < size or (missing and batch in committed):
                what = f"{missing} of {size} rows of batch {batch} of {sink} are missing"
                yield Anomaly(kind="batch", what=what)
            queues = [Counter(queue for queue, _ in one) for one in seen]
            most = 1 + book.redrives()
            doubled = sum(max(one.values(), default=0) > most for one in queues)
            if doubled:
                what = f"{doubled} of {size} rows of batch {batch} of {sink} are there twice"
                yield Anomaly(kind="batch", what=what)


def _source_batches(book: Book) -> Iterator[Anomaly]:
    for (stream, batch), calls in book.rows.items():
        for (run, before), (next_run, after) in pairwise(calls):
            others = {place: row for place, row in after.items() if before.get(place) != row}
            if others or (run == next_run and len(before) != len(after)):
                yield Anomaly(
                    kind="batch",
                    what=f"batch {batch} of {stream}: run {next_run} has {len(after)} rows, of "
                    f"which {len(others)} are others than the {len(before)} of run {run}: "
                    f"{dict(list(others.items())[:3])}",
                )


def _unexpected(book: Book, dead_letters: str) -> Iterator[Anomaly]:
    for key, places in sorted(book.places().items()):
        sink, _, _ = key.partition(":")
        if key not in book.put and sink not in book.committed:
            yield Anomaly(kind="unexpected", what=f"{key}: nobody put it; seen at {sorted(places)}")
        if key in book.refused:
            what = f"{key}: its put was refused, but it is at {sorted(places)}"
            yield Anomaly(kind="unexpected", what=what)
        most = 1 + book.redrives()
        doubled = [name for name, n in Counter(name for name, _ in places).items() if n > most]
        if doubled and sink not in book.committed:
            yield Anomaly(kind="unexpected", what=f"{key}: stored twice, at {sorted(places)}")
        yield from _early_or_moved_back(book, key, places, dead_letters)


def _early_or_moved_back(
    book: Book, key: str, places: set[Place], dead_letters: str
) -> Iterator[Anomaly]:
    handings: dict[bool, list[Handing]] = defaultdict(list)
    for place in places:
        for some in book.handed[place].values():
            handings[place[0] == dead_letters] += some
    put_at, delay = book.put_at(key)
    is_far = book.is_far(key)  # at the end the runner's clock is ahead
    first = min(
        (
            handing.returned
            for some in handings.values()
            for handing in some
            if not (is_far and handing.holder.startswith("runner "))
        ),
        default=math.inf,
    )
    if delay and first < put_at + delay:
        what = f"{key}: put at {put_at:.3f} with a delay of {delay} s, delivered at {first:.3f}"
        yield Anomaly(kind="unexpected", what=what)
    if handings[True] and handings[False]:
        moved = min(handing.returned for handing in handings[True])
        last = max(handing.begun for handing in handings[False])
        if last > moved and not book.redrives(last):
            what = f"{key}: seen in {dead_letters} by {moved:.3f}, and delivered after {last:.3f}"
            yield Anomaly(kind="unexpected", what=what)


def _order(book: Book) -> Iterator[Anomaly]:
    for before, after in pairwise(book.in_order):
        if book.classes[before] < book.classes[after]:
            what = f"{before} of class {book.classes[before]} came before {after}, of a higher one"
            yield Anomaly(kind="order", what=what)


def told(anomalies: Iterable[Anomaly]) -> dict[str, int]:
    """How many of each kind, all kinds."""
    found = Counter(anomaly.kind for anomaly in anomalies)
    return {kind: found[kind] for kind in KINDS}


def as_lines(anomalies: Iterable[Anomaly]) -> list[dict[str, Any]]:
    """For a file beside the history."""
    return [{"kind": anomaly.kind, "what": anomaly.what} for anomaly in anomalies]
