"""Define every CQL statement, named by verb, with its consistency and why it is conditional.

G1: each CAS carries its serial *and* its commit consistency, and each read that decides is a quorum
read. Both are on the statement, never a driver default (which is LOCAL_ONE) [P20].
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final

from cassandra import ConsistencyLevel

ROWS_PER_PAGE: Final = 32
"""The page size for message rows of up to 1 MB: 8 MB of ordinary chunks, and 32 MB at most."""


class Kind(Enum):
    """The kind of a statement, which decides its consistency."""

    READ = "read"
    WRITE = "write"
    CAS = "cas"
    SERIAL_READ = "serial read"
    GLANCE = "glance"
    """A read of one replica. It decides and repairs nothing, so it may leave columns out [P4]."""

    SYSTEM = "system"
    """A read of a node's own tables, which is sent as text."""


class Reach(Enum):
    """The replicas of which a quorum is made."""

    HOME = "home"
    """The queue's home data centre; clients elsewhere are refused [P21]."""

    WORLD = "world"
    """All data centres: for decisions about names, before a home is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A CQL statement; ``{ks}`` stands for the keyspace."""

    name: str
    cql: str
    kind: Kind
    reach: Reach = Reach.HOME
    rows_per_page: int | None = None
    """The rows that the driver reads at once; None: its 5,000. Statements whose rows may be a
    megabyte have fewer."""

    @property
    def is_insert(self) -> bool:
        """Whether it inserts a row; otherwise its condition is on the row as read."""
        return self.cql.startswith("INSERT")

    @property
    def table(self) -> str:
        """The table of which it reads or writes rows."""
        return self.cql.partition("{ks}.")[2].split(maxsplit=1)[0]

    @property
    def is_scan(self) -> bool:
        """Whether it reads a table of any length, and not rows of a key."""
        return self.kind in {Kind.READ, Kind.GLANCE} and " = ?" not in self.cql

    @property
    def consistency(self) -> int:
        """The consistency of a read or plain write; of a CAS, the level of its commit."""
        if self.kind is Kind.SERIAL_READ:
            return self.serial_consistency
        if self.kind in {Kind.GLANCE, Kind.SYSTEM}:
            return int(ConsistencyLevel.LOCAL_ONE)
        return int(
            ConsistencyLevel.LOCAL_QUORUM if self.reach is Reach.HOME else ConsistencyLevel.QUORUM
        )

    @property
    def serial_consistency(self) -> int:
        """The level of the Paxos round of a CAS or serial read."""
        return int(
            ConsistencyLevel.LOCAL_SERIAL if self.reach is Reach.HOME else ConsistencyLevel.SERIAL
        )


_ALL: dict[str, Statement] = {}


def _statement(
    kind: Kind, name: str, cql: str, reach: Reach = Reach.HOME, *, rows_per_page: int | None = None
) -> Statement:
    statement = Statement(
        name=name, cql=" ".join(cql.split()), kind=kind, reach=reach, rows_per_page=rows_per_page
    )
    if name in _ALL:
        raise ValueError(f"two statements are named {name}")
    _ALL[name] = statement
    return statement


_read: Final = partial(_statement, Kind.READ)
_write: Final = partial(_statement, Kind.WRITE)
_cas: Final = partial(_statement, Kind.CAS)
_glance: Final = partial(_statement, Kind.GLANCE)
_system: Final = partial(_statement, Kind.SYSTEM)


def every_statement() -> tuple[Statement, ...]:
    """All statements, for the test that reads each one's consistency back."""
    return tuple(_ALL.values())


@dataclass(frozen=True, slots=True)
class _Table:
    """A table's CQL; ``key`` and all ``columns`` are names with commas between.

    Attributes:
        key: The columns that a statement's condition names: of a partition, or of a row.
    """

    table: str
    key: str

    @property
    def where(self) -> str:
        """The condition on the key."""
        return "WHERE " + " AND ".join(f"{one} = ?" for one in self.key.split(", "))

    def all(self, columns: str) -> str:
        """Return the read of these columns of all rows."""
        return f"SELECT {columns} FROM {{ks}}.{self.table}"

    def select(self, columns: str, more: str = "") -> str:
        """Return the read of these columns under a key."""
        return f"{self.all(columns)} {self.where} {more}"

    def insert(self, columns: str, more: str = "") -> str:
        """Return the insert of a row: its key, and these columns."""
        names = f"{self.key}, {columns}"
        values = ", ".join("?" * len(names.split(", ")))
        return f"INSERT INTO {{ks}}.{self.table} ({names}) VALUES ({values}) {more}"

    def update(self, columns: str, more: str = "", *, using: str = "") -> str:
        """Return the update of these columns under a key."""
        changes = ", ".join(f"{one} = ?" for one in columns.split(", "))
        return f"UPDATE {{ks}}.{self.table} {using} SET {changes} {self.where} {more}"

    def delete(self, more: str = "", *, using: str = "") -> str:
        """Return the removal of all under a key."""
        return f"DELETE FROM {{ks}}.{self.table} {using} {self.where} {more}"


