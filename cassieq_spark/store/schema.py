"""Create and check the keyspace and its tables; each table says why it has its settings."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from typing import Final

from cassieq_spark.errors import (
    ReplicationDiffers,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
    UsageError,
)
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.pointer import DELETED
from cassieq_spark.store import statements
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.statements import READ_REPLICATION

Asked = Mapping[str, str | int]
"""A replication, as in CQL."""

BY_DATACENTER: Final = "NetworkTopologyStrategy"
_FACTOR: Final = "replication_factor"
_EXAMPLE: Final = "For example, give {'class': 'NetworkTopologyStrategy', 'datacenter1': 3}"

SCHEMA_VERSION: Final = 1
_VERSION_KEY: Final = "schema_version"
_DAY_US: Final = 86_400_000_000

# Late or resurrected writes land below the repair pointer, where they are inert (G5). So tombstones
# need to outlive a hint window (3 h), not Cassandra's usual ten days.
GC_GRACE_S: Final = 86_400
_GC_GRACE: Final = f"gc_grace_seconds = {GC_GRACE_S}"

# A QUORUM read must be sticky: a write that one reader saw, each later one sees. This is
# Cassandra's default. It is spelled out because acknowledged puts are lost without it [P20].
_STICKY: Final = "read_repair = 'BLOCKING'"

# Unified compaction in its levelled form. CAS overwrites these small rows over and over, and they
# are read by key: few sstables per read matter more than write amplification on a few bytes.
_SMALL_ROWS: Final = (
    "compaction = {'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'L10'}"
)

# Unified compaction in its tiered form. These rows are written once, read once, and dropped by
# partition: frequent compaction is wasted work. Time windows are wrong here: drops land in newer
# windows than the data they delete, and its space would never be freed [P27].
_WRITE_ONCE: Final = (
    "compaction = {'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'T4'}"
)

# Chunks arrive compressed (zstd): compressing them again costs time and saves nothing.
_COMPRESSED_ALREADY: Final = "compression = {'enabled': 'false'}"

# The columns of each table by its name. The tables of one dict have the same options.
_LWT_ONLY: Final = {
    "queue": """name text PRIMARY KEY, queue_id uuid, status text, settings text,
        lanes frozen<list<uuid>>, home_datacenter text, created_us bigint""",
    "monoton": "lane uuid PRIMARY KEY, next_id bigint, reserved_us bigint",
    "bucket": """lane uuid, bucket bigint, status text, changed_us bigint,
        sink_id text, epoch bigint, block_end bigint, manifest blob, size_bytes bigint, claims blob,
        PRIMARY KEY ((lane, bucket))""",
    "sink": """sink_id text PRIMARY KEY, lane uuid, changed_us bigint, epoch bigint,
        last_batch bigint, list blob, list_id uuid, list_parts int, list_hash blob,
        query_id text, checkpoint text, run text, past blob, aborts int, is_once boolean""",
    # Keys have a table of their own: a request names its key, and not its account.
    "account": """name text PRIMARY KEY, account_id uuid, status text,
        key_ids frozen<list<text>>, created_us bigint""",
    "account_key": """key_id text PRIMARY KEY, account text, account_id uuid, secret blob,
        grants text, is_disabled boolean, created_us bigint""",
    # Each key has a partition: the first to put it wins, and nobody else waits for that.
    "dedup": """lane uuid, key blob, at_lane uuid, bucket bigint, first int, message_id uuid,
        put_us bigint, PRIMARY KEY ((lane, key))""",
    # The schedules of programs. Each data centre touches its own: a row has one electorate.
    "timetable": """datacenter text, name text, queue text, lane uuid, status text, definition blob,
        state blob, touch_us bigint, PRIMARY KEY ((datacenter, name))""",
}
_SMALL: Final = {
    "leader": "name text PRIMARY KEY, holder uuid, since_us bigint",  # LWT only, too
    # No LWT, DELETE, TTL or initial insert, ever: each would write with a clock's timestamp, and no
    # value could win against it again (G4) [P19]. Each lane has one partition: one read gets all
    # pointers.
    "pointer": "lane uuid, kind text, value bigint, PRIMARY KEY (lane, kind)",
    # The due lanes of a queue; ``lane`` is its first lane. A partition holds one year, and a slice
    # begins above what was deleted [U16].
    "schedule": """lane uuid, year int, period bigint, priority int,
        PRIMARY KEY ((lane, year), period, priority)""",
    "alive": "sink_id text PRIMARY KEY, at_us bigint",  # heartbeats end by their TTL, as hints do
    "key_use": "key_id text PRIMARY KEY, at_us bigint",
    "meta": "key text PRIMARY KEY, value text",
}
_WRITTEN_ONCE: Final = {
    "message": """lane uuid, bucket bigint, first int, part int, count int, parts int, payload blob,
        due_us bigint, enqueued_us bigint, expires_us bigint, has_key boolean,
        has_ttl boolean static, PRIMARY KEY ((lane, bucket), first, part)""",
    "overlay": """lane uuid, bucket bigint, id int, revision bigint, part int, parts int,
        payload blob, PRIMARY KEY ((lane, bucket), id, revision, part)""",
    "sink_list": """sink_id text, list_id uuid, part int, data blob,
        PRIMARY KEY (sink_id, list_id, part)""",
    # The manifest of a dropped bucket whose messages had keys.
    "kept": "lane uuid, bucket bigint, manifest blob, PRIMARY KEY ((lane, bucket))",
    # Hints end by their TTL; nobody deletes them [R13].
    "expiry": """lane uuid, hour bigint, minute bigint, bucket bigint,
        PRIMARY KEY ((lane, hour), minute, bucket)""",
}


def _tables() -> Iterator[tuple[str, str]]:
    for columns_of, more, options in (
        (_LWT_ONLY, ", writer uuid, tags blob, row_version bigint", _SMALL_ROWS),
        (_SMALL, "", _SMALL_ROWS),
        (_WRITTEN_ONCE, "", _WRITE_ONCE),
    ):
        for name, columns in columns_of.items():
            found = options + (f" AND {_COMPRESSED_ALREADY}" if name == "message" else "")
            cql = " ".join(columns.split())
            yield name, f"({cql}{more}) WITH {_STICKY} AND {_GC_GRACE} AND {found}"


TABLES: Final = dict(_tables())

_logger = get_logger("store")


async def apply(
    session: CqlSession,
    asked: Mapping[str, object] | None,
) -> None:
    """Create missing parts of keyspace and tables, prove the cluster fit, record the version.

    Idempotent; several clients may run it at once.

    Args:
        asked: The replication; see `create_keyspace`.

    Raises:
        UsageError, ReplicationDiffers: The replication is malformed, or differs from the present
            one; nothing was changed.
        SchemaMismatch: The tables have another version, or the cluster has a guardrail on write
            timestamps, which pointers need (G4) [R23], or an unsafe variant of Paxos.
    """
    await _refuse_another_version(session)
    await create_keyspace(session, asked)
    for name, body in TABLES.items():
        await session.define(f"CREATE TABLE IF NOT EXISTS {session.keyspace}.{name} {body}")
    await _refuse_another_version(session)
    await _prove_timestamps(session)
    await _check_paxos(session)
    await session.run(statements.WRITE_META, (_VERSION_KEY, str(SCHEMA_VERSION)))


async def check(session: CqlSession) -> None:
    """Refuse to work on a keyspace of another version.

    Raises:
        SchemaMissing: No keyspace has that name, or it has no tables.
        SchemaMismatch: The tables have another version.
    """
    found = await read_version(session)
    if found != SCHEMA_VERSION:
        raise _other_version(session, found)


async def read_version(session: CqlSession) -> int | None:
    """Read the recorded schema version; None until the first `apply` has ended."""
    # The version never changes: if this data centre has it, no other needs to be up.
    with session.within(session.left_s()):
        rows = await session.attempt(statements.FIND_META, (_VERSION_KEY,))
        if not rows or rows[0].value is None:
            rows = await session.run(statements.READ_META, (_VERSION_KEY,))
    return int(rows[0].value) if rows and rows[0].value is not None else None


async def _refuse_another_version(session: CqlSession) -> None:
    """Check the version before anything is created, and again after: another may be faster."""
    try:
        found = await read_version(session)
    except SchemaMissing:
        return
    if found not in (None, SCHEMA_VERSION):
        raise _other_version(session, found)


def _other_version(session: CqlSession, found: int | None) -> SchemaMismatch:
    return SchemaMismatch(
        f"keyspace {session.keyspace!r} has schema version {found}, but this release works with "
        f"version {SCHEMA_VERSION}. "
        + (
            "Run client.bootstrap() to finish it"
            if found is None
            else "Use the matching release, or migrate the keyspace"
        )
    )


async def _prove_timestamps(session: CqlSession) -> None:
    """Write with each kind of timestamp that the protocol uses, and read it back [R23].

    The largest is that of a deleted queue's pointer; a drop writes one day ahead.
    """
    key = f"probe:{session.entropy.new_uuid()}"
    for stamp in (1, session.clock.now_us() + _DAY_US, DELETED):
        try:
            await session.run(statements.PROBE_TIMESTAMP, (stamp, str(stamp), key))
        except (UsageError, StoreUnavailable) as error:
            raise _no_timestamps(stamp) from error
        row = await session.one(statements.READ_META, (key,))
        if row is None or row.value != str(stamp):
            raise _no_timestamps(stamp)


def _no_timestamps(stamp: int) -> SchemaMismatch:
    return SchemaMismatch(
        f"the cluster refuses a write timestamp of {stamp}, which max-wins pointers need. Switch "
        "off minimum_timestamp_fail_threshold and maximum_timestamp_fail_threshold in "
        "cassandra.yaml"
    )


async def _check_paxos(session: CqlSession) -> None:
    """Refuse variants whose reads or refusals leave rounds open; warn of v1, the default.

    Under such a variant, a proposal that a read or a refusal did not see may still happen, so a
    settled outcome could be another one later (G3). v1 is not safe across range movements [P21].

    Raises:
        SchemaMismatch: The cluster has such a variant.
    """
    row = await session.one(statements.READ_PAXOS_VARIANT)
    if row is None or row.value == "v2":
        return
    if "without" in row.value:
        raise SchemaMismatch(
            f"the cluster has paxos_variant: {row.value}, under which an LWT that was refused may "
            "happen later. Set paxos_variant: v2 in cassandra.yaml on all nodes"
        )
    event(_logger, "paxos_variant_v1", variant=row.value)


async def create_keyspace(session: CqlSession, given: object) -> None:
    """Create the keyspace if it is missing; an existing one must match the request.

    Args:
        given: A map as in CQL; None: one copy in this data centre, or what the keyspace has.

    Raises:
        UsageError: It is not a replication, names a data centre that does not exist, or asks for
            more copies than the nodes can form a quorum of. Nothing was created.
        ReplicationDiffers: The keyspace exists with another replication. Nothing was changed.
    """
    default: Asked = {"class": BY_DATACENTER, session.datacenter: 1}
    asked = default if given is None else _checked(given)
    nodes = session.nodes()
    _check_datacenters(session, asked, nodes)
    if (found := await _read_replication(session)) is None:
        _check_quorum(asked, nodes)
        await session.define(
            f"CREATE KEYSPACE IF NOT EXISTS {session.keyspace} WITH replication = {_cql(asked)}"
        )
        found = await _read_replication(session)  # another client may have created it first
    if found is None:
        return
    if given is None:
        if has_one_copy(found) and sum(nodes.values()) > 1:
            event(_logger, "keyspace_has_one_copy", keyspace=session.keyspace)
        return
    wanted, there = _normal(asked, nodes), _normal(found, nodes)
    if wanted != there:
        raise ReplicationDiffers(
            f"keyspace {session.keyspace!r} exists with replication {_cql(there)}, but you asked "
            f"for {_cql(wanted)}. Nothing was changed. To keep what it has, leave the replication "
            f"out. To change it, run ALTER KEYSPACE {session.keyspace} WITH replication = "
            f"{_cql(wanted)}, then nodetool repair --full {session.keyspace} on each node"
        )


def has_one_copy(replication: Asked) -> bool:
    """Whether the loss of one node would lose messages."""
    copies = [str(value) for name, value in replication.items() if name != "class"]
    return all(one.isdecimal() for one in copies) and sum(map(int, copies)) == 1


def _checked(given: object) -> Asked:
    if not isinstance(given, Mapping) or "class" not in given:
        raise UsageError(f"replication {reprlib.repr(given)} has no 'class'. {_EXAMPLE}")
    for name, value in given.items():
        if not isinstance(name, str):
            raise UsageError(
                f"replication names {reprlib.repr(name)}, which is not text. {_EXAMPLE}"
            )
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise UsageError(
                f"replication value {reprlib.repr(value)} is neither text nor a whole number. "
                f"{_EXAMPLE}"
            )
    return dict(given)


def _check_datacenters(session: CqlSession, asked: Asked, nodes: Mapping[str, int]) -> None:
    """Check data centres by hand: Cassandra does not if the keyspace exists already."""
    if _class(asked) != BY_DATACENTER or not nodes:
        return
    unknown = sorted(asked.keys() - nodes.keys() - {"class", _FACTOR})
    if unknown:
        raise UsageError(
            f"replication of keyspace {session.keyspace!r} names data centre "
            f"{' and '.join(map(repr, unknown))}, which the cluster does not have. It has "
            f"{', '.join(map(repr, sorted(nodes)))}: name one of them"
        )
    if len(_normal(asked, nodes)) == 1:
        raise UsageError(
            f"replication of keyspace {session.keyspace!r} keeps no copy anywhere: {_cql(asked)}. "
            f"{_EXAMPLE}"
        )


def _check_quorum(asked: Asked, nodes: Mapping[str, int]) -> None:
    """Check for a quorum: without one not even the version of the tables could be written."""
    if _class(asked) != BY_DATACENTER:
        return
    for datacenter, copies in _normal(asked, nodes).items():
        if not copies.isdigit():  # the class, or transient replicas, which Cassandra checks
            continue
        if nodes and (quorum := int(copies) // 2 + 1) > nodes[datacenter]:
            raise UsageError(
                f"data centre {datacenter!r} has {nodes[datacenter]} nodes, but a quorum of "
                f"{copies} copies is {quorum}, so nothing could be read or written. Ask for fewer "
                "copies, or add nodes first"
            )


async def _read_replication(session: CqlSession) -> dict[str, str] | None:
    """Read the keyspace's replication; None if no keyspace has that name."""
    row = await session.one(READ_REPLICATION)
    return None if row is None else dict(row.replication)


def _normal(replication: Asked, nodes: Mapping[str, int]) -> dict[str, str]:
    """Return a replication as Cassandra stores it: short class name, each data centre by name."""
    options = {
        name: str(int(value)) if str(value).isdecimal() else str(value)
        for name, value in replication.items()
        if name != "class"
    }
    if _class(replication) == BY_DATACENTER:
        factor = options.pop(_FACTOR, None)
        if factor is not None:
            options = {**dict.fromkeys(nodes, factor), **options}
        options = {name: value for name, value in options.items() if value != "0"}
    return {"class": _class(replication), **dict(sorted(options.items()))}


def _class(replication: Asked) -> str:
    return str(replication["class"]).rpartition(".")[2]


def _cql(replication: Asked) -> str:
    pairs = (f"{_literal(name)}: {_literal(value)}" for name, value in replication.items())
    return f"{{{', '.join(pairs)}}}"


def _literal(value: str | int) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
