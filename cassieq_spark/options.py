"""Every option, one row each: parsing, ranges, documentation (conventions 4).

`OPTIONS` is the only list; from it come the parsers below, ``docs/reference/options.md``,
``conf/cassieq.toml`` and the table in the README.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from typing import Any, Final, Self

from cassieq_spark.errors import OptionInvalid, OptionUnknown
from cassieq_spark.model.ids import QueueName
from cassieq_spark.model.sizes import CHUNK_BYTES, CHUNK_MESSAGES, MAX_CHUNK_MESSAGES, PART_BYTES

ENV_PREFIX: Final = "CASSIEQ_"
DEFAULT_PORT: Final = 9042
THIRTY_DAYS_S: Final = 30 * 86_400.0

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h|d)?")
_SIZE: Final = re.compile(r"(?P<number>\d+)\s*(?P<unit>b|k|m|g)?")
_SIZES: Final = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_NAME: Final = re.compile(r"[A-Za-z0-9.\-_]{1,200}")
_KEYSPACE: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")


class Scope(Enum):
    """Where an option belongs."""

    CONNECTION = "connection"
    SOURCE = "readStream"
    READ = "read"
    SINK = "writeStream and write"
    QUEUE = "create_queue"
    SPARK = "Spark's own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        parse: From what a user gives to the value; raises ValueError with the allowed range.
        default: Parsed; None: unset.
        unit: Of a number, for the documentation.
    """

    name: str
    scopes: frozenset[Scope]
    parse: Callable[[Any], Any]
    default: Any
    doc: str
    unit: str = ""
    is_required: bool = False
    since: str = "0.1"


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        allowed = f"a whole number from {low} to {high}"
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(allowed)  # noqa: TRY004 - one kind of error for one kind of mistake
        if isinstance(value, str) and not re.fullmatch(r"[+-]?\d+", value.strip()):
            raise ValueError(allowed)
        number = int(value)
        if not low <= number <= high:
            raise ValueError(allowed)
        return number

    return parse


def _bytes(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        allowed = f"bytes from {low} to {high}, or text such as '256k' or '32m'"
        if isinstance(value, str):
            match = _SIZE.fullmatch(value.strip().lower())
            if match is None:
                raise ValueError(allowed)
            number = int(match["number"]) * _SIZES[match["unit"] or "b"]
        elif isinstance(value, int) and not isinstance(value, bool):
            number = value
        else:
            raise ValueError(allowed)  # noqa: TRY004 - as above
        if not low <= number <= high:
            raise ValueError(allowed)
        return number

    return parse


def _seconds(low: float, high: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        allowed = f"seconds from {low:g} to {high:g}, a timedelta, or text such as '30s' or '5m'"
        if isinstance(value, timedelta):
            number = value.total_seconds()
        elif isinstance(value, str):
            match = _DURATION.fullmatch(value.strip().lower())
            if match is None:
                raise ValueError(allowed)
            number = float(match["number"]) * _UNITS_S[match["unit"] or "s"]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            number = float(value)
        else:
            raise ValueError(allowed)  # noqa: TRY004 - as above
        if not math.isfinite(number) or not low <= number <= high:
            raise ValueError(allowed)
        return number

    return parse


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("true or false")


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if isinstance(value, str) and value.strip().lower() in allowed:
            return value.strip().lower()
        raise ValueError(" or ".join(repr(one) for one in allowed))

    return parse


def _text(longest: int) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if isinstance(value, str) and 1 <= len(value) <= longest:
            return value
        raise ValueError(f"text of 1 to {longest} characters")

    return parse


def _queue_name(value: Any) -> QueueName:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return QueueName(value)
    raise ValueError("1 to 200 letters, digits, '.', '-' or '_'")


def _keyspace(value: Any) -> str:
    if isinstance(value, str) and _KEYSPACE.fullmatch(value):
        return value
    raise ValueError("1 to 48 lower-case letters, digits or '_', a letter first")


def _contact_points(value: Any) -> tuple[tuple[str, int], ...]:
    allowed = "'host:port,host:port' or a list of 'host:port'; IPv6 in brackets; port 1 to 65535"
    if isinstance(value, str):
        parts: Sequence[Any] = value.split(",")
    elif isinstance(value, Sequence):
        parts = value
    else:
        raise ValueError(allowed)  # noqa: TRY004 - one kind of error for one kind of mistake
    points = []
    for part in parts:
        match = re.fullmatch(
            r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:\[\]]+))(?::(?P<port>\d{1,5}))?",
            part.strip() if isinstance(part, str) else "",
        )
        port = DEFAULT_PORT if match is None or match["port"] is None else int(match["port"])
        if match is None or not 1 <= port <= 65_535:  # noqa: PLR2004 - the range of ports
            raise ValueError(allowed)
        points.append((match["v6"] or match["host"], port))
    if not points:
        raise ValueError(allowed)
    return tuple(points)


