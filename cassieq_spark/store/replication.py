"""Create the keyspace, and check its replication against the request and the nodes."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from cassieq_spark.errors import ReplicationDiffers, UsageError
from cassieq_spark.log import event, get_logger
from cassieq_spark.store.statements import READ_REPLICATION

if TYPE_CHECKING:
    from cassieq_spark.store.session import CqlSession

Asked = Mapping[str, str | int]

BY_DATACENTER: Final = "NetworkTopologyStrategy"

_logger = get_logger("store")

_FACTOR: Final = "replication_factor"
_EXAMPLE: Final = "For example, give {'class': 'NetworkTopologyStrategy', 'datacenter1': 3}"


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
    if (found := await _read(session)) is None:
        _check_quorum(asked, nodes)
        await session.define(
            f"CREATE KEYSPACE IF NOT EXISTS {session.keyspace} WITH replication = {_cql(asked)}"
        )
        found = await _read(session)  # another client may have created it first
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


async def _read(session: CqlSession) -> dict[str, str] | None:
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