# The version of an LWT-only row is three columns, the same in each such table. A CAS is conditional
# on `writer`, a uuid that is never reused, so a row that is inserted again cannot be mistaken for
# its former life [P3]. `tags` and `row_version` settle an answer that was lost (G3).
_VERSION: Final = "writer, tags, row_version"
_AS_READ: Final = "IF writer = ?"
_IF_NEW: Final = "IF NOT EXISTS"

_QUEUE: Final = _Table("queue", "name")
_OF_A_QUEUE: Final = f"queue_id, status, settings, lanes, home_datacenter, created_us, {_VERSION}"
_QUEUES: Final = _QUEUE.all(f"name, {_OF_A_QUEUE}")

# A home data centre knows its queues while no other one answers; for unknown names, all are asked.
FIND_QUEUE: Final = _read("find_queue", _QUEUE.select(f"name, {_OF_A_QUEUE}"))
READ_QUEUE: Final = _read("read_queue", FIND_QUEUE.cql, Reach.WORLD)
FIND_QUEUES: Final = _read("find_queues", _QUEUES)
# DISTINCT, as it reads only a part of the row [T10].
SOME_NAMES: Final = _read("some_names", "SELECT DISTINCT name FROM {ks}.queue LIMIT 1000")
LIST_QUEUES: Final = _read("list_queues", _QUEUES, Reach.WORLD)
INSERT_QUEUE: Final = _cas("insert_queue", _QUEUE.insert(_OF_A_QUEUE, _IF_NEW), Reach.WORLD)
UPDATE_QUEUE: Final = _cas(
    "update_queue", _QUEUE.update(f"status, settings, {_VERSION}", _AS_READ), Reach.WORLD
)
# Conditional on the row as read: a row that was created again meanwhile belongs to another queue.
DELETE_QUEUE: Final = _cas("delete_queue", _QUEUE.delete(_AS_READ), Reach.WORLD)

_ACCOUNT: Final = _Table("account", "name")
_OF_AN_ACCOUNT: Final = f"account_id, status, key_ids, created_us, {_VERSION}"

# This data centre's quorum checks a request; if it does not know the row, all are asked.
FIND_ACCOUNT: Final = _read("find_account", _ACCOUNT.select(f"name, {_OF_AN_ACCOUNT}"))
READ_ACCOUNT: Final = _read("read_account", FIND_ACCOUNT.cql, Reach.WORLD)
LIST_ACCOUNTS: Final = _read("list_accounts", _ACCOUNT.all(f"name, {_OF_AN_ACCOUNT}"), Reach.WORLD)
INSERT_ACCOUNT: Final = _cas(
    "insert_account", _ACCOUNT.insert(_OF_AN_ACCOUNT, _IF_NEW), Reach.WORLD
)
# Conditional on the row as read: two clients that add a key each must not undo each other's.
UPDATE_ACCOUNT: Final = _cas(
    "update_account", _ACCOUNT.update(f"status, key_ids, {_VERSION}", _AS_READ), Reach.WORLD
)
DELETE_ACCOUNT: Final = _cas("delete_account", _ACCOUNT.delete(_AS_READ), Reach.WORLD)

_KEY: Final = _Table("account_key", "key_id")
_OF_A_KEY: Final = f"account, account_id, secret, grants, is_disabled, created_us, {_VERSION}"

FIND_ACCOUNT_KEY: Final = _read("find_account_key", _KEY.select(f"key_id, {_OF_A_KEY}"))
READ_ACCOUNT_KEY: Final = _read("read_account_key", FIND_ACCOUNT_KEY.cql, Reach.WORLD)
INSERT_ACCOUNT_KEY: Final = _cas("insert_account_key", _KEY.insert(_OF_A_KEY, _IF_NEW), Reach.WORLD)
# The secret and the grants of a key never change: for others, one makes another key.
UPDATE_ACCOUNT_KEY: Final = _cas(
    "update_account_key", _KEY.update(f"is_disabled, {_VERSION}", _AS_READ), Reach.WORLD
)
# An id is never used again, so any row of it is the right one.
DELETE_ACCOUNT_KEY: Final = _cas("delete_account_key", _KEY.delete("IF EXISTS"), Reach.WORLD)

