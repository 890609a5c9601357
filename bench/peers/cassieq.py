"""CassieQ's statements, message by message: a re-creation, since its last release is of 2016.

What it sends to Cassandra for a put, a get and an ack, as its source at 3856962 has it, in the same
order, by the plain driver: every conditional update (LWT), read and counter, also the two reads
(account and queue) with which each of its REST calls begins. Kinder than the original: statements
are prepared, and there is no HTTP. Left out: its repair worker, dead letters, and deletion.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from cassandra import ConsistencyLevel, Unavailable, WriteTimeout, WriteType
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import DCAwareRoundRobinPolicy, TokenAwarePolicy

from bench.peers.peer import Got
from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import generator

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KEYSPACE: Final = "cassieq_2016"
BUCKET_SIZE: Final = 20
"""Its default."""

VISIBILITY: Final = timedelta(seconds=30)
POLL_S: Final = 0.1
"""It has no long polls: a client asks again."""

READER, INVISIBLE = "reader", "invis"
_ATTEMPTS: Final = 3
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - as the driver takes and gives times

_TABLES: Final = (
    """CREATE KEYSPACE IF NOT EXISTS {ks}
    WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}""",
    "CREATE TABLE IF NOT EXISTS {ks}.account (name text PRIMARY KEY, keys text)",
    """CREATE TABLE IF NOT EXISTS {ks}.queue (
        name text PRIMARY KEY, status int, version int, bucket_size int)""",
    "CREATE TABLE IF NOT EXISTS {ks}.monoton (queue text PRIMARY KEY, value bigint)",
    """CREATE TABLE IF NOT EXISTS {ks}.pointer (
        queue text, type text, value bigint, PRIMARY KEY (queue, type))""",
    """CREATE TABLE IF NOT EXISTS {ks}.message (
        queue text, bucket bigint, monoton bigint, message blob, version int, acked boolean,
        next_visible_on timestamp, delivery_count int, tag text, created_date timestamp,
        PRIMARY KEY ((queue, bucket), monoton))""",
    "CREATE TABLE IF NOT EXISTS {ks}.queue_stats (queue text PRIMARY KEY, size counter)",
)
_STATEMENTS: Final = {
    "new_account": "INSERT INTO {ks}.account (name, keys) VALUES (?, '')",
    "new_queue": """INSERT INTO {ks}.queue (name, status, version, bucket_size)
        VALUES (?, 1, 0, ?) IF NOT EXISTS""",
    "new_monoton": "INSERT INTO {ks}.monoton (queue, value) VALUES (?, 0) IF NOT EXISTS",
    "new_pointer": "INSERT INTO {ks}.pointer (queue, type, value) VALUES (?, ?, ?) IF NOT EXISTS",
    "account": "SELECT * FROM {ks}.account WHERE name = ?",
    "queue": "SELECT * FROM {ks}.queue WHERE name = ?",
    "monoton": "SELECT value FROM {ks}.monoton WHERE queue = ?",
    "pointer": "SELECT value FROM {ks}.pointer WHERE queue = ? AND type = ?",
    "message": "SELECT * FROM {ks}.message WHERE queue = ? AND bucket = ? AND monoton = ?",
    "bucket": "SELECT * FROM {ks}.message WHERE queue = ? AND bucket = ?",
    "next_monoton": "UPDATE {ks}.monoton SET value = ? WHERE queue = ? IF value = ?",
    "move": "UPDATE {ks}.pointer SET value = ? WHERE queue = ? AND type = ? IF value = ?",
    "move_back": "UPDATE {ks}.pointer SET value = ? WHERE queue = ? AND type = ? IF value > ?",
    "insert": """INSERT INTO {ks}.message (queue, bucket, monoton, message, version, acked,
        next_visible_on, delivery_count, tag, created_date)
        VALUES (?, ?, ?, ?, 1, false, ?, 0, ?, ?) IF NOT EXISTS""",
    "tombstone": """INSERT INTO {ks}.message (queue, bucket, monoton, created_date)
        VALUES (?, ?, -2, ?) IF NOT EXISTS""",
    "consume": """UPDATE {ks}.message SET next_visible_on = ?, version = ?, delivery_count = ?
        WHERE queue = ? AND bucket = ? AND monoton = ? IF version = ? AND acked = false""",
    "ack": """UPDATE {ks}.message SET acked = true, version = ?
        WHERE queue = ? AND bucket = ? AND monoton = ? IF version = ?""",
    "size": "UPDATE {ks}.queue_stats SET size = size + ? WHERE queue = ?",
}


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a get returns beside the body."""

    monoton: int
    version: int
    tag: str


