"""A history in the order in which the rules ask for it. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.storm.history import BUCKET_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.storm.history import Entry

Place = tuple[str, str]
"""Queue and id: where a message is."""

Delivery = tuple[str, int, int]
"""Queue, id and delivery count."""


EXPIRES_WITHIN_S: Final = 75.0
"""A message expires so long after its time at the latest: it ends with a whole minute, a due time
with a whole second, and the clocks of the nodes are wrong by some seconds."""

DUE_LATER_S: Final = 60.0
"""And one minute more if it was delayed: its due time is rounded up, and it lives as long from
there, but only its whole minute is known by then."""


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
class Book:
    """The history, by what the rules ask for.

    Attributes:
        lives: When a message with a time to live may expire at the earliest, and must have at the
            latest.
        last: The last moment of the history.
        far: Put into a due lane: at the end the runner's clock is set ahead to see them.
        scheduling: Since when a sink's rows are due later, by how much, and one of how many.
        classes: Of messages that were put, and got, with nothing else going on.
        in_order: Those, as they were got.
        cancelled: What a cancel of these was answered; None: nothing.
        redriven: When redrives of dead letters began.
    """

    begun: dict[str, Entry] = field(default_factory=dict)
    put: dict[str, tuple[float, float]] = field(default_factory=dict)
    lives: dict[str, tuple[float, float]] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    last: float = 0.0
    refused: set[str] = field(default_factory=set)
    handed: dict[Place, dict[int, list[Handing]]] = field(default_factory=dict)
    acked: dict[Delivery, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    rows: dict[tuple[str, int], list[tuple[str, dict[Place, tuple[str, int]]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    seqs: dict[tuple[str, int], int] = field(default_factory=dict)
    done: set[tuple[str, int, str]] = field(default_factory=set)
    leased: dict[tuple[str, int, str | None], list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    settled: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    far: set[str] = field(default_factory=set)
    scheduling: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)
    in_order: list[str] = field(default_factory=list)
    cancelled: dict[str, bool | None] = field(default_factory=dict)
    late: list[tuple[tuple[str, str, str | None], range]] = field(default_factory=list)
    committed: dict[str, tuple[set[int], int]] = field(default_factory=dict)
    redriven: list[float] = field(default_factory=list)

    def handings(self, delivery: Delivery) -> list[Handing]:
        queue, message, count = delivery
        return self.handed.get((queue, message), {}).get(count, [])

    def redrives(self, before: float = math.inf) -> int:
        """How many redrives had begun: each may have brought a dead letter back."""
        return sum(at <= before for at in self.redriven)

    def was_late(self, stream: str, place: Place) -> bool:
        """Whether an ack of this stream found that it had lost a lease in the message's bucket."""
        queue, message = place
        lane, _, number = str(message).rpartition(":")
        return any(
            int(number) in ids and late in {(stream, queue, lane), (stream, queue, None)}
            for late, ids in self.late
        )

    def put_at(self, key: str) -> tuple[float, float]:
        """When a message was put at the earliest, and with which delay."""
        sink, _, number = key.partition(":")
        if sink in self.scheduling and number:
            since, delay, each = self.scheduling[sink]
            return since, 0.0 if int(number) % each else delay
        return self.put.get(key, (0.0, 0.0))

    def is_far(self, key: str) -> bool:
        """Whether it waited in a due lane: at the end the runner's clock is ahead."""
        return key in self.far or (key not in self.put and self.put_at(key)[1] > 0)

    def places(self) -> dict[str, set[Place]]:
        """Where each message was seen."""
        found: dict[str, set[Place]] = defaultdict(set)
        for place, counts in self.handed.items():
            for handings in counts.values():
                for handing in handings:
                    found[handing.key].add(place)
        return found


def read(history: Iterable[Entry]) -> Book:
    """All of it, in order of time."""
    book = Book()
    for entry in history:
        book.last = entry["at"]
        if entry["what"] in _ENTER:
            _ENTER[entry["what"]](book, entry)
    for op in book.begun.values():
        _unanswered(book, op)
    _enter_batches(book)
    return book


def _puts(book: Book, entry: Entry) -> None:
    book.begun[entry["op"]] = entry
    book.put.update(dict.fromkeys(entry["keys"], (entry["at"], entry["delay"])))
    if entry.get("far"):
        book.far.update(entry["keys"])
    lasts = [entry[name] for name in ("ttl", "kept") if entry.get(name) is not None]
    if lasts:  # what a queue keeps for a time may live as long as others of its bucket
        end = entry["at"] + entry["delay"] + min(lasts)
        book.lives.update(dict.fromkeys(entry["keys"], (end, math.inf)))


def _put(book: Book, entry: Entry) -> None:
    begun = book.begun.pop(entry["op"])
    named = set(begun["keys"])
    if begun.get("ttl") is not None:
        late = entry["at"] + begun["delay"] + begun["ttl"] + EXPIRES_WITHIN_S
        late += DUE_LATER_S if begun["delay"] else 0.0
        for key in named:
            book.lives[key] = (book.lives[key][0], late)
    book.stored |= set(entry["stored"])
    if not begun.get("shared"):  # whose put was refused, another's may have been stored
        book.refused |= named - set(entry["stored"]) - set(entry["unknown"])