_SPARK_SIDE: Final = frozenset({Scope.SOURCE, Scope.READ, Scope.SINK})
_EVERYWHERE: Final = _SPARK_SIDE | {Scope.CONNECTION}
_READING: Final = frozenset({Scope.SOURCE, Scope.READ})
_SOURCE: Final = frozenset({Scope.SOURCE})
_SINK: Final = frozenset({Scope.SINK})
_QUEUE: Final = frozenset({Scope.QUEUE})
_SPARK: Final = frozenset({Scope.SPARK})


def _ignored(value: Any) -> Any:
    return value


OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        name="contactPoints",
        scopes=_EVERYWHERE,
        parse=_contact_points,
        default=None,
        is_required=True,
        doc="Cassandra nodes to connect to first: `host:port,host:port`; default port 9042.",
    ),
    Option(
        name="keyspace",
        scopes=_EVERYWHERE,
        parse=_keyspace,
        default="cassieq",
        doc="The keyspace that `client.bootstrap()` made.",
    ),
    Option(
        name="datacenter",
        scopes=_EVERYWHERE,
        parse=_text(200),
        default=None,
        doc="The local data centre. Unset: that of the contact points.",
    ),
    Option(
        name="connectTimeoutSeconds",
        scopes=_EVERYWHERE,
        parse=_seconds(1, 60),
        default=10.0,
        unit="seconds",
        doc="How long to wait for a node to answer at all.",
    ),
    Option(
        name="queue",
        scopes=_SPARK_SIDE,
        parse=_queue_name,
        default=None,
        is_required=True,
        doc="The queue to read or to write.",
    ),
    Option(
        name="maxMessagesPerTrigger",
        scopes=_SOURCE,
        parse=_whole(1, 1 << 40),
        default=None,
        unit="messages",
        doc="Most messages in one micro-batch. Unset: all that are visible.",
    ),
    Option(
        name="minPartitions",
        scopes=_READING,
        parse=_whole(1, 100_000),
        default=2,
        unit="input partitions",
        doc="Spread a batch over at least so many tasks, as far as there are messages.",
    ),
    Option(
        name="visibilityTimeout",
        scopes=_SOURCE,
        parse=_seconds(0.1, THIRTY_DAYS_S),
        default=None,
        unit="seconds",
        doc="How long messages of a batch stay hidden from others if the query dies; renewed while "
        "it runs. Unset: the queue's.",
    ),
    Option(
        name="consumer",
        scopes=_SOURCE,
        parse=_text(200),
        default=None,
        doc="A name that shows who holds a lease. Unset: one made of the run's id.",
    ),
    Option(
        name="onLeaseLost",
        scopes=_SOURCE,
        parse=_one_of("skip", "fail"),
        default="skip",
        doc="When a restarted query finds messages of its batch with another consumer: go on "
        "without them, or fail.",
    ),
    Option(
        name="failOnDataLoss",
        scopes=_SOURCE,
        parse=_flag,
        default=True,
        doc="Fail when the queue was deleted and created anew under the checkpoint.",
    ),
    Option(
        name="maxBatchDuration",
        scopes=_SOURCE,
        parse=_seconds(1, THIRTY_DAYS_S),
        default=3_600.0,
        unit="seconds",
        doc="Leases are renewed no longer than this after Spark's last call.",
    ),
    Option(
        name="sinkId",
        scopes=_SINK,
        parse=_text(400),
        default=None,
        doc="Names the transactions of a writer (Delta's txnAppId). Unset: Spark's query id; for "
        "`df.write`, a new transaction each time.",
    ),
    Option(
        name="batchId",
        scopes=_SINK,
        parse=_whole(0, (1 << 63) - 1),
        default=None,
        doc="For `df.write` with `sinkId`: the batch that is written once (Delta's txnVersion).",
    ),
    Option(
        name="chunkMessages",
        scopes=_SINK,
        parse=_whole(1, MAX_CHUNK_MESSAGES),
        default=CHUNK_MESSAGES,
        unit="messages",
        doc="Most messages in one stored row.",
    ),
    Option(
        name="chunkBytes",
        scopes=_SINK,
        parse=_bytes(4 * 1024, PART_BYTES),
        default=CHUNK_BYTES,
        unit="bytes",
        doc="Most body bytes in one stored row, before compression; a larger body has its own.",
    ),
    Option(
        name="bucketBytes",
        scopes=_SINK,
        parse=_bytes(1024 * 1024, 256 * 1024 * 1024),
        default=32 * 1024 * 1024,
        unit="bytes",
        doc="A bucket (one Cassandra partition) is closed early at this size.",
    ),
    Option(
        name="writesInFlight",
        scopes=_SINK,
        parse=_whole(1, 64),
        default=8,
        unit="statements",
        doc="Chunks that one task has under way at once.",
    ),
    Option(
        name="bucket_size",
        scopes=_QUEUE,
        parse=_whole(1, 100_000),
        default=10_000,
        unit="ids",
        doc="Ids per bucket.",
    ),
    Option(
        name="visibility_timeout",
        scopes=_QUEUE,
        parse=_seconds(0.1, THIRTY_DAYS_S),
        default=30.0,
        unit="seconds",
        doc="How long a message that was got stays hidden, where a get does not say.",
    ),
    Option(
        name="max_deliveries",
        scopes=_QUEUE,
        parse=_whole(1, 1 << 31),
        default=None,
        unit="deliveries",
        doc="After so many a message is dead. Without a dead-letter queue nothing dies.",
    ),
    Option(
        name="dead_letter_queue",
        scopes=_QUEUE,
        parse=_queue_name,
        default=None,
        doc="Where repair moves the dead; must be there already.",
    ),
    Option(
        name="repair_timeout",
        scopes=_QUEUE,
        parse=_seconds(0.2, 86_400),
        default=15.0,
        unit="seconds",
        doc="How long a bulk writer may be silent before repair aborts its transaction.",
    ),
    Option(
        name="linger",
        scopes=_QUEUE,
        parse=_seconds(0, 60),
        default=0.02,
        unit="seconds",
        doc="How long a bucket stays open for more messages after a reader first saw one in it.",
    ),
    Option(
        name="gap_timeout",
        scopes=_QUEUE,
        parse=_seconds(0.1, 86_400),
        default=10.0,
        unit="seconds",
        doc="After so long a reserved bucket that is still empty is closed.",
    ),
    # Spark hands its own options to a source and a sink with ours (4.2 and 4.3).
    Option(
        name="path", scopes=_SPARK, parse=_ignored, default=None, doc="Argument of load and save."
    ),
    Option(
        name="checkpointLocation",
        scopes=_SPARK,
        parse=_ignored,
        default=None,
        doc="Where a streaming query keeps its progress.",
    ),
    Option(
        name="queryName",
        scopes=_SPARK,
        parse=_ignored,
        default=None,
        doc="A streaming query's name.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How to reach Cassandra. Hashable: a process keeps one session for each."""

    contact_points: tuple[tuple[str, int], ...]
    keyspace: str
    datacenter: str | None
    connect_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Of ``spark.read``."""

    connection: ConnectionOptions
    queue: QueueName
    min_partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Of ``spark.readStream``."""

    connection: ConnectionOptions
    queue: QueueName
    min_partitions: int
    max_messages_per_trigger: int | None
    visibility_timeout_s: float | None
    consumer: str | None
    on_lease_lost: str
    fail_on_data_loss: bool
    max_batch_duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Of ``df.writeStream`` and ``df.write``."""

    connection: ConnectionOptions
    queue: QueueName
    sink_id: str | None
    batch_id: int | None
    chunk_messages: int
    chunk_bytes: int
    bucket_bytes: int
    writes_in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Of ``client.create_queue``; stored with the queue."""

    bucket_size: int
    visibility_timeout_s: float
    max_deliveries: int | None
    dead_letter_queue: QueueName | None
    repair_timeout_s: float
    linger_s: float
    gap_timeout_s: float

    @classmethod
    def parse(cls, **settings: Any) -> Self:
        """From what a user gives; times are seconds or timedelta.

        Raises:
            OptionUnknown, OptionInvalid: Names the setting, its value, and what is allowed.
        """
        given = _read(settings, Scope.QUEUE, use_environment=False)
        return cls(**{_field(name): value for name, value in given.items()})

    def to_json(self) -> str:
        """As the queue row holds it."""
        return json.dumps({one.name: getattr(self, one.name) for one in fields(self)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        return cls(**json.loads(text))

    def differences(self, other: QueueSettings) -> list[tuple[str, Any, Any]]:
        """(setting, here, there) for each that is not the same."""
        return [
            (one.name.removesuffix("_s"), getattr(self, one.name), getattr(other, one.name))
            for one in fields(self)
            if getattr(self, one.name) != getattr(other, one.name)
        ]


def queue_name(value: object) -> QueueName:
    """A checked queue name.

    Raises:
        OptionInvalid: It is not one.
    """
    try:
        return _queue_name(value)
    except ValueError as error:
        raise OptionInvalid(f"{value!r} is no queue name; a name is {error}") from error


def parse_connection(given: Mapping[str, Any]) -> ConnectionOptions:
    """Options of a plain client.

    Raises:
        OptionUnknown, OptionInvalid: Names the option, its value, and what is allowed.
    """
    return _connection(_read(given, Scope.CONNECTION))


def parse_source(given: Mapping[str, Any]) -> SourceOptions:
    """Options of ``readStream``; raises as `parse_connection`."""
    values = _read(given, Scope.SOURCE)
    return SourceOptions(
        connection=_connection(values),
        queue=values["queue"],
        min_partitions=values["minPartitions"],
        max_messages_per_trigger=values["maxMessagesPerTrigger"],
        visibility_timeout_s=values["visibilityTimeout"],
        consumer=values["consumer"],
        on_lease_lost=values["onLeaseLost"],
        fail_on_data_loss=values["failOnDataLoss"],
        max_batch_duration_s=values["maxBatchDuration"],
    )


def parse_read(given: Mapping[str, Any]) -> ReadOptions:
    """Options of ``read``; raises as `parse_connection`."""
    values = _read(given, Scope.READ)
    return ReadOptions(
        connection=_connection(values),
        queue=values["queue"],
        min_partitions=values["minPartitions"],
    )


def parse_sink(given: Mapping[str, Any]) -> SinkOptions:
    """Options of ``writeStream`` and ``write``; raises as `parse_connection`."""
    values = _read(given, Scope.SINK)
    if values["batchId"] is not None and values["sinkId"] is None:
        raise OptionInvalid(
            f"option 'batchId' is {values['batchId']}, but 'sinkId' is not set: a batch id alone "
            "names nothing. Set both, or neither"
        )
    return SinkOptions(
        connection=_connection(values),
        queue=values["queue"],
        sink_id=values["sinkId"],
        batch_id=values["batchId"],
        chunk_messages=values["chunkMessages"],
        chunk_bytes=values["chunkBytes"],
        bucket_bytes=values["bucketBytes"],
        writes_in_flight=values["writesInFlight"],
    )


def environment_name(option: str) -> str:
    """The variable that sets an option: ``contactPoints`` is ``CASSIEQ_CONTACT_POINTS``."""
    return ENV_PREFIX + re.sub(r"(?<!^)(?=[A-Z])", "_", option).upper()


def _connection(values: Mapping[str, Any]) -> ConnectionOptions:
    return ConnectionOptions(
        contact_points=values["contactPoints"],
        keyspace=values["keyspace"],
        datacenter=values["datacenter"],
        connect_timeout_s=values["connectTimeoutSeconds"],
    )


def _read(
    given: Mapping[str, Any], scope: Scope, *, use_environment: bool = True
) -> dict[str, Any]:
    """Every option of a scope: argument, then environment, then default."""
    known = {option.name.lower(): option for option in OPTIONS if scope in option.scopes}
    foreign = {option.name.lower() for option in OPTIONS if Scope.SPARK in option.scopes}
    arguments: dict[str, Any] = {}
    for name, value in given.items():
        if name.lower() in known:
            arguments[name.lower()] = value
        elif scope is Scope.QUEUE or name.lower() not in foreign:
            raise _unknown(name, scope, known)
    values: dict[str, Any] = {}
    for key, option in known.items():
        variable = environment_name(option.name)
        if key in arguments and arguments[key] is not None:
            values[option.name] = _parse(option, arguments[key], f"option {option.name!r}")
        elif use_environment and variable in os.environ:
            values[option.name] = _parse(option, os.environ[variable], f"variable {variable}")
        elif option.is_required:
            raise OptionInvalid(
                f"option {option.name!r} of the cassieq {scope.value} is not set. {option.doc}"
            )
        else:
            values[option.name] = option.default
    return values


def _parse(option: Option, value: Any, where: str) -> Any:
    try:
        return option.parse(value)
    except ValueError as error:
        raise OptionInvalid(f"{where} is {value!r}, allowed is {error}") from error


def _unknown(name: str, scope: Scope, known: Mapping[str, Option]) -> OptionUnknown:
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = (
        f"Did you mean {known[near[0]].name!r}?"
        if near
        else f"It has: {', '.join(sorted(option.name for option in known.values()))}"
    )
    return OptionUnknown(f"{name!r} is no option of the cassieq {scope.value}. {hint}")


def _field(name: str) -> str:
    timed = {"visibility_timeout", "repair_timeout", "linger", "gap_timeout"}
    return f"{name}_s" if name in timed else name