# For people who look for unused keys; nothing depends on it. The row ends by its TTL. The time of
# use is its write time, so that the newest use wins, whatever the clock of the node that takes it.
_KEY_USE: Final = _Table("key_use", "key_id")
WRITE_KEY_USE: Final = _write(
    "write_key_use", _KEY_USE.insert("at_us", "USING TIMESTAMP ? AND TTL 31536000")
)
READ_KEY_USE: Final = _read("read_key_use", _KEY_USE.select("at_us"))

_MONOTON: Final = _Table("monoton", "lane")
_OF_A_MONOTON: Final = f"next_id, reserved_us, {_VERSION}"

READ_MONOTON: Final = _read("read_monoton", _MONOTON.select(_OF_A_MONOTON))
INSERT_MONOTON: Final = _cas("insert_monoton", _MONOTON.insert(_OF_A_MONOTON, _IF_NEW))
# Always conditional on an existing row: a missing monoton row means the queue was deleted, and a
# reservation must not create it again [P13].
RESERVE: Final = _cas("reserve", _MONOTON.update(_OF_A_MONOTON, _AS_READ))
# Conditional on the row as read: ids reserved since would be left behind [T15].
DELETE_MONOTON: Final = _cas("delete_monoton", _MONOTON.delete(_AS_READ))

_BUCKET: Final = _Table("bucket", "lane, bucket")
_BEGINNING: Final = "status, changed_us, sink_id, epoch, block_end"

READ_BUCKET: Final = _read(
    "read_bucket", _BUCKET.select(f"{_BEGINNING}, manifest, size_bytes, claims, {_VERSION}")
)
INSERT_BUCKET: Final = _cas("insert_bucket", _BUCKET.insert(f"{_BEGINNING}, {_VERSION}", _IF_NEW))
# Only the CAS that fixes the manifest writes it (I5).
FILL_BUCKET: Final = _cas(
    "fill_bucket",
    _BUCKET.update(f"status, changed_us, manifest, size_bytes, claims, {_VERSION}", _AS_READ),
)
UPDATE_BUCKET: Final = _cas(
    "update_bucket", _BUCKET.update(f"status, changed_us, claims, {_VERSION}", _AS_READ)
)
# Only for a bucket below the repair pointer: late writes there are inert (G5).
DELETE_BUCKET: Final = _cas("delete_bucket", _BUCKET.delete("IF EXISTS"))

# These list whole partitions, by key: a full repair looks for those below the pointers. Each scans
# its whole table, and its read repair writes back whole rows (tests/fault/test_replicas.py) [T10].
LIST_BUCKETS: Final = _read("list_buckets", _BUCKET.all("DISTINCT lane, bucket"))
LIST_MESSAGES: Final = _read("list_messages", "SELECT DISTINCT lane, bucket FROM {ks}.message")
LIST_MONOTONS: Final = _read("list_monotons", _MONOTON.all("DISTINCT lane"))
LIST_SCHEDULES: Final = _read("list_schedules", "SELECT DISTINCT lane, year FROM {ks}.schedule")

_DEDUP: Final = _Table("dedup", "lane, key")
_ENTRY: Final = f"at_lane, bucket, first, message_id, put_us, {_VERSION}"

READ_KEY: Final = _read("read_key", _DEDUP.select(_ENTRY))
# It also takes a key without a row, whose writer is null. An INSERT would make a row marker with a
# time to live of its own: the row could outlast its columns, and refuse an INSERT although it is
# empty.
TAKE_KEY: Final = _cas("take_key", _DEDUP.update(_ENTRY, _AS_READ, using="USING TTL ?"))

_KEPT: Final = _Table("kept", "lane, bucket")
READ_KEPT: Final = _read("read_kept", _KEPT.select("manifest"))
# It is answered at quorum before L passes the bucket; several repairers write the same [U5].
KEEP: Final = _write("keep", _KEPT.insert("manifest", "USING TTL ?"))

_SINK: Final = _Table("sink", "sink_id")
_OF_A_SINK: Final = (
    "lane, changed_us, epoch, last_batch, list, list_id, list_parts, list_hash, "
    f"query_id, checkpoint, run, past, aborts, is_once, {_VERSION}"
)

