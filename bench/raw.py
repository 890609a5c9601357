"""The raw limit: the plain driver writes and reads what our sink stores, without a queue.

Its client is a process that lives for the whole run, connected before anything is timed.
"""

from __future__ import annotations

import multiprocessing
import uuid
from collections import deque
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import DCAwareRoundRobinPolicy, TokenAwarePolicy

from cassieq_spark.store import chunk

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

IN_FLIGHT = 8
DISTINCT = 64
"""Payloads made before the clock runs; random bytes do not compress, so repeating them is fair."""

_WRITE = """INSERT INTO {ks}.message (lane, bucket, first, part, count, parts, payload, enqueued_us)
    VALUES (?, ?, ?, 0, ?, 1, ?, ?)"""
_READ = """SELECT first, part, count, parts, payload, due_us, enqueued_us FROM {ks}.message
    WHERE lane = ? AND bucket = ?"""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is written: random bodies of one length, so many a row, so many rows a partition."""

    body_bytes: int = 96
    chunk_messages: int = 1_000
    chunks_per_bucket: int = 10

    @property
    def bucket_messages(self) -> int:
        """Messages a partition."""
        return self.chunk_messages * self.chunks_per_bucket

    def bodies(self, count: int, seed: int) -> pa.Array:
        """``count`` random bodies, binary."""
        data = np.random.default_rng(seed).bytes(count * self.body_bytes)
        offsets = np.arange(count + 1, dtype=np.int32) * self.body_bytes
        return pa.BinaryArray.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )


SMALL = Shape()


@dataclass(frozen=True, slots=True)
class Task:
    """``buckets`` partitions of a lane to ``write`` or to ``read``."""

    verb: str
    lane: uuid.UUID
    buckets: int
    shape: Shape


class RawSide:
    """One client process with ``IN_FLIGHT`` statements under way."""

    def __init__(self, *, port: int, keyspace: str, seed: int, shape: Shape = SMALL) -> None:
        self._shape = shape
        spawn = multiprocessing.get_context("spawn")
        self._end, there = spawn.Pipe()
        self._worker = spawn.Process(
            target=_work, args=(there, port, keyspace, seed, shape), daemon=True
        )
        self._worker.start()
        self._end.recv()

    def run(self, verb: str, lane: uuid.UUID, messages: int) -> float:
        """Seconds to ``write`` or ``read`` so many messages; all of them are counted.

        Raises:
            RuntimeError: A count is off.
        """
        began = perf_counter()
        buckets = messages // self._shape.bucket_messages
        self._end.send(Task(verb, lane, buckets, self._shape))
        done = self._end.recv()
        took = perf_counter() - began
        if done != messages:
            raise RuntimeError(f"raw {verb}: {done} messages instead of {messages}")
        return took

    def __enter__(self) -> Self:
        """Stop the worker with the block."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop the worker."""
        self._end.send(None)
        self._worker.join(10)
        if self._worker.is_alive():
            self._worker.kill()


@cache
def connected(port: int, keyspace: str) -> tuple[Any, dict[str, Any]]:
    """One a process, as ours."""
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy("datacenter1")),
        consistency_level=ConsistencyLevel.QUORUM,
        request_timeout=30,
    )
    cluster = Cluster(
        ["127.0.0.1"],
        port=port,
        protocol_version=5,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    session = cluster.connect()
    statements = {
        "write": session.prepare(_WRITE.format(ks=keyspace)),
        "read": session.prepare(_READ.format(ks=keyspace)),
    }
    for statement in statements.values():
        statement.consistency_level = ConsistencyLevel.QUORUM
    return session, statements


def _work(end: Connection, port: int, keyspace: str, seed: int, shape: Shape) -> None:
    session, statements = connected(port, keyspace)
    payloads = [
        chunk.encode(
            pa.RecordBatch.from_arrays(
                [shape.bodies(shape.chunk_messages, seed * DISTINCT + at)], names=["body"]
            )
        )
        for at in range(DISTINCT)
    ]
    end.send(True)
    while (task := end.recv()) is not None:
        if task.verb == "write":
            end.send(_write(session, statements["write"], payloads, task))
        else:
            end.send(_read(session, statements["read"], task))
    session.cluster.shutdown()


class RawRows:
    """Writes chunks as rows, bucket after bucket, ``IN_FLIGHT`` at once.

    Takes them as a bulk writer does, so that Spark's tasks can write without a queue, too.
    """

    def __init__(
        self, session: Any, statement: Any, lane: uuid.UUID, *, first: int, bucket_messages: int
    ) -> None:
        self._session = session
        self._statement = statement
        self._lane = lane
        self._bucket = first
        self._bucket_messages = bucket_messages
        self._at = 0
        self._sent: deque[Any] = deque()

    def capacity(self) -> int:
        """As a bulk writer's."""
        return self._bucket_messages - self._at

    def add(self, payload: bytes, count: int, due_us: Sequence[int] | None = None) -> None:  # noqa: ARG002 - as a bulk writer's
        """Write one row."""
        if len(self._sent) >= IN_FLIGHT:
            self._sent.popleft().result()
        params = (self._lane, self._bucket, self._at, count, payload, 1)
        self._sent.append(self._session.execute_async(self._statement, params))
        self._at += count
        if self._at >= self._bucket_messages:
            self._bucket, self._at = self._bucket + 1, 0

    def flush(self) -> None:
        """Wait for all."""
        while self._sent:
            self._sent.popleft().result()


def _write(session: Any, statement: Any, payloads: list[bytes], task: Task) -> int:
    each, chunks = task.shape.chunk_messages, task.buckets * task.shape.chunks_per_bucket
    rows = RawRows(
        session, statement, task.lane, first=0, bucket_messages=task.shape.bucket_messages
    )
    for at in range(chunks):
        rows.add(payloads[at % DISTINCT], each)
    rows.flush()
    return chunks * each


def _read(session: Any, statement: Any, task: Task) -> int:
    sent: deque[Any] = deque()
    count = 0
    for bucket in range(task.buckets):
        if len(sent) >= IN_FLIGHT:
            count += sum(row.count for row in sent.popleft().result())
        sent.append(session.execute_async(statement, (task.lane, bucket)))
    while sent:
        count += sum(row.count for row in sent.popleft().result())
    return count
