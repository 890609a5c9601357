"""Define every CQL statement, named by verb, with its consistency and why it is conditional.

G1: each CAS carries its serial *and* its commit consistency, and each read that decides is a quorum
read. Both are on the statement, never a driver default (which is LOCAL_ONE) [P20].
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
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
    """One statement; ``{ks}`` stands for the keyspace."""

    name: str
    cql: str
    kind: Kind
    reach: Reach = Reach.HOME
    rows_per_page: int | None = None
    """None means the driver's 5,000; a statement whose rows may be a megabyte has fewer."""

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
    name: str,
    kind: Kind,
    cql: str,
    reach: Reach = Reach.HOME,
    *,
    rows_per_page: int | None = None,
) -> Statement:
    statement = Statement(
        name=name, cql=" ".join(cql.split()), kind=kind, reach=reach, rows_per_page=rows_per_page
    )
    if name in _ALL:
        raise ValueError(f"two statements are named {name}")
    _ALL[name] = statement
    return statement


def every_statement() -> tuple[Statement, ...]:
    """All statements, for the test that reads each one's consistency back."""
    return tuple(_ALL.values())


# The version of an LWT-only row is three columns, the same in each such table. A CAS is conditional
# on `writer`, a uuid that is never reused, so a row that is inserted again cannot be mistaken for
# its former life [P3]. `tags` and `row_version` settle an answer that was lost (G3).

_QUEUES: Final = """SELECT name, queue_id, status, settings, lanes, home_datacenter, created_us,
                         writer, tags, row_version
                  FROM {ks}.queue"""
_QUEUE: Final = f"{_QUEUES} WHERE name = ?"
_META: Final = "SELECT value FROM {ks}.meta WHERE key = ?"

# A home data centre knows its queues while no other one answers; for unknown names, all are asked.
FIND_QUEUE: Final = _statement("find_queue", Kind.READ, _QUEUE)
READ_QUEUE: Final = _statement("read_queue", Kind.READ, _QUEUE, Reach.WORLD)
FIND_QUEUES: Final = _statement("find_queues", Kind.READ, _QUEUES)
# DISTINCT, as it reads only a part of the row [T10].
SOME_NAMES: Final = _statement(
    "some_names", Kind.READ, "SELECT DISTINCT name FROM {ks}.queue LIMIT 1000",
)  # fmt: skip
LIST_QUEUES: Final = _statement("list_queues", Kind.READ, _QUEUES, Reach.WORLD)
INSERT_QUEUE: Final = _statement(
    "insert_queue", Kind.CAS,
    """INSERT INTO {ks}.queue (name, queue_id, status, settings, lanes, home_datacenter,
              created_us, writer, tags, row_version)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS""",
    Reach.WORLD,
)  # fmt: skip

UPDATE_QUEUE: Final = _statement(
    "update_queue", Kind.CAS,
    """UPDATE {ks}.queue SET status = ?, settings = ?, writer = ?, tags = ?, row_version = ?
       WHERE name = ? IF writer = ?""",
    Reach.WORLD,
)  # fmt: skip
# Conditional on the row as read: a row that was created again meanwhile belongs to another queue.
DELETE_QUEUE: Final = _statement(
    "delete_queue", Kind.CAS, "DELETE FROM {ks}.queue WHERE name = ? IF writer = ?", Reach.WORLD,
)  # fmt: skip

READ_MONOTON: Final = _statement(
    "read_monoton", Kind.READ,
    "SELECT next_id, reserved_us, writer, tags, row_version FROM {ks}.monoton WHERE lane = ?",
)  # fmt: skip
INSERT_MONOTON: Final = _statement(
    "insert_monoton", Kind.CAS,
    """INSERT INTO {ks}.monoton (lane, next_id, reserved_us, writer, tags, row_version)
       VALUES (?, ?, ?, ?, ?, ?) IF NOT EXISTS""",
)  # fmt: skip
# Always conditional on an existing row: a missing monoton row means the queue was deleted, and a
# reservation must not create it again [P13].
RESERVE: Final = _statement(
    "reserve", Kind.CAS,
    """UPDATE {ks}.monoton SET next_id = ?, reserved_us = ?, writer = ?, tags = ?, row_version = ?
       WHERE lane = ? IF writer = ?""",
)  # fmt: skip
# Conditional on the row as read: ids reserved since would be left behind [T15].
DELETE_MONOTON: Final = _statement(
    "delete_monoton", Kind.CAS, "DELETE FROM {ks}.monoton WHERE lane = ? IF writer = ?",
)  # fmt: skip