READ_SINK: Final = _read("read_sink", _SINK.select(_OF_A_SINK))
# A task decides by this read whether its batch is in the queue already (I7).
READ_SINK_SERIAL: Final = _statement(Kind.SERIAL_READ, "read_sink_serial", READ_SINK.cql)
# Repair looks for sinks that are over; it reads each by itself before it does anything. It asks one
# replica: a quorum's read repair would write these columns alone to a replica that missed a commit,
# and its row would mix two versions [T10].
LIST_SINKS: Final = _glance(
    "list_sinks",
    "SELECT sink_id, lane, is_once, epoch, changed_us FROM {ks}.sink "
    "WHERE token(sink_id) >= ? LIMIT ?",
)
# For a verify pass, which reads each by itself; one replica answers, so nothing is repaired.
GLANCE_SINKS: Final = _glance("glance_sinks", _SINK.all("sink_id, lane"))
INSERT_SINK: Final = _cas("insert_sink", _SINK.insert(_OF_A_SINK, _IF_NEW))
# The commit point, and every other end of an epoch (I7).
UPDATE_SINK: Final = _cas("update_sink", _SINK.update(_OF_A_SINK, _AS_READ))
# For a sink of one transaction, after that is decided and rolled forward.
DELETE_SINK: Final = _cas("delete_sink", _SINK.delete(_AS_READ))

_SINK_LIST: Final = _Table("sink_list", "sink_id, list_id")
WRITE_SINK_LIST: Final = _write("write_sink_list", _SINK_LIST.insert("part, data"))
READ_SINK_LIST: Final = _read("read_sink_list", _SINK_LIST.select("part, data"))
# It asks one replica, without the lists themselves: read repair would write rows without data [P4].
LIST_SINK_LISTS: Final = _glance("list_sink_lists", _SINK_LIST.all("sink_id, list_id"))
# For a list that no row names, or can name any more [T19].
DROP_SINK_LIST: Final = _write("drop_sink_list", _SINK_LIST.delete())

# A lead saves double work and decides nothing, so it needs no tags: a client in doubt asks again.
_LEADER: Final = _Table("leader", "name")
_LEAD: Final = "holder, since_us"
READ_LEAD: Final = _read("read_lead", _LEADER.select(_LEAD))
# Both columns are null if nobody leads. `since_us` decides its end; the TTL is for older releases,
# which wait for it, and removes the row.
TAKE_LEAD: Final = _cas(
    "take_lead", _LEADER.update(_LEAD, "IF holder = ? AND since_us = ?", using="USING TTL ?")
)
KEEP_LEAD: Final = _cas("keep_lead", _LEADER.update(_LEAD, "IF holder = ?", using="USING TTL ?"))
GIVE_LEAD_UP: Final = _cas("give_lead_up", _LEADER.delete("IF holder = ?"))

_MESSAGE: Final = _Table("message", "lane, bucket")
_CHUNK: Final = "first, part, count, parts, payload, due_us, enqueued_us, expires_us"

WRITE_MESSAGE: Final = _write("write_message", _MESSAGE.insert(f"{_CHUNK}, has_ttl, has_key"))
# All columns, always: blocking read repair writes back only selected columns, so a seal's scan of
# keys alone would make torn messages [P4].
SCAN_MESSAGES: Final = _read(
    "scan_messages", _MESSAGE.select(f"{_CHUNK}, has_key"), rows_per_page=ROWS_PER_PAGE
)
READ_MESSAGES: Final = _read(
    "read_messages",
    f"{SCAN_MESSAGES.cql} AND first >= ? AND first <= ?",
    rows_per_page=ROWS_PER_PAGE,
)
# It decides nothing: it only shows whether a bucket is worth a seal now.
PEEK_BUCKET: Final = _read("peek_bucket", _MESSAGE.select("first", "LIMIT 1"))
# For a source that waits until there is enough: an estimate that reads no payload.
COUNT_MESSAGES: Final = _glance(
    "count_messages", _MESSAGE.select("first, part, count, due_us, expires_us")
)
# For repair, which checks whether something has expired in a bucket that nobody reads.
OLDEST_MESSAGE: Final = _glance(
    "oldest_message", _MESSAGE.select("enqueued_us, has_ttl", "LIMIT 1")
)
# It filters one partition, and only if some message in it has a time to live.
EXPIRED_MESSAGE: Final = _glance(
    "expired_message", _MESSAGE.select("first", "AND expires_us <= ? LIMIT 1 ALLOW FILTERING")
)
# A day ahead: late and hinted writes of a dropped message stay shadowed [P14] [P27].
DROP_MESSAGES: Final = _write("drop_messages", _MESSAGE.delete(using="USING TIMESTAMP ?"))

