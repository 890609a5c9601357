"""One deduplication key: callers that put it, a reader and repair.

See docs/design/deduplication.md.

The order of the steps is that of `queue/put/dedup.py`, `queue/put/producer.py` and
`repair/cleanup.py`, and what the reads tell is decided by `model.dedup` itself. Each try has a
bucket of its own, with one message at offset 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple
from uuid import UUID

from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.dedup import Entry, PutState, by_manifest, judged
from cassieq_spark.model.ids import BucketNo, LaneId, Runs

Step = tuple[str, "State"]

NOWHERE, SOMEWHERE, QUORUM = 0, 1, 2
"""On how many replicas a message is: a read of a quorum may miss what is on one."""

_READ = {"is_stored": False, "row": ""}
"""What a caller has read, forgotten."""

_ONE = Runs.span(0, 0)
_ROWS = {
    "open": None,
    "sealing": Bucket(status=Status.SEALING, changed_us=0),
    "in": Bucket(status=Status.SEALED, changed_us=0, manifest=_ONE, fresh=_ONE),
    "out": Bucket(status=Status.DRAINED, changed_us=0),
}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the protocol rests on; a negative control takes one away.

    Attributes:
        message_first: The message is read before the row of its bucket.
        moves_entry: Who puts again under a new id makes the entry name it first.
        keeps: Repair keeps the manifest before L passes the bucket.
        settles_first: The age of an entry counts only when it is settled.
        closes: A bucket without the message is closed before anything is concluded from that.
        believes_low: Below L only what was kept counts, and no row.
        looks_at_entry: A CAS whose answer was lost may have been applied, and its entry taken by
            others since: what counts is whether it names this try.
    """

    message_first: bool = True
    moves_entry: bool = True
    keeps: bool = True
    settles_first: bool = True
    closes: bool = True
    believes_low: bool = True
    looks_at_entry: bool = True


class Key(NamedTuple):
    """The entry: the bucket of the last try, and the window in which it began."""

    bucket: int
    at: int


class Call(NamedTuple):
    """A caller: its next step, its bucket, its last try's entry, what it has read, its answer.

    Attributes:
        sent: The entry of a CAS that was applied, and whose answer was lost.
    """

    step: str = "reserve"
    tries: int = 0
    bucket: int = -1
    mine: Key | None = None
    known: Key | None = None
    sent: Key | None = None
    is_stored: bool = False
    row: str = ""
    outcome: str = ""


class State(NamedTuple):
    """All of the cluster, and where each client is."""

    calls: tuple[Call, ...]
    messages: tuple[int, ...]
    rows: tuple[str, ...]
    truth: tuple[str, ...]
    began: tuple[int, ...]
    kept: tuple[bool, ...]
    dropped: tuple[bool, ...]
    left: tuple[bool, ...]
    entry: Key | None = None
    now: int = 0
    scanned: tuple[int, bool] | None = None
    ghosts: int = 0
    crashes: int = 0
    lost: int = 0


