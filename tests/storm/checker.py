"""Judges a history: what was promised, and what is to be seen. Pure.

Each rule is an upper bound of what a correct queue can show, so that no clock and no race makes a
correct one look wrong:

lost         A put that was said to be stored, or a row of a committed batch, and nobody ever acked
             it, nor tried to. At the end everything is drained, so who lost nothing has acked all.
resurrected  An ack was answered "acked" by one delivery, and there is a later delivery of the same
             message, or it is in the dead-letter queue too. By delivery counts, not by time.
two_leases   One delivery was handed to two holders; or the next delivery was in somebody's hands
             before the one before could have ended. A lease that a get begun at b took for n
             seconds lasts at least until b + n; what its holder extends, gives back or lets run
             out ends as he says, counted from when he began to say so.
batch        Of a sink's batch some rows are there and some are not, or one is there twice. Of a
             source's batch a later call of foreachBatch was given a row that the first was not, or
             another body under the same id; within one run, anything but the same rows.
unexpected   A message that nobody put; one that was refused, or stored twice; one that came before
             its delay was over.
tables       `cassieq_spark.repair.verify` has found something in the tables at the end.
stuck        What had to come to an end did not. Both are found by the runner, not here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.storm.history import Entry

KINDS = ("lost", "resurrected", "two_leases", "batch", "unexpected", "tables", "stuck")

Place = tuple[str, int]
"""Queue and id: where a message is."""

Delivery = tuple[str, int, int]
"""Queue, id and delivery count."""

ALL = -1.0
"""``hold`` of a delivery that is given back: from then on anybody may have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """One broken promise.

    Attributes:
        kind: One of `KINDS`.
    """

    kind: str
    what: str


@dataclass(slots=True)
class Handing:
    """One delivery in one holder's hands.

    Attributes:
        begun: It was claimed after this moment, and before ``returned``.
        free: Nobody else may have had it before.
    """

    key: str
    holder: str
    begun: float
    returned: float
    free: float