def _got(book: Book, entry: Entry) -> None:
    _hand(book, entry, entry["begun"], entry["begun"] + entry["hold"])


def _scheduling(book: Book, entry: Entry) -> None:
    book.scheduling.setdefault(entry["sink"], (entry["at"], entry["delay"], entry["each"]))


def _calm(book: Book, entry: Entry) -> None:
    book.classes.update(entry["classes"])
    # What was late lands at any time.
    book.in_order += [key for key in entry["got"] if key in entry["classes"]]


def _begun(book: Book, entry: Entry) -> None:
    book.begun[entry["op"]] = entry


def _acked(book: Book, entry: Entry) -> None:
    op = book.begun.pop(entry["op"])
    for delivery, verdict in zip(_deliveries(op), entry["verdicts"], strict=True):
        if verdict == "acked":
            book.acked[delivery] = entry["at"]
        if verdict in ("acked", "unknown"):
            _end(book, delivery)


def _extended(book: Book, entry: Entry) -> None:
    op = book.begun.pop(entry["op"])
    _free_at(book, op, op["at"] + op["hold"], is_sure=True)


def _gives(book: Book, entry: Entry) -> None:
    _free_at(book, entry, entry["at"], is_sure=False)


def _leased(book: Book, entry: Entry) -> None:
    times = (entry["begun"], entry["begun"] + entry["hold"])
    book.leased[entry["stream"], entry["seq"], entry.get("run")].append(times)


def _rows(book: Book, entry: Entry) -> None:
    """A batch of the source is one holder, in whichever run; its lease is that of the claim."""
    stream, batch, seq = entry["stream"], entry["batch"], entry["seq"]
    leased = book.leased[stream, seq, entry["run"]] or book.leased[stream, seq, None]
    times = [times for times in leased if times[0] <= entry["at"]]
    begun, free = times[-1] if times else (entry["at"], entry["at"])
    _hand(book, entry, begun, free, holder=f"batch {batch} of {stream}")
    rows = {(entry["queue"], message): (key, count) for key, message, count in entry["named"]}
    book.rows[stream, batch].append((entry["run"], rows))
    book.seqs[stream, batch] = seq


def _done(book: Book, entry: Entry) -> None:
    book.done.add((entry["stream"], entry["batch"], entry["run"]))


def _settled(book: Book, entry: Entry) -> None:
    book.settled[entry["stream"]].append((entry["at"], entry["seq"]))


def _cancels(book: Book, entry: Entry) -> None:
    book.cancelled[entry["key"]] = None


def _cancelled(book: Book, entry: Entry) -> None:
    book.cancelled[entry["key"]] = entry["done"]


def _redrives(book: Book, entry: Entry) -> None:
    book.redriven.append(entry["at"])


def _late(book: Book, entry: Entry) -> None:
    size, bucket = entry.get("size", BUCKET_SIZE), entry["bucket"]
    ids = range(bucket * size, (bucket + 1) * size)
    book.late.append(((entry["stream"], entry["queue"], entry.get("lane")), ids))


def _committed(book: Book, entry: Entry) -> None:
    book.committed[entry["sink"]] = (set(entry["batches"]), entry["rows"])


_ENTER: dict[str, Callable[[Book, Entry], None]] = {
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
    "scheduling": _scheduling,
    "calm": _calm,
    "settled": _settled,
    "late": _late,
    "redrives": _redrives,
    "cancels": _cancels,
    "cancelled": _cancelled,
    "committed": _committed,
}


def _unanswered(book: Book, op: Entry) -> None:
    """An operation without an end may have happened, and ended a lease sooner than it was."""
    match op["what"]:
        case "acks":
            for delivery in _deliveries(op):
                _end(book, delivery)
        case "extends":
            _free_at(book, op, op["at"] + op["hold"], is_sure=False)


def _deliveries(entry: Entry) -> list[Delivery]:
    return [(entry["queue"], message, count) for _, message, count in entry["named"]]


def _hand(book: Book, entry: Entry, begun: float, free: float, holder: str = "") -> None:
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


def _free_at(book: Book, entry: Entry, at: float, *, is_sure: bool) -> None:
    """The holder has said when it ends; unless it is sure that he was heard, only sooner."""
    for delivery in _deliveries(entry):
        for handing in book.handings(delivery):
            handing.free = at if is_sure else min(handing.free, at)


def _end(book: Book, delivery: Delivery) -> None:
    book.ended |= {handing.key for handing in book.handings(delivery)}


def _enter_batches(book: Book) -> None:
    """Rows of a call that returned are acked some time; rows of committed batches are stored."""
    for (stream, batch), calls in book.rows.items():
        for run, rows in calls:
            if (stream, batch, run) in book.done:
                book.ended |= {key for key, _ in rows.values()}
    for sink, (batches, size) in book.committed.items():
        for batch in batches:
            book.stored |= set(rows_of(sink, batch, size))


def rows_of(sink: str, batch: int, size: int) -> list[str]:
    return [row_key(sink, number) for number in range(batch * size, (batch + 1) * size)]


def row_key(sink: str, number: int) -> str:
    """What a sink's row is called: sinks number their rows through."""
    return f"{sink}:{number}"