@dataclass(kw_only=True)
class DedupWorld:
    """The model that is explored.

    Attributes:
        tries: How many buckets each caller takes at most.
        crashes: How many of them may die.
        ghosts: Late copies of an INSERT into a dropped bucket.
        ticks: How often the window passes; the second time, an entry of the first ends.
        lost: How many answers of CASes are lost; they are sent again, at any time.
    """

    tries: tuple[int, ...] = (2, 1)
    crashes: int = 1
    ghosts: int = 0
    ticks: int = 0
    lost: int = 0
    rules: Rules = field(default_factory=Rules)

    def start(self) -> State:
        buckets = sum(self.tries)
        return State(
            calls=(Call(),) * len(self.tries),
            messages=(NOWHERE,) * buckets,
            rows=("open",) * buckets,
            truth=("",) * buckets,
            began=(-1,) * buckets,
            kept=(False,) * buckets,
            dropped=(False,) * buckets,
            left=(False,) * buckets,
            ghosts=self.ghosts,
            crashes=self.crashes,
            lost=self.lost,
        )

    def describe(self, state: State) -> str:
        return str(state)

    def broken(self, state: State) -> str | None:
        there = {bucket for bucket, truth in enumerate(state.truth) if truth == "in"}
        there |= {call.bucket for call in state.calls if call.outcome == "put"}
        for one, other in combinations(sorted(there), 2):
            if state.began[one] == state.began[other]:
                return "I4: a key is in twice within its window"
        if any(state.left[bucket] for bucket in there):
            return "I4: a put happens after another has taken its key"
        for call in state.calls:
            if call.outcome == "put" and state.truth[call.bucket] == "out":
                return "I1: acknowledged, and in no manifest"
            is_told = call.outcome == "duplicate" and call.known is not None
            if is_told and state.truth[call.known.bucket] == "out":
                return "I1: told that it is a duplicate of what never happened"
        return None

    def steps(self, state: State) -> Iterator[Step]:
        for number, call in enumerate(state.calls):
            if call.outcome:
                continue
            for name, after in getattr(self, f"_at_{call.step}")(state, number, call):
                yield f"call{number} {name}", after
            if state.crashes and call.step != "reserve":
                dead = _call(state, number, **Call(outcome="dead")._asdict())
                yield f"call{number} dies", dead._replace(crashes=state.crashes - 1)
        yield from self._reader(state)
        yield from self._repair(state)
        if state.now < self.ticks:
            entry = state.entry
            ended = entry is not None and state.now + 1 - entry.at > 1
            passed = state._replace(now=state.now + 1, entry=None if ended else entry)
            yield "the window passes", passed

    # --- put (queue/put/producer.py) --------------------------------------------------------------
    def _at_reserve(self, state: State, number: int, call: Call) -> Iterator[Step]:
        if call.tries < self.tries[number]:
            after = "take" if call.mine is None or self.rules.moves_entry else "write"
            bucket = call.tries * len(self.tries) + number
            began = state._replace(began=_with(state.began, bucket, state.now))
            next_try = {"tries": call.tries + 1, "bucket": bucket, "known": call.mine}
            yield f"reserves bucket {bucket}", _call(began, number, step=after, row="", **next_try)

    def _at_write(self, state: State, number: int, call: Call) -> Iterator[Step]:
        one = _with(state.messages, call.bucket, max(SOMEWHERE, state.messages[call.bucket]))
        yield "has written to one replica", _call(state._replace(messages=one), number, step="more")

    def _at_more(self, state: State, number: int, call: Call) -> Iterator[Step]:
        all_ = _with(state.messages, call.bucket, QUORUM)
        yield "has written to a quorum", _call(state._replace(messages=all_), number, step="look")

    def _at_look(self, state: State, number: int, call: Call) -> Iterator[Step]:
        row = state.rows[call.bucket]
        if row != "sealing":
            yield f"reads its bucket: {row}", _call(state, number, step="prove", row=row)

    def _at_prove(self, state: State, number: int, call: Call) -> Iterator[Step]:
        if state.dropped[call.bucket]:
            told = Call(outcome="ambiguous")
            yield "finds L above it", _call(state, number, **told._asdict())
        elif call.row == "out":
            yield "goes again", _call(state, number, step="reserve", **_READ)
        else:
            told = Call(outcome="put", bucket=call.bucket)
            yield "is answered", _call(state, number, **told._asdict())

    # --- keys (queue/put/dedup.py) ----------------------------------------------------------------
    def _at_take(self, state: State, number: int, call: Call) -> Iterator[Step]:
        if state.entry == call.known:
            mine = Key(call.bucket, state.now)
            began = _with(state.began, call.bucket, state.now)
            taken = state._replace(entry=mine, began=began)
            if state.entry is not None and not self._is_there(state, state.entry.bucket):
                taken = taken._replace(left=_with(state.left, state.entry.bucket, True))
            yield "takes the key", _call(taken, number, step="write", mine=mine, known=None)
            if state.lost:
                unheard = _call(taken, number, step="again", sent=mine, known=None)
                yield "takes the key unheard", unheard._replace(lost=state.lost - 1)
        elif state.entry is None:
            yield "finds no entry", _call(state, number, known=None)
        elif self._is_old(state, state.entry) and not self.rules.settles_first:
            yield "finds an old entry", _call(state, number, known=state.entry)
        else:
            first = "message" if self.rules.message_first else "row"
            yield (
                f"is refused by {state.entry.bucket}",
                _call(state, number, step=first, known=state.entry, **_READ),
            )

    def _at_again(self, state: State, number: int, call: Call) -> Iterator[Step]:
        """The CAS is sent again: by its tag, the row tells that it was applied."""
        entry = state.entry
        if entry is None:
            yield "finds no entry any more", _call(state, number, step="take", sent=None)
        elif entry == call.sent or not self.rules.looks_at_entry:
            after = {"step": "write", "mine": entry, "sent": None}
            yield "learns that it was applied", _call(state, number, **after)
        else:
            first = "message" if self.rules.message_first else "row"
            others = {"step": first, "known": entry, "sent": None, **_READ}
            yield "learns that others took it since", _call(state, number, **others)

    def _at_message(self, state: State, number: int, call: Call) -> Iterator[Step]:
        assert call.known is not None
        at = call.known.bucket
        after = "row" if self.rules.message_first else "low"
        for is_seen, messages in _read(state.messages, at):
            seen = state._replace(messages=messages)
            step = _call(seen, number, step=after, is_stored=is_seen)
            yield f"reads message {at}: {is_seen}", step

    def _at_row(self, state: State, number: int, call: Call) -> Iterator[Step]:
        assert call.known is not None
        row = state.rows[call.known.bucket]
        after = "low" if self.rules.message_first else "message"
        yield f"reads bucket {call.known.bucket}: {row}", _call(state, number, step=after, row=row)

    def _at_low(self, state: State, number: int, call: Call) -> Iterator[Step]:
        assert call.known is not None
        at = call.known.bucket
        verdict = judged(
            _entry(at),
            is_stored=call.is_stored,
            row=_ROWS[call.row],
            low=int(state.dropped[at] and self.rules.believes_low) * (at + 1),
        )
        if verdict is PutState.KEPT:
            # The order of this read does not matter: what is kept is never changed.
            verdict = by_manifest(_entry(at), _ONE if state.kept[at] else None)
        if verdict is PutState.OPEN and self.rules.closes:
            yield "closes its bucket", self._closed(state, number, at)
        elif verdict is not PutState.HAPPENED:
            yield "finds that it never happened", _call(state, number, step="take", **_READ)
        elif self._is_old(state, call.known):
            yield "finds that it is old", _call(state, number, step="take", **_READ)
        else:
            told = Call(outcome="duplicate", known=call.known)
            yield "finds a duplicate", _call(state, number, **told._asdict())

    def _closed(self, state: State, number: int, at: int) -> State:
        if state.rows[at] == "open":
            state = state._replace(rows=_with(state.rows, at, "sealing"))
        first = "message" if self.rules.message_first else "row"
        return _call(state, number, step=first, **_READ)

    @staticmethod
    def _is_there(state: State, at: int) -> bool:
        return state.truth[at] == "in" or state.messages[at] == QUORUM

    @staticmethod
    def _is_old(state: State, entry: Key) -> bool:
        return state.now > entry.at

    # --- seals, whoever carries them on (queue/seal.py) -------------------------------------------
    def _reader(self, state: State) -> Iterator[Step]:
        for at, row in enumerate(state.rows):
            if row == "open" and not state.dropped[at] and state.began[at] >= 0:
                closing = state._replace(rows=_with(state.rows, at, "sealing"))
                yield f"a reader closes {at}", closing
            elif row == "open" and state.dropped[at] and state.ghosts:
                ghost = state._replace(rows=_with(state.rows, at, "sealing"))
                yield f"a late INSERT of {at}", ghost._replace(ghosts=state.ghosts - 1)
            elif row == "sealing" and state.scanned is None:
                for is_seen, messages in _read(state.messages, at):
                    scanned = state._replace(messages=messages, scanned=(at, is_seen))
                    yield f"scans {at}: {is_seen}", scanned
        if state.scanned is not None:
            at, is_seen = state.scanned
            now = "in" if is_seen else "out"
            sealed = state._replace(rows=_with(state.rows, at, now), scanned=None)
            if not state.truth[at]:
                sealed = sealed._replace(truth=_with(state.truth, at, now))
            yield f"seals {at}: {now}", sealed

    # --- repair (repair/cleanup.py) ---------------------------------------------------------------
    def _repair(self, state: State) -> Iterator[Step]:
        for at, row in enumerate(state.rows):
            if state.dropped[at]:
                if row != "open":
                    removed = state._replace(rows=_with(state.rows, at, "open"))
                    if state.scanned is None or state.scanned[0] != at:
                        yield f"repair removes row {at}", removed
                continue
            if row == "in" and state.messages[at]:
                freed = state._replace(messages=_with(state.messages, at, NOWHERE))
                yield f"{at} is delivered, and its message removed", freed
            is_kept = row == "out" or state.kept[at] or not self.rules.keeps
            if row == "in" and not is_kept:
                yield f"repair keeps {at}", state._replace(kept=_with(state.kept, at, True))
            elif row in ("in", "out"):
                gone = state._replace(messages=_with(state.messages, at, NOWHERE))
                yield f"L passes {at}", gone._replace(dropped=_with(state.dropped, at, True))


def _entry(at: int) -> Entry:
    nobody = UUID(int=0)
    return Entry(lane=LaneId(nobody), bucket=BucketNo(at), offset=0, message_id=nobody, put_us=0)


def _read(messages: tuple[int, ...], at: int) -> Iterator[tuple[bool, tuple[int, ...]]]:
    """What a quorum may see; what it has seen, it has written back to a quorum."""
    if messages[at] != QUORUM:
        yield False, messages
    if messages[at] != NOWHERE:
        yield True, _with(messages, at, QUORUM)


def _call(state: State, number: int, **changes: object) -> State:
    changed = state.calls[number]._replace(**changes)  # type: ignore[arg-type]
    return state._replace(calls=(*state.calls[:number], changed, *state.calls[number + 1 :]))


def _with(values: tuple, at: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:at], value, *values[at + 1 :])