READ_BUCKET: Final = _statement(
    "read_bucket", Kind.READ,
    """SELECT status, changed_us, sink_id, epoch, block_end, manifest, size_bytes, claims,
              writer, tags, row_version
       FROM {ks}.bucket WHERE lane = ? AND bucket = ?""",
)  # fmt: skip
INSERT_BUCKET: Final = _statement(
    "insert_bucket", Kind.CAS,
    """INSERT INTO {ks}.bucket (lane, bucket, status, changed_us, sink_id, epoch, block_end,
              writer, tags, row_version)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS""",
)  # fmt: skip
# Only the CAS that fixes the manifest writes it (I5).
FILL_BUCKET: Final = _statement(
    "fill_bucket", Kind.CAS,
    """UPDATE {ks}.bucket SET status = ?, changed_us = ?, manifest = ?, size_bytes = ?, claims = ?,
              writer = ?, tags = ?, row_version = ?
       WHERE lane = ? AND bucket = ? IF writer = ?""",
)  # fmt: skip
UPDATE_BUCKET: Final = _statement(
    "update_bucket", Kind.CAS,
    """UPDATE {ks}.bucket SET status = ?, changed_us = ?, claims = ?,
              writer = ?, tags = ?, row_version = ?
       WHERE lane = ? AND bucket = ? IF writer = ?""",
)  # fmt: skip

# Only for a bucket below the repair pointer: late writes there are inert (G5).
DELETE_BUCKET: Final = _statement(
    "delete_bucket", Kind.CAS, "DELETE FROM {ks}.bucket WHERE lane = ? AND bucket = ? IF EXISTS",
)  # fmt: skip

# These list whole partitions, by key: a full repair looks for those below the pointers.
LIST_BUCKETS: Final = _statement(
    "list_buckets", Kind.READ, "SELECT DISTINCT lane, bucket FROM {ks}.bucket",
)  # fmt: skip
LIST_MESSAGES: Final = _statement(
    "list_messages", Kind.READ, "SELECT DISTINCT lane, bucket FROM {ks}.message",
)  # fmt: skip
LIST_MONOTONS: Final = _statement(
    "list_monotons", Kind.READ, "SELECT DISTINCT lane FROM {ks}.monoton",
)  # fmt: skip

READ_SINK: Final = _statement(
    "read_sink", Kind.READ,
    """SELECT lane, changed_us, epoch, last_batch, list, list_id, list_parts, list_hash,
              query_id, checkpoint, run, past, aborts, is_once, writer, tags, row_version
       FROM {ks}.sink WHERE sink_id = ?""",
)  # fmt: skip
# A task decides by this read whether its batch is in the queue already (I7).
READ_SINK_SERIAL: Final = _statement("read_sink_serial", Kind.SERIAL_READ, READ_SINK.cql)
# Repair looks for sinks that are over; it reads each by itself before it does anything. It asks one
# replica: a quorum's read repair would write these columns alone to a replica that missed a commit,
# and its row would mix two versions [T10].
LIST_SINKS: Final = _statement(
    "list_sinks", Kind.GLANCE,
    """SELECT sink_id, lane, is_once, epoch, changed_us FROM {ks}.sink
       WHERE token(sink_id) >= ? LIMIT ?""",
)  # fmt: skip
# For a verify pass, which reads each by itself; one replica answers, so nothing is repaired.
GLANCE_SINKS: Final = _statement(
    "glance_sinks", Kind.GLANCE, "SELECT sink_id, lane FROM {ks}.sink",
)  # fmt: skip
INSERT_SINK: Final = _statement(
    "insert_sink", Kind.CAS,
    """INSERT INTO {ks}.sink (sink_id, lane, changed_us, epoch, last_batch, list, list_id,
              list_parts, list_hash, query_id, checkpoint, run, past, aborts, is_once,
              writer, tags, row_version)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS""",
)  # fmt: skip
# The commit point, and every other end of an epoch (I7).
UPDATE_SINK: Final = _statement(
    "update_sink", Kind.CAS,
    """UPDATE {ks}.sink SET lane = ?, changed_us = ?, epoch = ?, last_batch = ?, list = ?,
              list_id = ?, list_parts = ?, list_hash = ?, query_id = ?, checkpoint = ?,
              run = ?, past = ?, aborts = ?, is_once = ?, writer = ?, tags = ?, row_version = ?
       WHERE sink_id = ? IF writer = ?""",
)  # fmt: skip
# For a sink of one transaction, after that is decided and rolled forward.
DELETE_SINK: Final = _statement(
    "delete_sink", Kind.CAS, "DELETE FROM {ks}.sink WHERE sink_id = ? IF writer = ?",
)  # fmt: skip
WRITE_SINK_LIST: Final = _statement(
    "write_sink_list", Kind.WRITE,
    "INSERT INTO {ks}.sink_list (sink_id, list_id, part, data) VALUES (?, ?, ?, ?)",
)  # fmt: skip
READ_SINK_LIST: Final = _statement(
    "read_sink_list", Kind.READ,
    "SELECT part, data FROM {ks}.sink_list WHERE sink_id = ? AND list_id = ?",
)  # fmt: skip
# It asks one replica, without the lists themselves: read repair would write rows without data [P4].
LIST_SINK_LISTS: Final = _statement(
    "list_sink_lists", Kind.GLANCE, "SELECT sink_id, list_id FROM {ks}.sink_list",
)  # fmt: skip
# For a list that no row names, or can name any more [T19].
DROP_SINK_LIST: Final = _statement(
    "drop_sink_list", Kind.WRITE, "DELETE FROM {ks}.sink_list WHERE sink_id = ? AND list_id = ?",
)  # fmt: skip

