"""What programs do to a queue: the put, the get and the ack of the package, step by step.

It follows `queue/put/producer.py`, `queue/reserve.py`, `queue/get/reader.py`, `queue/seal.py` and
`queue/settle/settle.py`: which statements, in which order, and what a lost race costs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bench.scale.model import Client, Cluster, Row
from bench.scale.parameters import Kind
from bench.scale.recipes import BUCKET_SIZE
from cassieq_spark.entropy import Entropy
from cassieq_spark.model.sizes import CHUNK_BYTES, CHUNK_MESSAGES
from cassieq_spark.store.rows import RACE_DOUBLINGS, RACE_PAUSE_S

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    import simpy

    from bench.scale.model import Host, Steps

    Gives = Generator[simpy.Event, Any, list[tuple["Bucket", int]]]
    Claims = Generator[simpy.Event, Any, int]

WINDOWS: Final = (8, 16, 32, 64)
"""Bucket rows that a scan reads at once, until it has found enough."""

ROUNDS: Final = 4
SEALS_PER_CALL: Final = 8
WRITES_IN_FLIGHT: Final = 8

LINGER_S: Final = 0.02
"""How long a get leaves a bucket open that is still young: the default of ``linger``. Where
messages come one by one it does not, but there is no more than one seal in this time."""


class Bucket:
    """A bucket and its row.

    Attributes:
        total: Messages that were put into it.
        fresh: Those that nobody has claimed.
        left: Those that are not acknowledged.
    """

    def __init__(self, env: simpy.Environment, name: str, total: int = 0) -> None:
        self.name = name
        self.row = Row(env, name)
        self.total = total
        self.fresh = total
        self.left = total
        self.is_sealed = False


class Lane:
    """A sequence of buckets, and the row that hands out their numbers."""

    def __init__(self, env: simpy.Environment, name: str) -> None:
        self.name = name
        self.env = env
        self.monoton = Row(env, name)
        self.monoton.exists = True
        self.buckets: list[Bucket] = []
        self.reader = 0

    def add(self, total: int = 0) -> Bucket:
        """The next bucket."""
        bucket = Bucket(self.env, f"{self.name}/{len(self.buckets)}", total)
        self.buckets.append(bucket)
        return bucket

    def move_reader(self) -> bool:
        """Pass what has nothing fresh; whether that moved the pointer."""
        before = self.reader
        while self.reader < len(self.buckets):
            one = self.buckets[self.reader]
            if not one.is_sealed or one.fresh:
                break
            self.reader += 1
        return self.reader > before

    @property
    def fresh(self) -> int:
        """Messages that nobody has claimed."""
        return sum(one.fresh for one in self.buckets[self.reader :])


@dataclass(slots=True)
class Tally:
    """What programs have done.

    Attributes:
        put, got, acked: Messages.
        reserved: Buckets.
        latencies: Seconds of each call.
        ended_at: When the last call that did something was over.
    """

    put: int = 0
    got: int = 0
    acked: int = 0
    reserved: int = 0
    latencies: list[float] = field(default_factory=list)
    ended_at: float = 0.0


class Program:
    """One process with a client of the queue."""

    def __init__(
        self,
        cluster: Cluster,
        lanes: list[Lane],
        tally: Tally,
        *,
        host: Host | None = None,
        body_bytes: int = 96,
        bucket_size: int = BUCKET_SIZE,
    ) -> None:
        self._cluster = cluster
        self._lanes = lanes
        self._turn = cluster.rng.randrange(len(lanes))
        self._own = lanes[self._turn]
        self._client = Client(cluster.env, host)
        self._tally = tally
        self._body_bytes = body_bytes
        self._bucket_size = bucket_size
        self._block: Bucket | None = None

    # --- put --------------------------------------------------------------------------------------

    def put(self, calls: int, at_once: int) -> Steps:
        """So many calls of ``put_many``."""
        env = self._cluster.env
        for _ in range(calls):
            began = env.now
            yield from self._client.work(self._cluster.parameters.put_message_s * at_once)
            yield from self._put(at_once)
            self._tally.put += at_once
            self._done(began)

    def reserve(self, calls: int) -> Steps:
        """So many reservations of one bucket, and nothing else."""
        for _ in range(calls):
            began = self._cluster.env.now
            yield from self._reserve()
            self._done(began)

    def _put(self, left: int) -> Steps:
        while left:
            block = self._block
            if block is None or block.total >= self._bucket_size or block.is_sealed:
                yield from self._reserve()
                block = self._block = self._own.add()
            count = min(left, self._bucket_size - block.total)
            yield from self._write(block, count)
            yield from self._send(Kind.READ, block.name)
            yield from self._send(Kind.READ, self._own.name)
            block.total += count
            block.fresh += count
            block.left += count
            left -= count

    def _write(self, block: Bucket, count: int) -> Steps:
        each = min(CHUNK_MESSAGES, max(1, CHUNK_BYTES // self._body_bytes))
        sizes = [min(each, count - at) * self._body_bytes for at in range(0, count, each)]
        for at in range(0, len(sizes), WRITES_IN_FLIGHT):
            yield from self._together(
                self._send(Kind.CHUNK_WRITE, block.name, size=size)
                for size in sizes[at : at + WRITES_IN_FLIGHT]
            )

    def _reserve(self) -> Steps:
        row = self._own.monoton
        for attempt in range(1_000):
            yield from self._stand_back(attempt)
            seen = row.version
            yield from self._send(Kind.READ, row.key)
            if (yield from self._cluster.cas(self._client, row, seen)):
                break
            yield from self._send(Kind.READ, row.key)  # what a refused CAS reads to know the row
        self._tally.reserved += 1

    # --- get and ack ------------------------------------------------------------------------------

    def drain(self, at_most: int) -> Steps:
        """Get and ack until nothing is left."""
        env = self._cluster.env
        while any(lane.fresh for lane in self._lanes):
            began = env.now
            claimed = yield from self._get(at_most)
            if not claimed:
                # Others hold what is left, or were faster everywhere: the next look is a moment on.
                yield env.timeout(Entropy(self._cluster.rng).jitter(0.03, 0))
                continue
            count = sum(some for _, some in claimed)
            self._tally.got += count
            yield from self._client.work(self._cluster.parameters.get_message_s * count)
            yield from self._together(self._ack(bucket, some) for bucket, some in claimed)
            self._tally.acked += count
            self._done(began)

    def cycle(self, calls: int, at_once: int) -> Steps:
        """Put, get and ack so many together, one after the other."""
        for _ in range(calls):
            began = self._cluster.env.now
            yield from self._client.work(self._cluster.parameters.put_message_s * at_once)
            yield from self._put(at_once)
            self._tally.put += at_once
            left = at_once
            while left > 0:
                claimed = yield from self._get(left)
                for bucket, some in claimed:
                    yield from self._ack(bucket, some)
                    left -= some
                    self._tally.got += some
                    self._tally.acked += some
            yield from self._client.work(self._cluster.parameters.get_message_s * at_once)
            self._done(began)

    def _get(self, at_most: int) -> Gives:
        lane = self._next_lane()
        for key in (lane.name, lane.name, lane.name):  # pointers, monoton, hints
            yield from self._send(Kind.READ, key)
        seen = yield from self._scan(lane, at_most)
        claimed: list[tuple[Bucket, int]] = []
        left = at_most
        candidates = {bucket: row for bucket, row in seen.items() if bucket.is_sealed}
        for _ in range(ROUNDS):
            shares = _shares(candidates, left)
            if not shares:
                break
            yield from self._together(self._send(Kind.WRITE, lane.name) for _ in shares)
            got: list[tuple[Bucket, int]] = []
            yield from self._together(
                self._claim(bucket, some, candidates, got) for bucket, some in shares
            )
            claimed += got
            left -= sum(some for _, some in got)
            if left <= 0:
                break
        if left > 0:
            claimed += yield from self._seal_some(lane, seen, left)
        if lane.move_reader():
            yield from self._send(Kind.WRITE, lane.name)
        if claimed:
            yield from self._send(Kind.READ, lane.name)
            yield from self._together(self._read(bucket, some) for bucket, some in claimed)
        return claimed

    def _next_lane(self) -> Lane:
        """Shards in turn, beginning one further each time; the first that has something."""
        self._turn = (self._turn + 1) % len(self._lanes)
        turn = self._lanes[self._turn :] + self._lanes[: self._turn]
        return next((lane for lane in turn if lane.fresh), turn[0])

    def _scan(self, lane: Lane, want: int) -> Generator[simpy.Event, Any, dict[Bucket, int]]:
        """Read rows from the reader pointer on until enough is found: versions as read."""
        seen: dict[Bucket, int] = {}
        at, found, step = lane.reader, 0, 0
        while at < len(lane.buckets) and found < want:
            some = lane.buckets[at : at + WINDOWS[min(step, len(WINDOWS) - 1)]]
            at, step = at + len(some), step + 1
            seen |= {bucket: bucket.row.version for bucket in some}
            found += sum(bucket.fresh for bucket in some if bucket.is_sealed)
            yield from self._together(self._send(Kind.READ, bucket.name) for bucket in some)
        return seen

    def _claim(
        self,
        bucket: Bucket,
        want: int,
        candidates: dict[Bucket, int],
        got: list[tuple[Bucket, int]],
    ) -> Steps:
        """One CAS. A lost race leaves the row as it is then, at the end of the candidates."""
        seen = candidates.pop(bucket)
        if (yield from self._cluster.cas(self._client, bucket.row, seen)):
            some = min(want, bucket.fresh)
            bucket.fresh -= some
            if some:
                got.append((bucket, some))
        else:
            now = bucket.row.version
            yield from self._send(Kind.READ, bucket.name)
            candidates[bucket] = now

    def _seal_some(self, lane: Lane, seen: dict[Bucket, int], left: int) -> Gives:
        open_ = [one for one in seen if not one.is_sealed and one.total]
        if not open_:
            return []
        yield from self._send(Kind.READ, lane.name)
        yield from self._together(self._send(Kind.READ, one.name) for one in open_)  # peeks
        claimed: list[tuple[Bucket, int]] = []
        for bucket in open_[:SEALS_PER_CALL]:
            if left <= 0:
                break
            some = yield from self._seal(lane, bucket, left)
            if some:
                claimed.append((bucket, some))
                left -= some
        return claimed

    def _seal(self, lane: Lane, bucket: Bucket, want: int) -> Claims:
        """Insert the row, or find it there; scan; fix what is in, with our claim."""
        if not (yield from self._cluster.cas(self._client, bucket.row, None)):
            yield from self._send(Kind.READ, bucket.name)
        for attempt in range(1_000):
            yield from self._stand_back(attempt)
            seen, was_sealed = bucket.row.version, bucket.is_sealed
            if not was_sealed:
                yield from self._send(Kind.READ, lane.name)
                yield from self._read(bucket, bucket.total)
            yield from self._send(Kind.WRITE, lane.name)
            if (yield from self._cluster.cas(self._client, bucket.row, seen)):
                some = min(want, bucket.fresh)
                bucket.fresh -= some
                bucket.is_sealed = True
                return some
            yield from self._send(Kind.READ, bucket.name)
            if was_sealed or not bucket.fresh:
                break  # the next look finds what is left
        return 0

    def _ack(self, bucket: Bucket, count: int) -> Steps:
        seen = bucket.row.version
        yield from self._send(Kind.READ, bucket.name)
        for attempt in range(1_000):
            yield from self._stand_back(attempt)
            if (yield from self._cluster.cas(self._client, bucket.row, seen)):
                break
            seen = bucket.row.version
            yield from self._send(Kind.READ, bucket.name)
        bucket.left -= count

    # --- below ------------------------------------------------------------------------------------

    def _read(self, bucket: Bucket, count: int) -> Steps:
        # A read gets whole chunks, so at least one.
        size = max(count, min(bucket.total, CHUNK_MESSAGES)) * self._body_bytes
        yield from self._send(Kind.CHUNK_READ, bucket.name, size=size)

    def _send(self, kind: Kind, key: str, *, size: float = 0.0) -> Steps:
        return self._cluster.send(self._client, kind, key, size=size)

    def _together(self, steps: Iterable[Steps]) -> Steps:
        env = self._cluster.env
        yield env.all_of([env.process(one) for one in list(steps)])

    def _stand_back(self, attempt: int) -> Steps:
        if attempt:
            pause_s = Entropy(self._cluster.rng).jitter(
                RACE_PAUSE_S, min(attempt - 1, RACE_DOUBLINGS)
            )
            yield self._cluster.env.timeout(pause_s)

    def _done(self, began: float) -> None:
        now = self._cluster.env.now
        self._tally.latencies.append(now - began)
        self._tally.ended_at = max(self._tally.ended_at, now)


def _shares(candidates: dict[Bucket, int], left: int) -> list[tuple[Bucket, int]]:
    shares = []
    for bucket in candidates:
        if left <= 0:
            break
        if bucket.fresh:
            shares.append((bucket, min(left, bucket.fresh)))
            left -= bucket.fresh
    return shares
