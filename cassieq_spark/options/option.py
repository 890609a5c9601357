"""Define `Option`, and the rows of connections, of `format("cassieq")`, and of Spark itself.

A row is a field of the value that its option is parsed into, with what is allowed and its text.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum, auto
from os import PathLike
from typing import Annotated, Any, Final, Self, TypedDict, get_type_hints

from cassieq_spark.errors import OptionInvalid, OptionUnknown, UsageError
from cassieq_spark.model.ids import QueueName
from cassieq_spark.model.lanes import LONGEST_DELAY_US, MAX_PRIORITIES
from cassieq_spark.model.sizes import (
    BUCKET_BYTES,
    CHUNK_BYTES,
    CHUNK_MESSAGES,
    MAX_CHUNK_MESSAGES,
    PART_BYTES,
)
from cassieq_spark.options import values
from cassieq_spark.options.values import Secret, Values

ENV_PREFIX: Final = "CASSIEQ_"

FOUR_HUNDRED_DAYS_S: Final = LONGEST_DELAY_US / 1e6
"""The longest time that a message is kept for, by its queue or its time to live: no message can be
due later than that."""

THIRTY_DAYS_S: Final = 30 * 86_400.0
"""The longest visibility timeout (G6)."""


class Scope(Enum):
    """The API that takes an option; errors call it by the value."""

    CONNECTION = "connect()"
    SOURCE = "the cassieq source"
    READ = "the cassieq batch reader"
    SINK = "the cassieq sink"
    QUEUE = "create_queue()"
    SPARK = "Spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option: its name, its values and its documentation.

    Attributes:
        field: The field of a frozen value that holds it; empty: several make one value.
        default: The parsed default; None: unset.
        unit: The unit of a number, for the reference.
        example: An example as a user writes it; an option with a default needs none.
        has_variable: Whether an environment variable may set it. Options that name one writer's
            transaction have none: two writers of one environment would share it.
        is_secret: Whether its value must not appear in errors.
    """

    name: str
    field: str = ""
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
        """The environment variable's name: ``contactPoints`` is ``CASSIEQ_CONTACT_POINTS``."""
        return ENV_PREFIX + snake_case(self.name).upper()

    def checked(self, where: str, value: object) -> Any:
        """Parse a value that stands in a place, as `Values.checked` does."""
        return self.values.checked(where, value, is_secret=self.is_secret)


def snake_case(name: str) -> str:
    """``contactPoints`` is ``contact_points``, as Python writes keywords."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


class Spelling(Enum):
    """The way in which a door's users write options: errors name an option so."""

    PYTHON = auto()
    SPARK = auto()
    SHELL = auto()

    def of(self, name: str) -> str:
        """``'contact_points'``, ``'contactPoints'``, or ``--contact-points``."""
        snake = snake_case(name)
        if self is not Spelling.SHELL:
            return repr(snake if self is Spelling.PYTHON else name)
        # A secret has a variable and no flag. Its name has this word: see `ConnectionArguments`.
        return ENV_PREFIX + snake.upper() if "password" in snake else "--" + snake.replace("_", "-")

    def named(self, name: str, scope: Scope | None = None) -> str:
        """``option 'contact_points'``, with its owner, or ``--contact-points``."""
        whose = "" if scope is None else f" of {scope.value}"
        return self.of(name) if self is Spelling.SHELL else f"option {self.of(name)}{whose}"


SOURCE: Final = frozenset({Scope.SOURCE})
READ: Final = frozenset({Scope.READ})
READING: Final = SOURCE | READ
SINK: Final = frozenset({Scope.SINK})
FORMAT: Final = READING | SINK
EVERYWHERE: Final = FORMAT | {Scope.CONNECTION}
QUEUE: Final = frozenset({Scope.QUEUE})
SPARK: Final = frozenset({Scope.SPARK})


class Row(dict[str, Any]):
    """The attributes of an `Option` that its field has to give: nothing else says them."""


_ROW: Final = "cassieq_option"


def row(allowed: Values[Any], *, default: Any = None, **more: Any) -> Any:
    """Define a field of a frozen value that is an option; its class's docstring explains it."""
    # Under one key: pydantic reads keys such as "default" as its own.
    return field(default=default, metadata={_ROW: Row(values=allowed, default=default, **more)})


