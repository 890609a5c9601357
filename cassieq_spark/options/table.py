"""`OPTIONS`: every option, one row each, and nowhere else (conventions 4)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from cassieq_spark.model.sizes import (
    BUCKET_BYTES,
    CHUNK_BYTES,
    CHUNK_MESSAGES,
    MAX_CHUNK_MESSAGES,
    PART_BYTES,
)
from cassieq_spark.options import values
from cassieq_spark.options.values import Values

ENV_PREFIX: Final = "CASSIEQ_"

THIRTY_DAYS_S: Final = 30 * 86_400.0
"""The longest visibility timeout (G6)."""


class Scope(Enum):
    """Who takes an option; the value is how errors call it."""

    CONNECTION = "connect()"
    SOURCE = "the cassieq source"
    READ = "the cassieq batch reader"
    SINK = "the cassieq sink"
    QUEUE = "create_queue()"
    SPARK = "Spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        default: Parsed; None: unset.
        unit: Of a number, for the reference.
        example: As a user writes it; where there is a default that is one.
        has_variable: Whether an environment variable may set it. Not what names one writer's
            transaction: two writers of one environment would share it.
        is_secret: Whether no error may show its value.
    """

    name: str
    scopes: frozenset[Scope]
    values: Values[Any]
    doc: str
    default: Any = None
    unit: str = ""
    example: Any = None
    is_required: bool = False
    has_variable: bool = True
    is_secret: bool = False
    since: str = "0.1"

    @property
    def variable(self) -> str:
        """The environment variable: ``contactPoints`` is ``CASSIEQ_CONTACT_POINTS``."""
        return ENV_PREFIX + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).upper()


_SOURCE: Final = frozenset({Scope.SOURCE})
_READING: Final = frozenset({Scope.SOURCE, Scope.READ})
_SINK: Final = frozenset({Scope.SINK})
_FORMAT: Final = frozenset({Scope.SOURCE, Scope.READ, Scope.SINK})
_EVERYWHERE: Final = _FORMAT | {Scope.CONNECTION}
_QUEUE: Final = frozenset({Scope.QUEUE})
_SPARK: Final = frozenset({Scope.SPARK})

OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        name="contactPoints",
        scopes=_EVERYWHERE,
        values=values.contact_points(),
        is_required=True,
        example="10.0.0.1:9042,10.0.0.2:9042",
        doc="Cassandra nodes to connect to first. A port that is left out is 9042.",
    ),
    Option(
        name="keyspace",
        scopes=_EVERYWHERE,
        values=values.keyspace(),
        default="cassieq",
        doc="The keyspace that `client.bootstrap()` made.",
    ),
    Option(
        name="datacenter",
        scopes=_EVERYWHERE,
        values=values.text(200),
        example="datacenter1",
        doc="The local data centre. Unset: that of the contact points.",
    ),
    Option(
        name="connectTimeoutSeconds",
        scopes=_EVERYWHERE,
        values=values.seconds(1, 60),
        default=10.0,
        unit="seconds",
        doc="How long to wait for a node to answer at all.",
    ),
    Option(
        name="username",
        scopes=_EVERYWHERE,
        values=values.text(200),
        example="billing",
        doc="The role to log in as; needs `password`. Unset: no login.",
    ),
    # Spark blanks an option whose name has "password" in it (spark.redaction.regex) where it
    # prints plans; so the names of secrets must have it.
    Option(
        name="password",
        scopes=_EVERYWHERE,
        values=values.secret(1_000),
        example="***",
        is_secret=True,
        doc="Of `username`. Better given by its variable than in a program.",
    ),
    Option(
        name="sslCaFile",
        scopes=_EVERYWHERE,
        values=values.file_path(),
        example="/etc/cassieq/ca.pem",
        doc="PEM file with the certificates of the CAs that may sign a node's. Set: TLS, and "
        "nothing else; unset: no TLS. On every machine that runs tasks, as the two below.",
    ),
    Option(
        name="sslCertFile",
        scopes=_EVERYWHERE,
        values=values.file_path(),
        example="/etc/cassieq/client.pem",
        doc="PEM file with this client's certificate, and those between it and its CA, where "
        "nodes ask for one.",
    ),
    Option(
        name="sslKeyFile",
        scopes=_EVERYWHERE,
        values=values.file_path(),
        example="/etc/cassieq/client.key",
        doc="PEM file with the key of `sslCertFile`. Unset: it is in that file.",
    ),
    Option(
        name="sslKeyPassword",
        scopes=_EVERYWHERE,
        values=values.secret(1_000),
        example="***",
        is_secret=True,
        doc="Of an encrypted key.",
    ),
    Option(
        name="sslVerifyHostname",
        scopes=_EVERYWHERE,
        values=values.flag(),
        default=True,
        doc="Whether a node's certificate must name the address that is connected to. Drivers "
        "connect to addresses that nodes tell each other: certificates need those.",
    ),
    Option(
        name="queue",
        scopes=_FORMAT,
        values=values.queue_name(),
        is_required=True,
        example="orders",
        doc="The queue to read or to write.",
    ),
    Option(
        name="minPartitions",
        scopes=_READING,
        values=values.whole(1, 100_000),
        unit="input partitions",
        example=16,
        doc="Spread a batch over at least so many tasks, as far as there are messages. Unset: as "
        "many as the driver's machine has cores, one per 10,000 to 100,000 messages.",
    ),
    Option(
        name="maxMessagesPerTrigger",
        scopes=_SOURCE,
        values=values.whole(1, 10**12),
        unit="messages",
        example=100_000,
        doc="Most messages in one micro-batch. Unset: all that are visible.",
    ),
    Option(
        name="visibilityTimeout",
        scopes=_SOURCE,
        values=values.seconds(0.1, THIRTY_DAYS_S),
        unit="seconds",
        example="30s",
        doc="How long messages of a batch stay hidden from others if the query dies; renewed while "
        "it runs. Unset: the queue's.",
    ),
    Option(
        name="consumer",
        scopes=_SOURCE,
        values=values.text(200),
        example="billing",
        doc="A name that shows who holds a lease. Unset: one made of the run's id.",
    ),
    Option(
        name="onLeaseLost",
        scopes=_SOURCE,
        values=values.one_of("skip", "fail"),
        default="skip",
        doc="When a restarted query finds messages of its batch with another consumer: go on "
        "without them, or fail.",
    ),
    Option(
        name="failOnDataLoss",
        scopes=_SOURCE,
        values=values.flag(),
        default=True,
        doc="Fail when the queue was deleted and created anew under the checkpoint.",
    ),
    Option(
        name="maxBatchDuration",
        scopes=_SOURCE,
        values=values.seconds(1, THIRTY_DAYS_S),
        default=3_600.0,
        unit="seconds",
        doc="Leases are renewed no longer than this after Spark's last call.",
    ),
    Option(
        name="sinkId",
        scopes=_SINK,
        values=values.text(400),
        example="orders-by-country",
        has_variable=False,
        doc="Names the transactions of a writer (Delta's `txnAppId`). Unset: Spark's query id; for "
        "`df.write`, a new transaction each time.",
    ),
    Option(
        name="batchId",
        scopes=_SINK,
        values=values.whole(0, (1 << 63) - 1),
        example=7,
        has_variable=False,
        doc="For `df.write` with `sinkId` only: the batch that is written once (Delta's "
        "`txnVersion`).",
    ),
    Option(
        name="chunkMessages",
        scopes=_SINK,
        values=values.whole(1, MAX_CHUNK_MESSAGES),
        default=CHUNK_MESSAGES,
        unit="messages",
        doc="Most messages in one stored row.",
    ),
    Option(
        name="chunkBytes",
        scopes=_SINK,
        values=values.size_bytes(4 * 1024, PART_BYTES),
        default=CHUNK_BYTES,
        unit="bytes",
        doc="Most body bytes in one stored row, before compression; a larger body has its own.",
    ),
    Option(
        name="bucketBytes",
        scopes=_SINK,
        values=values.size_bytes(1024**2, 256 * 1024**2),
        default=BUCKET_BYTES,
        unit="bytes",
        doc="A bucket (one Cassandra partition) is closed early at this size.",
    ),
    Option(
        name="writesInFlight",
        scopes=_SINK,
        values=values.whole(1, 64),
        default=8,
        unit="statements",
        doc="Chunks that one task has under way at once.",
    ),
    Option(
        name="bucket_size",
        scopes=_QUEUE,
        values=values.whole(1, 100_000, from_text=False),
        default=50_000,
        unit="ids",
        doc="Ids per bucket: LWTs are paid per bucket, so fewer and larger ones are cheaper.",
    ),
    Option(
        name="visibility_timeout",
        scopes=_QUEUE,
        values=values.seconds(0.1, THIRTY_DAYS_S, from_text=False),
        default=30.0,
        unit="seconds",
        doc="How long a message that was got stays hidden, where a get does not say.",
    ),
    Option(
        name="max_deliveries",
        scopes=_QUEUE,
        values=values.whole(1, (1 << 31) - 1, from_text=False),
        unit="deliveries",
        example=5,
        doc="After so many a message is dead. Without a dead-letter queue nothing dies.",
    ),
    Option(
        name="dead_letter_queue",
        scopes=_QUEUE,
        values=values.queue_name(),
        example="orders.dead",
        doc="Where repair moves the dead; must be there already.",
    ),
    Option(
        name="repair_timeout",
        scopes=_QUEUE,
        values=values.seconds(0.2, 86_400, from_text=False),
        default=15.0,
        unit="seconds",
        doc="How long a bulk writer may be silent before repair aborts its transaction.",
    ),
    Option(
        name="linger",
        scopes=_QUEUE,
        values=values.seconds(0, 60, from_text=False),
        default=0.02,
        unit="seconds",
        doc="How long a bucket stays open for more messages after a reader first saw one in it.",
    ),
    Option(
        name="gap_timeout",
        scopes=_QUEUE,
        values=values.seconds(0.1, 86_400, from_text=False),
        default=10.0,
        unit="seconds",
        doc="After so long a reserved bucket that is still empty is closed.",
    ),
    # Spark hands these to a source and a sink with ours: seen in 4.2.1 and 4.3.0, no others.
    Option(
        name="path",
        scopes=_SPARK,
        values=values.anything(),
        doc="Argument of `load`, `save` and `start`.",
    ),
    Option(
        name="paths",
        scopes=_SPARK,
        values=values.anything(),
        doc="Argument of `load`, when it is a list.",
    ),
    Option(
        name="checkpointLocation",
        scopes=_SPARK,
        values=values.anything(),
        doc="Where a streaming query keeps its progress.",
    ),
    Option(
        name="queryName",
        scopes=_SPARK,
        values=values.anything(),
        doc="A streaming query's name.",
    ),
)