@dataclass(slots=True)
class _Book:
    """The history, by what the rules ask for."""

    begun: dict[str, Entry] = field(default_factory=dict)
    put: dict[str, tuple[float, float]] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    handed: dict[Place, dict[int, list[Handing]]] = field(default_factory=dict)
    acked: dict[Delivery, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    rows: dict[tuple[str, int], list[tuple[str, dict[Place, tuple[str, int]]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    seqs: dict[tuple[str, int], int] = field(default_factory=dict)
    done: set[tuple[str, int, str]] = field(default_factory=set)
    leased: dict[tuple[str, int], list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    settled: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    committed: dict[str, tuple[set[int], int]] = field(default_factory=dict)

    def handings(self, delivery: Delivery) -> list[Handing]:
        queue, message, count = delivery
        return self.handed.get((queue, message), {}).get(count, [])

    def places(self) -> dict[str, set[Place]]:
        """Where each message was seen."""
        found: dict[str, set[Place]] = defaultdict(set)
        for place, counts in self.handed.items():
            for handings in counts.values():
                for handing in handings:
                    found[handing.key].add(place)
        return found


def check(history: Iterable[Entry], *, dead_letters: str = "") -> list[Anomaly]:
    """Every broken promise in a whole history, in order of time; none: all is well.

    Args:
        dead_letters: The name of the queue to which repair moves the dead of the others.
    """
    book = _Book()
    for entry in history:
        if entry["what"] in _ENTER:
            _ENTER[entry["what"]](book, entry)
    for op in book.begun.values():
        _unanswered(book, op)
    _enter_batches(book)
    return [
        *_lost(book),
        *_resurrected(book, dead_letters),
        *_two_leases(book),
        *_sink_batches(book),
        *_source_batches(book),
        *_unexpected(book, dead_letters),
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


# --- reading it -----------------------------------------------------------------------------------


def _puts(book: _Book, entry: Entry) -> None:
    book.begun[entry["op"]] = entry
    book.put.update(dict.fromkeys(entry["keys"], (entry["at"], entry["delay"])))


def _put(book: _Book, entry: Entry) -> None:
    named = set(book.begun.pop(entry["op"])["keys"])
    book.stored |= set(entry["stored"])
    book.refused |= named - set(entry["stored"]) - set(entry["unknown"])


def _got(book: _Book, entry: Entry) -> None:
    _hand(book, entry, entry["begun"], entry["begun"] + entry["hold"])


def _begun(book: _Book, entry: Entry) -> None:
    book.begun[entry["op"]] = entry


def _acked(book: _Book, entry: Entry) -> None:
    op = book.begun.pop(entry["op"])
    for delivery, verdict in zip(_deliveries(op), entry["verdicts"], strict=True):
        if verdict == "acked":
            book.acked[delivery] = entry["at"]
        if verdict in ("acked", "unknown"):
            _end(book, delivery)


def _extended(book: _Book, entry: Entry) -> None:
    op = book.begun.pop(entry["op"])
    _free_at(book, op, op["at"] + op["hold"], is_sure=True)


def _gives(book: _Book, entry: Entry) -> None:
    _free_at(book, entry, entry["at"], is_sure=False)


def _leased(book: _Book, entry: Entry) -> None:
    times = (entry["begun"], entry["begun"] + entry["hold"])
    book.leased[entry["stream"], entry["seq"]].append(times)


def _rows(book: _Book, entry: Entry) -> None:
    """A batch of the source is one holder, in whichever run; its lease is that of the claim."""
    stream, batch, seq = entry["stream"], entry["batch"], entry["seq"]
    times = [times for times in book.leased[stream, seq] if times[0] <= entry["at"]]
    begun, free = times[-1] if times else (entry["at"], entry["at"])
    _hand(book, entry, begun, free, holder=f"batch {batch} of {stream}")
    rows = {(entry["queue"], message): (key, count) for key, message, count in entry["named"]}
    book.rows[stream, batch].append((entry["run"], rows))
    book.seqs[stream, batch] = seq


def _done(book: _Book, entry: Entry) -> None:
    book.done.add((entry["stream"], entry["batch"], entry["run"]))


def _settled(book: _Book, entry: Entry) -> None:
    book.settled[entry["stream"]].append((entry["at"], entry["seq"]))


def _committed(book: _Book, entry: Entry) -> None:
    book.committed[entry["sink"]] = (set(entry["batches"]), entry["rows"])


_ENTER: dict[str, Callable[[_Book, Entry], None]] = {
    "puts": _puts,
    "put": _put,
    "got": _got,
    "acks": _begun,
    "acked": _acked,
    "extends": _begun,
    "extended": _extended,
    "gives": _gives,
    "leased": _leased,
    "rows": _rows,
    "done": _done,
    "settled": _settled,
    "committed": _committed,
}


def _unanswered(book: _Book, op: Entry) -> None:
    """An operation without an end may have happened, and ended a lease sooner than it was."""
    match op["what"]:
        case "acks":
            for delivery in _deliveries(op):
                _end(book, delivery)
        case "extends":
            _free_at(book, op, op["at"] + op["hold"], is_sure=False)


def _deliveries(entry: Entry) -> list[Delivery]:
    return [(entry["queue"], message, count) for _, message, count in entry["named"]]


def _hand(book: _Book, entry: Entry, begun: float, free: float, holder: str = "") -> None:
    for key, message, count in entry["named"]:
        counts = book.handed.setdefault((entry["queue"], message), {})
        counts.setdefault(count, []).append(
            Handing(
                key=key,
                holder=holder or f"{entry['who']} at {entry['at']:.3f}",
                begun=begun,
                returned=entry["at"],
                free=free,
            )
        )


def _free_at(book: _Book, entry: Entry, at: float, *, is_sure: bool) -> None:
    """The holder has said when it ends; unless it is sure that he was heard, only sooner."""
    for delivery in _deliveries(entry):
        for handing in book.handings(delivery):
            handing.free = at if is_sure else min(handing.free, at)


def _end(book: _Book, delivery: Delivery) -> None:
    book.ended |= {handing.key for handing in book.handings(delivery)}


def _enter_batches(book: _Book) -> None:
    """Rows of a call that returned are acked some time; rows of committed batches are stored."""
    for (stream, batch), calls in book.rows.items():
        for run, rows in calls:
            if (stream, batch, run) in book.done:
                book.ended |= {key for key, _ in rows.values()}
    for sink, (batches, size) in book.committed.items():
        for batch in batches:
            book.stored |= set(_rows_of(sink, batch, size))


def _rows_of(sink: str, batch: int, size: int) -> list[str]:
    return [row_key(sink, number) for number in range(batch * size, (batch + 1) * size)]


def row_key(sink: str, number: int) -> str:
    """What a sink's row is called: sinks number their rows through."""
    return f"{sink}:{number}"


# --- the rules ------------------------------------------------------------------------------------


def _lost(book: _Book) -> Iterator[Anomaly]:
    places = book.places()
    for key in sorted(book.stored - book.ended):
        seen = sorted(places.get(key, set()))
        yield Anomaly(kind="lost", what=f"{key}: acknowledged, seen at {seen}, never acked")


def _resurrected(book: _Book, dead_letters: str) -> Iterator[Anomaly]:
    places = book.places()
    for (queue, message, count), acked_at in sorted(book.acked.items()):
        counts = book.handed.get((queue, message), {})
        later = [other for other in counts if other > count]
        for handing in book.handings((queue, message, count))[:1]:
            elsewhere = {name for name, _ in places[handing.key]} & ({dead_letters} - {queue})
            if later or elsewhere:
                yield Anomaly(
                    kind="resurrected",
                    what=f"{handing.key}: ack of delivery {count} of {queue} {message} was "
                    f"answered at {acked_at:.3f}; also seen: deliveries {later}, {elsewhere or ''}",
                )
    yield from _settled_and_back(book)


def _settled_and_back(book: _Book) -> Iterator[Anomaly]:
    """What the source has acked; it may have lost the lease before, but to the next delivery."""
    for stream, moments in book.settled.items():
        for (of, batch), calls in book.rows.items():
            seq = book.seqs[of, batch]
            settled_at = min((at for at, last in moments if last >= seq), default=None)
            if of != stream or settled_at is None:
                continue
            for place, (key, count) in calls[-1][1].items():
                after = book.handed[place].get(count + 1, [])
                if after and min(handing.begun for handing in after) > settled_at:
                    yield Anomaly(
                        kind="resurrected",
                        what=f"{key}: batch {batch} of {stream} was acked by {settled_at:.3f} and "
                        f"{place} delivered for the time {count + 1} to {after[0].holder}",
                    )


def _two_leases(book: _Book) -> Iterator[Anomaly]:
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


def _sink_batches(book: _Book) -> Iterator[Anomaly]:
    where = book.places()
    for sink, (committed, size) in book.committed.items():
        numbers = [int(key.removeprefix(f"{sink}:")) for key in where if key.startswith(f"{sink}:")]
        for batch in sorted(committed | {number // size for number in numbers}):
            seen = [where.get(key, set()) for key in _rows_of(sink, batch, size)]
            missing = sum(not one for one in seen)
            if 0 < missing < size or (missing and batch in committed):
                what = f"{missing} of {size} rows of batch {batch} of {sink} are missing"
                yield Anomaly(kind="batch", what=what)
            queues = [Counter(queue for queue, _ in one) for one in seen]
            doubled = sum(max(one.values(), default=0) > 1 for one in queues)
            if doubled:
                what = f"{doubled} of {size} rows of batch {batch} of {sink} are there twice"
                yield Anomaly(kind="batch", what=what)


def _source_batches(book: _Book) -> Iterator[Anomaly]:
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


def _unexpected(book: _Book, dead_letters: str) -> Iterator[Anomaly]:
    for key, places in sorted(book.places().items()):
        sink, _, _ = key.partition(":")
        if key not in book.put and sink not in book.committed:
            yield Anomaly(kind="unexpected", what=f"{key}: nobody put it; seen at {sorted(places)}")
        if key in book.refused:
            what = f"{key}: its put was refused, but it is at {sorted(places)}"
            yield Anomaly(kind="unexpected", what=what)
        doubled = [name for name, n in Counter(name for name, _ in places).items() if n > 1]
        if doubled and sink not in book.committed:
            yield Anomaly(kind="unexpected", what=f"{key}: stored twice, at {sorted(places)}")
        yield from _early_or_moved_back(book, key, places, dead_letters)


def _early_or_moved_back(
    book: _Book, key: str, places: set[Place], dead_letters: str
) -> Iterator[Anomaly]:
    handings: dict[bool, list[Handing]] = defaultdict(list)
    for place in places:
        for some in book.handed[place].values():
            handings[place[0] == dead_letters] += some
    put_at, delay = book.put.get(key, (0.0, 0.0))
    first = min(handing.returned for some in handings.values() for handing in some)
    if delay and first < put_at + delay:
        what = f"{key}: put at {put_at:.3f} with a delay of {delay} s, delivered at {first:.3f}"
        yield Anomaly(kind="unexpected", what=what)
    if handings[True] and handings[False]:
        moved = min(handing.returned for handing in handings[True])
        last = max(handing.begun for handing in handings[False])
        if last > moved:
            what = f"{key}: seen in {dead_letters} by {moved:.3f}, and delivered after {last:.3f}"
            yield Anomaly(kind="unexpected", what=what)


def told(anomalies: Iterable[Anomaly]) -> dict[str, int]:
    """How many of each kind, all kinds."""
    found = Counter(anomaly.kind for anomaly in anomalies)
    return {kind: found[kind] for kind in KINDS}


def as_lines(anomalies: Iterable[Anomaly]) -> list[dict[str, Any]]:
    """For a file beside the history."""
    return [{"kind": anomaly.kind, "what": anomaly.what} for anomaly in anomalies]