class Client:
    """One session. A context manager."""

    def __init__(self, contact_points: str) -> None:
        host, _, port = contact_points.split(",", maxsplit=1)[0].rpartition(":")
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy("datacenter1")),
            consistency_level=ConsistencyLevel.LOCAL_QUORUM,
            serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL,
            request_timeout=30,
        )
        self._cluster = Cluster(
            [host],
            port=int(port),
            protocol_version=5,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        )
        self._session = self._cluster.connect()
        self._prepared: dict[str, Any] = {}
        self.statements: Counter[str] = Counter()

    def bootstrap(self) -> None:
        """Create keyspace, tables and an account."""
        for statement in _TABLES:
            self._session.execute(statement.format(ks=KEYSPACE))
        self.execute("new_account", "bench")

    def execute(self, name: str, *params: object) -> list[Any]:
        """One statement; tried three times in all, as CassieQ does it, even if it is an LWT.

        Raises:
            WriteTimeout, Unavailable: It failed each time.
        """
        if name not in self._prepared:
            self._prepared[name] = self._session.prepare(_STATEMENTS[name].format(ks=KEYSPACE))
        for left in reversed(range(_ATTEMPTS)):
            self.statements[name] += 1
            try:
                return list(self._session.execute(self._prepared[name], params))
            except (WriteTimeout, Unavailable) as error:
                is_cas = getattr(error, "write_type", WriteType.CAS) == WriteType.CAS
                if not left or not is_cas:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def applied(self, name: str, *params: object) -> bool:
        """Whether an LWT was applied."""
        return bool(self.execute(name, *params)[0][0])

    def create_queue(self, name: str) -> Queue:
        """The row of the queue, its counter of ids and its pointers."""
        self.execute("new_queue", name, BUCKET_SIZE)
        self.execute("new_monoton", name)
        for pointer, value in ((READER, 0), (INVISIBLE, -1), ("repair", 0)):
            self.execute("new_pointer", name, pointer, value)
        return self.queue(name)

    def queue(self, name: str) -> Queue:
        """One that is there."""
        return Queue(self, name)

    def __enter__(self) -> Self:
        """It is connected already."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Disconnect."""
        self._cluster.shutdown()