_OVERLAY: Final = _Table("overlay", "lane, bucket, id, revision")
WRITE_OVERLAY: Final = _write("write_overlay", _OVERLAY.insert("part, parts, payload"))
READ_OVERLAY: Final = _read(
    "read_overlay", _OVERLAY.select("part, parts, payload"), rows_per_page=ROWS_PER_PAGE
)
DROP_OVERLAY: Final = _write("drop_overlay", _OVERLAY.delete(using="USING TIMESTAMP ?"))
DROP_OVERLAYS: Final = _write(
    "drop_overlays", _Table("overlay", "lane, bucket").delete(using="USING TIMESTAMP ?")
)

READ_POINTERS: Final = _read("read_pointers", _Table("pointer", "lane").select("kind, value"))
# The largest write time wins: no other statement may ever touch this table (G4) [P19].
ADVANCE_POINTER: Final = _write(
    "advance_pointer", _Table("pointer", "lane, kind").update("value", using="USING TIMESTAMP ?")
)

_HINTS: Final = _Table("expiry", "lane, hour")
WRITE_HINT: Final = _write("write_hint", _HINTS.insert("minute, bucket", "USING TTL ?"))
READ_OLD_HINTS: Final = _read(
    "read_old_hints", _HINTS.select("minute, bucket", "AND minute >= ? AND minute <= ?")
)
READ_HINTS: Final = _read(
    "read_hints", _HINTS.select("minute, bucket", "AND minute IN ? AND bucket >= ?")
)

_SCHEDULE: Final = _Table("schedule", "lane, year")
ADD_TO_SCHEDULE: Final = _write("add_to_schedule", _SCHEDULE.insert("period, priority"))
READ_SCHEDULE: Final = _read(
    "read_schedule", _SCHEDULE.select("period, priority", "AND period >= ? AND period < ?")
)
# For a due lane that is finished, or was never begun: no lane of its period is created again [U2].
REMOVE_FROM_SCHEDULE: Final = _write(
    "remove_from_schedule", _SCHEDULE.delete("AND period = ? AND priority = ?")
)

_TIMETABLE: Final = _Table("timetable", "datacenter, name")
_TOUCHED: Final = f"state, touch_us, {_VERSION}"
_DEFINED: Final = f"queue, lane, status, definition, {_TOUCHED}"

READ_TIMETABLE: Final = _read("read_timetable", _TIMETABLE.select(f"{_TIMETABLE.key}, {_DEFINED}"))
# It asks one replica, without the large columns: read repair would write these alone [T10]. Each
# row is read by itself before anything is done.
GLANCE_TIMETABLE: Final = _glance(
    "glance_timetable", _TIMETABLE.all(f"{_TIMETABLE.key}, queue, lane, status, touch_us")
)
LIST_TIMETABLE: Final = _read("list_timetable", _TIMETABLE.all(f"{_TIMETABLE.key}, {_DEFINED}"))
INSERT_TIMETABLE: Final = _cas("insert_timetable", _TIMETABLE.insert(_DEFINED, _IF_NEW))
DEFINE_TIMETABLE: Final = _cas("define_timetable", _TIMETABLE.update(_DEFINED, _AS_READ))
TOUCH_TIMETABLE: Final = _cas("touch_timetable", _TIMETABLE.update(_TOUCHED, _AS_READ))
DELETE_TIMETABLE: Final = _cas("delete_timetable", _TIMETABLE.delete(_AS_READ))

_ALIVE: Final = _Table("alive", "sink_id")
WRITE_ALIVE: Final = _write("write_alive", _ALIVE.insert("at_us", "USING TIMESTAMP ? AND TTL ?"))
READ_ALIVE: Final = _read("read_alive", _ALIVE.select("at_us"))

_META: Final = _Table("meta", "key")
FIND_META: Final = _read("find_meta", _META.select("value"))
READ_META: Final = _read("read_meta", FIND_META.cql, Reach.WORLD)
WRITE_META: Final = _write("write_meta", _META.insert("value"), Reach.WORLD)
PROBE_TIMESTAMP: Final = _write(
    "probe_timestamp", _META.update("value", using="USING TIMESTAMP ? AND TTL 60"), Reach.WORLD
)

# Unlike now(), this goes back when the node's clock is set back: a node's timeuuids only ascend,
# and would stand still until the wrong time has come.
READ_NODE_TIME: Final = _system(
    "read_node_time", "SELECT currentTimestamp() AS now FROM system.local"
)
READ_REPLICATION: Final = _system(
    "read_replication",
    "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = '{ks}'",
)
READ_PAXOS_VARIANT: Final = _system(
    "read_paxos_variant",
    "SELECT value FROM system_views.settings WHERE name = 'paxos_variant'",
)