# A lead saves double work and decides nothing, so it needs no tags: a client in doubt asks again.
READ_LEAD: Final = _statement(
    "read_lead", Kind.READ, "SELECT holder, since_us FROM {ks}.leader WHERE name = ?",
)  # fmt: skip
# Both columns are null if nobody leads. `since_us` decides its end; the TTL is for older releases,
# which wait for it, and removes the row.
TAKE_LEAD: Final = _statement(
    "take_lead", Kind.CAS,
    """UPDATE {ks}.leader USING TTL ? SET holder = ?, since_us = ?
       WHERE name = ? IF holder = ? AND since_us = ?""",
)  # fmt: skip
KEEP_LEAD: Final = _statement(
    "keep_lead", Kind.CAS,
    "UPDATE {ks}.leader USING TTL ? SET holder = ?, since_us = ? WHERE name = ? IF holder = ?",
)  # fmt: skip
GIVE_LEAD_UP: Final = _statement(
    "give_lead_up", Kind.CAS, "DELETE FROM {ks}.leader WHERE name = ? IF holder = ?",
)  # fmt: skip

WRITE_MESSAGE: Final = _statement(
    "write_message", Kind.WRITE,
    """INSERT INTO {ks}.message (lane, bucket, first, part, count, parts, payload, due_us,
              enqueued_us, expires_us, has_ttl, has_key)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
)  # fmt: skip
# All columns, always: blocking read repair writes back only selected columns, so a seal's scan of
# keys alone would make torn messages [P4].
SCAN_MESSAGES: Final = _statement(
    "scan_messages", Kind.READ,
    """SELECT first, part, count, parts, payload, due_us, enqueued_us, expires_us, has_key
       FROM {ks}.message WHERE lane = ? AND bucket = ?""",
    rows_per_page=ROWS_PER_PAGE,
)  # fmt: skip
READ_MESSAGES: Final = _statement(
    "read_messages", Kind.READ,
    """SELECT first, part, count, parts, payload, due_us, enqueued_us, expires_us, has_key
       FROM {ks}.message WHERE lane = ? AND bucket = ? AND first >= ? AND first <= ?""",
    rows_per_page=ROWS_PER_PAGE,
)  # fmt: skip
# It decides nothing: it only shows whether a bucket is worth a seal now.
PEEK_BUCKET: Final = _statement(
    "peek_bucket", Kind.READ,
    "SELECT first FROM {ks}.message WHERE lane = ? AND bucket = ? LIMIT 1",
)  # fmt: skip
# For a source that waits until there is enough: an estimate that reads no payload.
COUNT_MESSAGES: Final = _statement(
    "count_messages", Kind.GLANCE,
    "SELECT first, part, count, due_us, expires_us FROM {ks}.message WHERE lane = ? AND bucket = ?",
)  # fmt: skip
# For repair, which checks whether something has expired in a bucket that nobody reads.
OLDEST_MESSAGE: Final = _statement(
    "oldest_message", Kind.GLANCE,
    "SELECT enqueued_us, has_ttl FROM {ks}.message WHERE lane = ? AND bucket = ? LIMIT 1",
)  # fmt: skip
# It filters one partition, and only if some message in it has a time to live.
EXPIRED_MESSAGE: Final = _statement(
    "expired_message", Kind.GLANCE,
    """SELECT first FROM {ks}.message WHERE lane = ? AND bucket = ? AND expires_us <= ?
       LIMIT 1 ALLOW FILTERING""",
)  # fmt: skip

# A day ahead: late and hinted writes of a dropped message stay shadowed [P14] [P27].
DROP_MESSAGES: Final = _statement(
    "drop_messages", Kind.WRITE,
    "DELETE FROM {ks}.message USING TIMESTAMP ? WHERE lane = ? AND bucket = ?",
)  # fmt: skip
WRITE_OVERLAY: Final = _statement(
    "write_overlay", Kind.WRITE,
    """INSERT INTO {ks}.overlay (lane, bucket, id, revision, part, parts, payload)
       VALUES (?, ?, ?, ?, ?, ?, ?)""",
)  # fmt: skip
READ_OVERLAY: Final = _statement(
    "read_overlay", Kind.READ,
    """SELECT part, parts, payload FROM {ks}.overlay
       WHERE lane = ? AND bucket = ? AND id = ? AND revision = ?""",
    rows_per_page=ROWS_PER_PAGE,
)  # fmt: skip
DROP_OVERLAY: Final = _statement(
    "drop_overlay", Kind.WRITE,
    """DELETE FROM {ks}.overlay USING TIMESTAMP ?
       WHERE lane = ? AND bucket = ? AND id = ? AND revision = ?""",
)  # fmt: skip
DROP_OVERLAYS: Final = _statement(
    "drop_overlays", Kind.WRITE,
    "DELETE FROM {ks}.overlay USING TIMESTAMP ? WHERE lane = ? AND bucket = ?",
)  # fmt: skip

READ_POINTERS: Final = _statement(
    "read_pointers", Kind.READ, "SELECT kind, value FROM {ks}.pointer WHERE lane = ?",
)  # fmt: skip
# The largest write time wins: no other statement may ever touch this table (G4) [P19].
ADVANCE_POINTER: Final = _statement(
    "advance_pointer", Kind.WRITE,
    "UPDATE {ks}.pointer USING TIMESTAMP ? SET value = ? WHERE lane = ? AND kind = ?",
)  # fmt: skip

WRITE_HINT: Final = _statement(
    "write_hint", Kind.WRITE,
    "INSERT INTO {ks}.expiry (lane, hour, minute, bucket) VALUES (?, ?, ?, ?) USING TTL ?",
)  # fmt: skip
READ_OLD_HINTS: Final = _statement(
    "read_old_hints", Kind.READ,
    """SELECT minute, bucket FROM {ks}.expiry
       WHERE lane = ? AND hour = ? AND minute >= ? AND minute <= ?""",
)  # fmt: skip
READ_HINTS: Final = _statement(
    "read_hints", Kind.READ,
    """SELECT minute, bucket FROM {ks}.expiry
       WHERE lane = ? AND hour = ? AND minute IN ? AND bucket >= ?""",
)  # fmt: skip

ADD_TO_SCHEDULE: Final = _statement(
    "add_to_schedule", Kind.WRITE,
    "INSERT INTO {ks}.schedule (lane, year, period, priority) VALUES (?, ?, ?, ?)",
)  # fmt: skip
READ_SCHEDULE: Final = _statement(
    "read_schedule", Kind.READ,
    """SELECT period, priority FROM {ks}.schedule
       WHERE lane = ? AND year = ? AND period >= ? AND period < ?""",
)  # fmt: skip
# For a due lane that is finished, or was never begun: no lane of its period is created again [U2].
REMOVE_FROM_SCHEDULE: Final = _statement(
    "remove_from_schedule", Kind.WRITE,
    "DELETE FROM {ks}.schedule WHERE lane = ? AND year = ? AND period = ? AND priority = ?",
)  # fmt: skip
LIST_SCHEDULES: Final = _statement(
    "list_schedules", Kind.READ, "SELECT DISTINCT lane, year FROM {ks}.schedule",
)  # fmt: skip

WRITE_ALIVE: Final = _statement(
    "write_alive", Kind.WRITE,
    "INSERT INTO {ks}.alive (sink_id, at_us) VALUES (?, ?) USING TIMESTAMP ? AND TTL ?",
)  # fmt: skip
READ_ALIVE: Final = _statement(
    "read_alive", Kind.READ, "SELECT at_us FROM {ks}.alive WHERE sink_id = ?",
)  # fmt: skip

FIND_META: Final = _statement("find_meta", Kind.READ, _META)
READ_META: Final = _statement("read_meta", Kind.READ, _META, Reach.WORLD)
WRITE_META: Final = _statement(
    "write_meta", Kind.WRITE, "INSERT INTO {ks}.meta (key, value) VALUES (?, ?)", Reach.WORLD,
)  # fmt: skip
PROBE_TIMESTAMP: Final = _statement(
    "probe_timestamp", Kind.WRITE,
    "UPDATE {ks}.meta USING TIMESTAMP ? AND TTL 60 SET value = ? WHERE key = ?",
    Reach.WORLD,
)  # fmt: skip

# Unlike now(), this goes back when the node's clock is set back: a node's timeuuids only ascend,
# and would stand still until the wrong time has come.
READ_NODE_TIME: Final = _statement(
    "read_node_time", Kind.SYSTEM, "SELECT currentTimestamp() AS now FROM system.local",
)  # fmt: skip
READ_REPLICATION: Final = _statement(
    "read_replication", Kind.SYSTEM,
    "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = '{ks}'",
)  # fmt: skip
READ_PAXOS_VARIANT: Final = _statement(
    "read_paxos_variant", Kind.SYSTEM,
    "SELECT value FROM system_views.settings WHERE name = 'paxos_variant'",
)  # fmt: skip