def rows_of(kind: type, scopes: frozenset[Scope], *, is_python: bool = False) -> list[Option]:
    """The options that a class has as its own fields, without those of its base.

    A field has a `Row` in its metadata or its annotation, and is explained by the docstring.

    Args:
        is_python: Whether they are named like keywords of Python: ``max_deliveries``.
    """
    meanings = named_in(parts_of(kind).get("Attributes", ""))
    if is_dataclass(kind):
        rows = {one.name: one.metadata.get(_ROW) for one in fields(kind)}
    else:
        hints = get_type_hints(kind, include_extras=True)
        rows = {name: hint.__metadata__[0] for name, hint in hints.items()}
    found = []
    for one, attributes in rows.items():
        if attributes is None or one not in kind.__annotations__:
            continue
        # A field of a time has its unit in its name; the option has not.
        name = one.removesuffix("_s") if attributes.get("unit") == "seconds" else one
        name = name if is_python else camel_case(name)
        found.append(
            Option(name=name, field=one, scopes=scopes, doc=meanings.get(one, ""), **attributes)
        )
    return found


def camel_case(name: str) -> str:
    """``contact_points`` is ``contactPoints``, as Spark writes options."""
    return re.sub(r"_([a-z])", lambda letter: letter[1].upper(), name)


def parts_of(thing: object) -> dict[str, str]:
    """The parts of a docstring, by their titles (``Args``); the text before them under ``""``."""
    named = re.split(r"^(\w+):\n", inspect.getdoc(thing) or "", flags=re.MULTILINE)
    return dict(zip(["", *named[1::2]], named[::2], strict=True))