class Queue:
    """The calls of one queue; the chapters of the protocol are those of its reader's notes."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._chance = generator()
        self._clock = SystemClock()

    def delete(self) -> None:
        """Its rows stay: no other queue reads them."""

    # --- the calls --------------------------------------------------------------------------------

    def put_many(self, bodies: Iterable[bytes]) -> None:
        """One after the other: there is no batch.

        Raises:
            RuntimeError: The id was used, which is CassieQ's answer 500.
        """
        for body in bodies:
            self._put(body)

    def get(self, max_messages: int = 1, *, wait: float = 0) -> list[Got]:
        """One message, whatever is asked for."""
        del max_messages
        deadline = self._clock.monotonic() + wait
        while (found := self._next()) is None:
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                return []
            self._clock.wait(min(POLL_S, left_s))
        receipt = Receipt(found.monoton, found.version + 1, found.tag)
        return [Got(bytes(found.message), receipt)]

    def ack(self, messages: Sequence[Got]) -> None:
        """One after the other.

        Raises:
            RuntimeError: Its version has changed, which is CassieQ's answer 409.
        """
        for one in messages:
            self._ack(one.handle)

    # --- put --------------------------------------------------------------------------------------

    def _put(self, body: bytes) -> None:
        self._begin()
        monoton, now = self._next_monoton(), self._now()
        tag = f"{self._chance.getrandbits(64):x}"
        bucket = _bucket_of(monoton)
        if not self._client.applied("insert", self._name, bucket, monoton, body, now, tag, now):
            raise RuntimeError(f"message {monoton} exists")
        self._client.execute("size", 1, self._name)

    def _next_monoton(self) -> int:
        while True:
            value = self._monoton()
            if self._client.applied("next_monoton", value + 1, self._name, value):
                return value

    # --- get --------------------------------------------------------------------------------------

    def _next(self) -> Any | None:
        self._begin()
        self._client.execute("queue", self._name)  # is it active
        self._pointer(READER)
        reader = self._pointer(READER)  # each of two strategy objects reads its own
        found = self._next_visible(reader)
        if found is not None and self._consumed(found):
            self._move_invisible(self._pointer(INVISIBLE), found.monoton)
            return found
        return self._from_reader(self._pointer(READER))

    def _from_reader(self, bucket: int) -> Any | None:
        while True:
            rows = self._bucket(bucket)
            visible = [one for one in rows if self._is_visible(one)]
            if not visible:
                if len(rows) < BUCKET_SIZE and _bucket_of(self._monoton()) <= bucket:
                    return None
                self._client.execute("tombstone", self._name, bucket, self._now())
                moved = self._client.applied("move", bucket + 1, self._name, READER, bucket)
                bucket = bucket + 1 if moved else self._pointer(READER)
                continue
            one = self._chance.choice(visible)
            if self._consumed(one):
                return one

    def _next_visible(self, reader: int) -> Any | None:
        """The pointer of what is invisible: what came back, or a better place for the pointer."""
        pointer = self._pointer(INVISIBLE)
        while True:
            at = self._message(pointer)
            if at is not None and not at.acked:
                return at if self._is_visible(at) else None
            bucket = max(0, _bucket_of(pointer))
            rows = self._bucket(bucket)
            if not rows:
                return None
            if reader > bucket and (back := next(filter(self._is_visible, rows), None)):
                return back
            leased = [one for one in rows if not one.acked and not self._is_visible(one)]
            new = [one for one in rows if one.delivery_count == 0]
            if leased or new:
                self._move_invisible(pointer, (leased or new)[0].monoton)
                return None
            if len(rows) < BUCKET_SIZE or bucket == reader:
                return None
            pointer = self._move_invisible(pointer, (bucket + 1) * BUCKET_SIZE)

    def _consumed(self, row: Any) -> bool:
        return self._client.applied(
            "consume",
            self._now() + VISIBILITY,
            row.version + 1,
            row.delivery_count + 1,
            *(self._name, _bucket_of(row.monoton), row.monoton, row.version),
        )

    def _move_invisible(self, origin: int, there: int) -> int:
        where = (there, self._name, INVISIBLE)
        if self._client.applied("move_back", *where, there):
            return there
        if self._client.applied("move", *where, origin):
            return there
        return self._pointer(INVISIBLE)

    # --- ack --------------------------------------------------------------------------------------

    def _ack(self, receipt: Receipt) -> None:
        self._begin()
        self._pointer(READER)
        row = self._message(receipt.monoton)
        if row is None or (row.version, row.tag) != (receipt.version, receipt.tag):
            raise RuntimeError(f"message {receipt.monoton} is not this receipt's any more")
        where = (self._name, _bucket_of(receipt.monoton), receipt.monoton)
        if not self._client.applied("ack", row.version + 1, *where, row.version):
            raise RuntimeError(f"message {receipt.monoton} has changed")
        self._client.execute("size", -1, self._name)

    # --- reads ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._client.execute("account", "bench")
        self._client.execute("queue", self._name)

    def _monoton(self) -> int:
        return int(self._client.execute("monoton", self._name)[0].value)

    def _pointer(self, name: str) -> int:
        return int(self._client.execute("pointer", self._name, name)[0].value)

    def _message(self, monoton: int) -> Any | None:
        found = self._client.execute("message", self._name, max(0, _bucket_of(monoton)), monoton)
        return found[0] if found else None

    def _bucket(self, bucket: int) -> list[Any]:
        rows = self._client.execute("bucket", self._name, bucket)
        return [one for one in rows if one.monoton >= 0]

    def _is_visible(self, row: Any) -> bool:
        return not row.acked and row.next_visible_on <= self._now()

    def _now(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self._clock.now_us())


def _bucket_of(monoton: int) -> int:
    return monoton // BUCKET_SIZE