def named_in(part: str) -> dict[str, str]:
    """Return the description of each name in one section of a docstring."""
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", part, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The name that somebody meant who misspelt it, in any capitalisation; None: none is near."""
    by_key = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_key, n=1, cutoff=cutoff)
    return by_key[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question for the end of an error, with a space before it; empty if no name is near."""
    near = nearest(name, known)
    return f" Did you mean {near!r}?" if near else ""


_SECRET: Final = Row(values=values.secret(1_000), example="***", is_secret=True)


def _file(example: str) -> Row:
    return Row(values=values.file_path(), example=example)


class ConnectionArguments(TypedDict, total=False):
    """The keywords of `connect` and `foreach_batch` that say how to reach Cassandra.

    Each is an option in Python's spelling: ``connect_timeout`` is ``connectTimeout``. None means
    the default. Times may be text such as ``"5s"``.

    Attributes:
        keyspace: The keyspace that holds the queues. `bootstrap` creates it.
        datacenter: The local data centre. Unset: the data centre of the contact points.
        connect_timeout: How long to wait for a first answer from a node.
        username: The role to log in as. It needs `password`. Unset: no login.
        password: The password of `username`. Prefer the environment variable, so that no secret is
            in your code.
        ssl_ca_file: PEM file with the certificates of the CAs that may sign the nodes'
            certificates. If it is set, every connection uses TLS; if not, none does. This file,
            `sslCertFile` and `sslKeyFile` must be on every machine that runs tasks.
        ssl_cert_file: PEM file with this client's certificate and the certificates between it and
            its CA, for nodes that ask for one.
        ssl_key_file: PEM file with the private key of `sslCertFile`. Unset: the key is in
            `sslCertFile` itself.
        ssl_key_password: The password of the private key, if the key is encrypted.
        ssl_verify_hostname: Check that a node's certificate names the address that the driver
            connects to. Drivers connect to the addresses that nodes tell each other, so
            certificates must name those.
    """

    keyspace: Annotated[str | None, Row(values=values.keyspace(), default="cassieq")]
    datacenter: Annotated[str | None, Row(values=values.text(200), example="datacenter1")]
    connect_timeout: Annotated[
        float | str | None, Row(values=values.seconds(1, 60), default=10.0, unit="seconds")
    ]
    username: Annotated[str | None, Row(values=values.text(200), example="billing")]
    # Spark hides an option whose name contains "password" (spark.redaction.regex) where it
    # prints plans; so the names of secrets must contain it.
    password: Annotated[str | Secret | None, _SECRET]
    ssl_ca_file: Annotated[str | PathLike[str] | None, _file("/etc/cassieq/ca.pem")]
    ssl_cert_file: Annotated[str | PathLike[str] | None, _file("/etc/cassieq/client.pem")]
    ssl_key_file: Annotated[str | PathLike[str] | None, _file("/etc/cassieq/client.key")]
    ssl_key_password: Annotated[str | Secret | None, _SECRET]
    ssl_verify_hostname: Annotated[bool | None, Row(values=values.flag(), default=True)]


def by_option(
    connection: Mapping[str, Any],
    own: Mapping[str, Any],
    *,
    of: str,
    others: Iterable[str] = (),
) -> dict[str, Any]:
    """Name a function's keywords as their options: ``contact_points`` is ``contactPoints``.

    Args:
        connection: What it was given beside its own.
        own: Its own keywords that are options, too.
        of: Its name, for the error.
        others: Its keywords that are no options.

    Raises:
        OptionUnknown: ``connection`` has what `ConnectionArguments` has not; names the nearest.
    """
    for keyword in connection:
        if keyword not in ConnectionArguments.__annotations__:
            known = [*ConnectionArguments.__annotations__, *own, *others]
            hint = (
                did_you_mean(snake_case(keyword), known) or f" It has: {', '.join(sorted(known))}"
            )
            raise OptionUnknown(f"{of}() has no keyword {keyword!r}.{hint}")
    return {camel_case(keyword): value for keyword, value in {**connection, **own}.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The role to log in as, with its password."""

    username: str
    password: Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """The files to verify nodes by, and this client's certificate. Paths only: tasks read them."""

    ca_file: str
    cert_file: str | None = None
    key_file: str | None = None
    key_password: Secret | None = None
    verifies_hostname: bool = True
    spelling: Spelling = field(default=Spelling.PYTHON, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Settings of the connection to Cassandra. Hashable, since a process keeps a session for each.

    Attributes:
        login: None: no login.
        tls: None: no TLS.
        spelling: How errors of the connection name options. It makes no other session.
    """

    contact_points: tuple[tuple[str, int], ...]
    keyspace: str
    datacenter: str | None
    connect_timeout_s: float
    login: Login | None = None
    tls: TlsOptions | None = None
    spelling: Spelling = field(default=Spelling.PYTHON, compare=False, repr=False)

    @property
    def addresses(self) -> str:
        """The contact points as a user writes them."""
        return ", ".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for host, port in self.contact_points
        )

    @classmethod
    def needed(cls, given: object) -> Self:
        """Refuse anything else, such as contact points that were given to a client's class."""
        if isinstance(given, cls):
            return given
        raise UsageError("call cassieq_spark.connect() or connect_async(): they make the clients")

    def __str__(self) -> str:
        """Show what a client is connected to."""
        return f"{self.addresses!r}, keyspace={self.keyspace!r}"


CONNECTION: Final[tuple[Option, ...]] = (
    Option(
        name="contactPoints",
        scopes=EVERYWHERE,
        values=values.contact_points(),
        is_required=True,
        example="10.0.0.1:9042,10.0.0.2:9042",
        doc="Cassandra nodes to connect to first. The default port is 9042.",
    ),
    *rows_of(ConnectionArguments, EVERYWHERE),
)


VIEWS: Final = ("messages", "buckets", "leases", "dead", "queues", "lanes", "stats", "scheduled")

VIEWS_OF_MANY: Final = frozenset({"queues", "lanes", "stats", "scheduled"})
"""Views that need no queue: without one they show all queues."""

NAMING: Final = ("queue", "queues", "queuePattern")
"""The options that name queues. Exactly one of them counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSelection:
    """The queues to read.

    Attributes:
        names: Their names; empty with a pattern, and for all.
        pattern: A regular expression of their whole names.
        is_one: Set by option ``queue``.
    """

    names: tuple[QueueName, ...] = ()
    pattern: str | None = None
    is_one: bool = False

    def __str__(self) -> str:
        """Return the text by which reports and errors name the selection."""
        return self.pattern or ", ".join(self.names)

    @property
    def is_all(self) -> bool:
        """Whether nothing limits them."""
        return not self.names and self.pattern is None

    def has(self, queue: QueueName) -> bool:
        """Whether this queue is among them."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, queue) is not None
        return self.is_all or queue in self.names


def select(
    found: Mapping[str, Any], arguments: Set[str], whose: str, *, may_be_all: bool = False
) -> QueueSelection:
    """Find which of `NAMING` counts: an argument before a variable.

    Args:
        found: The values of all options, by name.
        arguments: The names of those that were not taken from a variable or a default.
        whose: The owner of the options, as errors call it.

    Raises:
        OptionInvalid: Several are set, or none.
    """
    given = arguments & set(NAMING)
    chosen = [name for name in NAMING if found[name] is not None and (name in given or not given)]
    if len(chosen) > 1:
        raise OptionInvalid(
            f"options {' and '.join(map(repr, chosen))} of {whose} are set, and each of them names "
            "the queues to read. Set one of them"
        )
    if not chosen and not may_be_all:
        raise OptionInvalid(
            f"option 'queue' of {whose} is not set. Set it to the name of the queue to read, or "
            "set 'queues' or 'queuePattern' to read several"
        )
    if chosen == ["queue"]:
        return QueueSelection(names=(found["queue"],), is_one=True)
    if chosen == ["queues"]:
        return QueueSelection(names=found["queues"])
    return QueueSelection(pattern=found["queuePattern"] if chosen else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """Options of both ways to read.

    Attributes:
        min_partitions: Spread a batch over at least this many tasks, if there are enough messages.
            Unset: as many tasks as the driver's machine has cores, with 10,000 to 500,000 messages
            each.
    """

    connection: ConnectionOptions
    queues: QueueSelection
    min_partitions: int | None = row(values.whole(1, 100_000), unit="input partitions", example=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(ReadingOptions):
    """Options of ``spark.read``. Its queues are all only for a view of many queues.

    Attributes:
        view: What a batch read shows: the visible messages, or another side of the queue's state;
            see the guide to views. `queues`, `lanes`, `stats` and `scheduled` need no `queue`:
            without it they show all queues of the keyspace.
        push_filters: Read only the buckets that the query's filters select. Use it only for a
            DataFrame that is filtered in one way: Spark 4.3.0 gives the filters of one scan to the
            others as well, see the guide to views. Needs `spark.sql.python.filterPushdown.enabled`.
    """

    view: str = row(values.one_of(*VIEWS), default="messages", has_variable=False)
    push_filters: bool = row(values.flag(), default=False, has_variable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ReadingOptions):
    """Options of ``spark.readStream``.

    Attributes:
        max_messages_per_trigger: The most messages in one micro-batch. Unset: all visible messages.
        max_bytes_per_trigger: The approximate size of one micro-batch, in bytes as they are stored,
            that is, compressed. A batch has at least one message. Unset: no limit.
        min_messages_per_trigger: Wait until at least this many messages are visible, but no longer
            than `maxTriggerDelay`. Unset: take what is visible. Queries with `availableNow` do not
            wait.
        max_trigger_delay_s: How long `minMessagesPerTrigger` may hold back visible messages.
        lag_interval_s: How often the query counts its lag, for its progress.
        ack_mode: `commit`: a batch is acked when Spark has committed it. `manual`: only the
            messages that `cassieq_spark.spark.settle` acks are acked; the others are delivered
            again.
        min_priority: Read only messages of this priority and higher ones.
        visibility_timeout_s: How long the messages of a batch stay hidden from other consumers if
            the query dies. A running query renews its leases. Unset: the queue's timeout.
        consumer: A name that shows who holds a lease. Unset: a name made from the run's id.
        on_lease_lost: What a restarted query does if another consumer has messages of its batch:
            `skip` goes on without them, `fail` ends the query.
        fail_on_data_loss: Fail if the queue was purged, or deleted and created anew, since the
            checkpoint was written.
        max_batch_duration_s: How long the query goes on renewing leases after Spark's last call.
    """

    max_messages_per_trigger: int | None = row(
        values.whole(1, 10**12), unit="messages", example=100_000
    )
    max_bytes_per_trigger: int | None = row(
        values.size_bytes(1, 1 << 50), unit="bytes", example=256 * 1024**2
    )
    min_messages_per_trigger: int | None = row(
        values.whole(1, 10**12), unit="messages", example=10_000
    )
    max_trigger_delay_s: float = row(
        values.seconds(0.1, 86_400), default=900.0, unit="seconds", example="30s"
    )
    lag_interval_s: float = row(values.seconds(0.1, 86_400), default=10.0, unit="seconds")
    ack_mode: str = row(values.one_of("commit", "manual"), default="commit")
    min_priority: int = row(values.whole(0, MAX_PRIORITIES - 1), default=0)
    visibility_timeout_s: float | None = row(
        values.seconds(0.1, THIRTY_DAYS_S), unit="seconds", example="30s"
    )
    consumer: str | None = row(values.text(200), example="billing")
    on_lease_lost: str = row(values.one_of("skip", "fail"), default="skip")
    fail_on_data_loss: bool = row(values.flag(), default=True)
    max_batch_duration_s: float = row(
        values.seconds(1, THIRTY_DAYS_S), default=3_600.0, unit="seconds"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of ``df.writeStream`` and ``df.write``.

    Attributes:
        sink_id: The name of a writer's transactions, like Delta's `txnAppId`. Unset: Spark's query
            id; for `df.write`, each write is a new transaction.
        batch_id: The number of the batch, which is written only once, like Delta's `txnVersion`.
            For `df.write`, which needs both, or neither of `sinkId` and `batchId`.
        chunk_messages: The most messages in one stored row.
        chunk_bytes: The most bytes of bodies in one stored row, before compression. A larger body
            has a row of its own.
        bucket_bytes: The size at which a bucket (one Cassandra partition) is closed early.
        writes_in_flight: The number of chunks that one task writes at the same time, in all lanes
            together.
    """

    connection: ConnectionOptions
    queue: QueueName
    sink_id: str | None = row(values.text(400), example="orders-by-country", has_variable=False)
    batch_id: int | None = row(values.whole(0, (1 << 63) - 1), example=7, has_variable=False)
    chunk_messages: int = row(
        values.whole(1, MAX_CHUNK_MESSAGES), default=CHUNK_MESSAGES, unit="messages"
    )
    chunk_bytes: int = row(
        values.size_bytes(4 * 1024, PART_BYTES), default=CHUNK_BYTES, unit="bytes"
    )
    bucket_bytes: int = row(
        values.size_bytes(1024**2, 256 * 1024**2), default=BUCKET_BYTES, unit="bytes"
    )
    writes_in_flight: int = row(values.whole(1, 64), default=8, unit="statements")


FORMATS: Final[tuple[Option, ...]] = (
    Option(
        name="queue",
        field="queue",
        scopes=FORMAT,
        values=values.queue_name(),
        is_required=True,
        example="orders",
        doc="The queue to read from or to write to.",
    ),
    Option(
        name="queues",
        scopes=READING,
        values=values.queue_names(),
        example="orders, invoices",
        doc="The queues to read from, instead of `queue`. A query shares each batch among those "
        "that have messages.",
    ),
    Option(
        name="queuePattern",
        scopes=READING,
        values=values.pattern(),
        example="orders\\..*",
        doc="Read from all queues whose whole name matches this regular expression of Python, "
        "instead of `queue`. A query looks for new ones every 30 seconds.",
    ),
    *rows_of(ReadOptions, READ),
    *rows_of(ReadingOptions, READING),
    *rows_of(SourceOptions, SOURCE),
    *rows_of(SinkOptions, SINK),
)

# Spark passes these to a source and a sink with ours: seen in 4.2.1 and 4.3.0, no others.
SPARKS_OWN: Final = tuple(
    Option(name=name, scopes=SPARK, values=values.anything(), doc=doc)
    for name, doc in {
        "path": "Argument of `load`, `save` and `start`. It is refused: a queue has no path.",
        "paths": "Argument of `load` if it is a list. It is refused, too.",
        "checkpointLocation": "The directory where a streaming query keeps its progress.",
        "queryName": "The name of a streaming query.",
    }.items()
)
