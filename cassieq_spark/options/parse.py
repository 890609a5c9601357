"""Parse options into frozen values: argument, then ``CASSIEQ_*`` variable, then default."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, Self, TypedDict, TypeVar, Unpack

from cassieq_spark.errors import (
    OptionInvalid,
    OptionUnknown,
    RowCorrupt,
    SchemaMismatch,
    UsageError,
)
from cassieq_spark.model.dedup import MAX_WINDOW_S, MIN_WINDOW_S
from cassieq_spark.model.frozen import frozen
from cassieq_spark.model.ids import QueueName
from cassieq_spark.model.lanes import MAX_LANES, MAX_PRIORITIES, MAX_SHARDS
from cassieq_spark.options import values
from cassieq_spark.options.option import (
    CONNECTION,
    ENV_PREFIX,
    FORMAT,
    FORMATS,
    FOUR_HUNDRED_DAYS_S,
    QUEUE,
    READING,
    SPARKS_OWN,
    THIRTY_DAYS_S,
    VIEWS_OF_MANY,
    ConnectionOptions,
    Login,
    Option,
    ReadOptions,
    Scope,
    SinkOptions,
    SourceOptions,
    Spelling,
    TlsOptions,
    by_option,
    did_you_mean,
    nearest,
    row,
    rows_of,
    select,
)
from cassieq_spark.options.values import NotAllowed, Values

T = TypeVar("T", SourceOptions, ReadOptions, SinkOptions)
N = TypeVar("N")


_whole: Final = partial(values.whole, from_text=False)


def _time(low: float, high: float, **more: Any) -> Any:
    """A row of a time in seconds."""
    return row(values.seconds(low, high, from_text=False), unit="seconds", **more)


Seconds = float | timedelta
"""A length of time."""


class QueueArguments(TypedDict, total=False):
    """The keywords of `create_queue` and `alter_queue`; `QueueSettings` explains them.

    None asks `create_queue` for no value, and `alter_queue` for the default.
    """

    bucket_size: int | None
    priorities: int | None
    shards: int | None
    fairness: float | None
    schedule_after: Seconds | None
    schedule_period: Seconds | None
    visibility_timeout: Seconds | None
    max_deliveries: int | None
    dead_letter_queue: str | None
    repair_timeout: Seconds | None
    linger: Seconds | None
    gap_timeout: Seconds | None
    retention: Seconds | None
    dead_letter_expired: bool | None
    dedup_window: Seconds | None


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Settings of ``client.create_queue``; they are stored with the queue.

    Attributes:
        bucket_size: The number of ids in a bucket. LWTs are paid per bucket, so fewer and larger
            buckets are cheaper.
        priorities: The number of priorities. `put` takes a priority from 0 to one less than this; a
            higher one is handed out first. It cannot change.
        shards: The number of lanes of each priority, for many producers and consumers at once.
            Messages of one `key` stay in one lane. `priorities` times `shards` is 64 at most. It
            cannot change.
        fairness: The share of what is handed out that is offered to a lower priority first, from 0
            to 0.5. With 0, a lower priority gets nothing while a higher one has messages.
        schedule_after_s: A message that is due later than this from now is stored in a lane of its
            own, so that it costs nothing until its time comes.
        schedule_period_s: Scheduled messages that are due within the same period share such a lane.
            A message may be due at most 10,000 periods ahead, and at most 400 days. It cannot
            change.
        visibility_timeout_s: How long a message stays hidden after a get that sets no timeout
            itself.
        max_deliveries: The number of deliveries that a message has; after the last one it is dead.
            Messages die only if the queue has a dead-letter queue. Unset: no limit.
        dead_letter_queue: The queue that repair moves dead messages to. It must exist already.
        repair_timeout_s: How long a bulk writer may be silent before repair aborts its transaction.
        linger_s: How long a bucket stays open for more messages after a reader first saw a message
            in it. Messages that come one by one, or a few at a time, do not wait for it.
        gap_timeout_s: How long a reserved bucket may stay empty before it is closed.
        retention_s: How long a message that nobody gets is kept, counted from when it is due. Then
            it expires. A change counts for buckets that are sealed after it. Unset: for ever.
        dead_letter_expired: Whether expired messages go to the dead-letter queue, with the reason
            `expired`. Otherwise they are dropped.
        dedup_window_s: How long a `dedup_key` stands for the first message that was put with it: a
            further put of the key stores nothing. A longer window counts for keys that are put
            after the change. Unset: keys are refused.
    """

    bucket_size: int = row(_whole(1, 100_000), default=100_000, unit="ids")
    priorities: int = row(_whole(1, MAX_PRIORITIES), default=1, unit="priorities")
    shards: int = row(_whole(1, MAX_SHARDS), default=1, unit="lanes")
    fairness: float = row(values.share(0.5), default=0.1, unit="share")
    schedule_after_s: float = _time(0, 86_400, default=900.0)
    schedule_period_s: float = _time(60, 86_400, default=3_600.0)
    visibility_timeout_s: float = _time(0.1, THIRTY_DAYS_S, default=30.0)
    max_deliveries: int | None = row(_whole(1, (1 << 31) - 1), unit="deliveries", example=5)
    dead_letter_queue: QueueName | None = row(values.queue_name(), example="orders.dead")
    repair_timeout_s: float = _time(0.2, 86_400, default=15.0)
    linger_s: float = _time(0, 60, default=0.02)
    gap_timeout_s: float = _time(0.1, 86_400, default=10.0)
    retention_s: float | None = _time(60, FOUR_HUNDRED_DAYS_S, example=345_600)
    dead_letter_expired: bool = row(values.flag(), default=False)
    dedup_window_s: float | None = _time(MIN_WINDOW_S, MAX_WINDOW_S, example=3_600)

    @classmethod
    def parse(cls, **settings: Unpack[QueueArguments]) -> Self:
        """Parse settings of a new queue: times are seconds or timedelta, None means the default.

        Raises:
            OptionUnknown, OptionInvalid: Names the setting, its value, and what is allowed.
        """
        found = _read(settings, Scope.QUEUE, Spelling.PYTHON)
        if found["priorities"] * found["shards"] > MAX_LANES:
            raise OptionInvalid(
                f"options 'priorities' and 'shards' of {Scope.QUEUE.value} are "
                f"{found['priorities']} and {found['shards']}: a queue has {MAX_LANES} lanes at "
                "most, one for each priority and shard. Choose fewer of either"
            )
        return cls(**{option.field: found[option.name] for option in _of(Scope.QUEUE)})

    @property
    def period_us(self) -> int:
        """The length of a period of the schedule."""
        return int(self.schedule_period_s * 1e6)

    def altered(self, changes: Mapping[str, object]) -> Self:
        """Return a copy with some settings changed; None resets one to its default.

        Raises:
            OptionUnknown, OptionInvalid: See `parse`.
        """
        found = _read(changes, Scope.QUEUE, Spelling.PYTHON)
        changed = {one.field: found[one.name] for one in _of(Scope.QUEUE) if one.name in changes}
        return replace(self, **changed)

    def by_option(self) -> dict[str, object]:
        """Return each setting by the name that `create_queue` knows it by; times are seconds."""
        return {one.name: getattr(self, one.field) for one in _of(Scope.QUEUE)}

    def to_json(self) -> str:
        """The JSON text that the queue row holds."""
        return json.dumps({one.name: getattr(self, one.name) for one in fields(self)})

    @classmethod
    def from_json(cls, stored: str) -> Self:
        """Read what `to_json` wrote; a setting that is newer than the row gets its default.

        Raises:
            RowCorrupt: It holds something else.
            SchemaMismatch: It holds a setting that is newer than this release.
        """
        try:
            given = dict(json.loads(stored))
            found: dict[str, Any] = {
                option.field: _stored(option, given.pop(option.field, option.default))
                for option in _of(Scope.QUEUE)
            }
        except (ValueError, TypeError, NotAllowed) as error:
            raise RowCorrupt(
                f"the settings of a queue cannot be read: {reprlib.repr(stored)}. Was the row "
                "altered by hand?"
            ) from error
        if given:
            raise SchemaMismatch(
                f"a queue has settings that this release does not know: {', '.join(given)}. Use "
                "the release that created it, or a later one"
            )
        return cls(**found)

    def differences(self, other: QueueSettings) -> list[tuple[str, object, object]]:
        """List (setting, here, there) for each setting that differs."""
        return [
            (option.name, here, there)
            for option in _of(Scope.QUEUE)
            if (here := getattr(self, option.field)) != (there := getattr(other, option.field))
        ]


OPTIONS: Final[tuple[Option, ...]] = (
    *CONNECTION,
    *FORMATS,
    *rows_of(QueueSettings, QUEUE, is_python=True),
    *SPARKS_OWN,
)
"""Every option, one row each, and nowhere else."""

OTHERS: Final = (
    "CASSIEQ_ACCESS_KEY_ID",
    "CASSIEQ_ACCESS_LOG",
    "CASSIEQ_IVY_SETTINGS",
    "CASSIEQ_LOG_FORMAT",
    "CASSIEQ_LOG_LEVEL",
    "CASSIEQ_MASTER_KEY_FILE",
    "CASSIEQ_SECRET_ACCESS_KEY",
)
"""Variables that are no option's."""

KNOWN: Final = tuple(
    sorted({*OTHERS, *(option.variable for option in OPTIONS if option.has_variable)})
)

_CLOSE: Final = 0.8
"""The likeness of two names without the prefix from which on one is a misspelt form of the other.

Without a limit, a program's own variables would each be taken for one of ours.
"""


def misspelt(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return each variable that is not ours but looks like one, with the nearest of ours."""
    bare = [one.removeprefix(ENV_PREFIX) for one in KNOWN]
    flat = {one.replace("_", ""): one for one in bare}
    found = []
    for name in sorted(names):
        plain = name.upper().replace("-", "_")
        if name in KNOWN or not plain.startswith(ENV_PREFIX):
            continue
        short = plain.removeprefix(ENV_PREFIX)
        near = nearest(short, bare, cutoff=_CLOSE) or flat.get(short.replace("_", ""))
        if near:
            found.append((name, ENV_PREFIX + near))
    return found


def nearest_to(variable: str, names: Iterable[str]) -> str:
    """A sentence for an error that says an option is not set, if a variable of it is misspelt."""
    wrong = [name for name, right in misspelt(names) if right == variable]
    return f" Variable {wrong[0]} is not read: did you mean {variable}?" if wrong else ""


def queue_name(value: object) -> QueueName:
    """Check a queue name.

    Raises:
        OptionInvalid: It is not a queue name.
    """
    return _named(value, values.queue_name(), "a queue name")


def schedule_name(value: object) -> str:
    """Check the name of a schedule.

    Raises:
        OptionInvalid: It is not a schedule name.
    """
    return _named(value, values.queue_name(), "a schedule name")


def account_name(value: object) -> str:
    """Check the name of an account.

    Raises:
        OptionInvalid: It is not an account's name.
    """
    return _named(value, values.account_name(), "the name of an account")


def _named(value: object, kind: Values[N], what: str) -> N:
    try:
        return kind.parse(value)
    except NotAllowed as error:
        raise OptionInvalid(
            f"{values.show(value)} is not {what}, allowed: {kind.allowed}"
        ) from error


def parse_connection(
    given: Mapping[str, Any], spelling: Spelling = Spelling.PYTHON
) -> ConnectionOptions:
    """Parse the options of a plain client, by their names in the table.

    Args:
        spelling: How errors name them, also later errors of the connection.

    Raises:
        OptionUnknown, OptionInvalid: Names the option, its value, and what is allowed.
    """
    return _connection(_read(given, Scope.CONNECTION, spelling))


def connection_of(
    keywords: Mapping[str, Any],
    contact_points: str | Sequence[str] | None,
    *,
    of: str,
    others: Iterable[str] = (),
) -> ConnectionOptions:
    """Parse the keywords of a function called ``of``; raises as `by_option`, `parse_connection`."""
    own = {"contact_points": contact_points}
    return parse_connection(by_option(keywords, own, of=of, others=others))


def parse_source(given: Mapping[str, Any]) -> SourceOptions:
    """Parse the options of ``readStream``; raises as `parse_connection`."""
    return _reading(SourceOptions, given, Scope.SOURCE)


def parse_read(given: Mapping[str, Any]) -> ReadOptions:
    """Parse the options of ``read``; raises as `parse_connection`."""
    return _reading(ReadOptions, given, Scope.READ)


def _reading(kind: type[T], given: Mapping[str, Any], scope: Scope) -> T:
    arguments = _by_option(given, scope)
    found = _filled(arguments, scope, Spelling.SPARK, unless={"queue"})
    may_be_all = found.get("view") in VIEWS_OF_MANY
    queues = select(found, arguments.keys(), scope.value, may_be_all=may_be_all)
    return _filled_in(kind, found, queues=queues)


def parse_view(given: Mapping[str, Any]) -> str:
    """Find which view a read asks for, before other options: Spark asks for its columns first.

    Raises:
        OptionInvalid: No view has that name.
    """
    [option] = [option for option in _of(Scope.READ) if option.name == "view"]
    value, _ = in_force(option, {name.lower(): value for name, value in given.items()})
    return str(option.checked(Spelling.SPARK.named("view", Scope.READ), value))


def parse_sink(given: Mapping[str, Any], spelling: Spelling = Spelling.SPARK) -> SinkOptions:
    """Parse the options of ``writeStream`` and ``write``; raises as `parse_connection`.

    Only ``write`` needs a batch id with a sink id, so its writer checks that.
    """
    found = _read(given, Scope.SINK, spelling)
    if found["batchId"] is not None and found["sinkId"] is None:
        raise OptionInvalid(
            f"option 'batchId' is {found['batchId']}, but 'sinkId' is not set: a batch id means "
            "nothing without a sink id. Set both, or neither"
        )
    return _filled_in(SinkOptions, found)


def _filled_in(kind: type[T], found: _Found, **own: Any) -> T:
    """The options of a format, each in the field that is named like it."""
    names = {one.name for one in fields(kind)} - own.keys() - {"connection"}
    given = {one.field: found[one.name] for one in OPTIONS if one.name in found}
    return kind(connection=_connection(found), **own, **{name: given[name] for name in names})


def _connection(found: _Found) -> ConnectionOptions:
    return ConnectionOptions(
        contact_points=found["contactPoints"],
        keyspace=found["keyspace"],
        datacenter=found["datacenter"],
        connect_timeout_s=found["connectTimeout"],
        login=_login(found),
        tls=_tls(found),
        spelling=found.spelling,
    )


def _login(found: _Found) -> Login | None:
    _needs(found, "password", "username", "nobody can log in with a password alone")
    in_safety = "the variable CASSIEQ_PASSWORD keeps a password out of your code"
    _needs(found, "username", "password", in_safety)
    username, password = found["username"], found["password"]
    return None if username is None else Login(username=username, password=password)


def _tls(found: _Found) -> TlsOptions | None:
    _needs(found, "sslCertFile", "sslCaFile", "TLS is off without it")
    _needs(found, "sslKeyFile", "sslCertFile", "a key is of no use without its certificate")
    _needs(found, "sslKeyPassword", "sslCertFile", "there is no key that it could decrypt")
    _needs(found, "sslVerifyHostname", "sslCaFile", "there is nothing to verify without TLS")
    if found["sslCaFile"] is None:
        return None
    return TlsOptions(
        ca_file=found["sslCaFile"],
        cert_file=found["sslCertFile"],
        key_file=found["sslKeyFile"],
        key_password=found["sslKeyPassword"],
        verifies_hostname=found["sslVerifyHostname"],
        spelling=found.spelling,
    )


def _needs(found: _Found, name: str, other: str, why: str) -> None:
    if found[name] not in (None, True) and found[other] is None:  # TLS verifies by default
        spelling = found.spelling
        raise OptionInvalid(
            f"{spelling.named(name)} is {found[name]!r}, but {spelling.of(other)} is not set: "
            f"{why}. Set both, or neither"
        )


def _of(scope: Scope) -> list[Option]:
    return [option for option in OPTIONS if scope in option.scopes]


class _Found(dict[str, Any]):
    """The values of options by name, and how errors spell the names."""

    spelling: Spelling


def _read(given: Mapping[str, Any], scope: Scope, spelling: Spelling) -> _Found:
    """Read every option of a scope, by name; None if it is unset and has no default."""
    return _filled(_by_option(given, scope), scope, spelling)


GIVEN: Final = "given"
FILE: Final = "file"
DEFAULT: Final = "default"


def in_force(
    option: Option, given: Mapping[str, Any], file: Mapping[str, Any] | None = None
) -> tuple[Any, str]:
    """The value of an option that counts, and where it comes from.

    Args:
        given: Arguments or flags by the option's name; None counts as not given.
        file: What a configuration file says.

    Returns:
        The value with `GIVEN`, the variable's name, `FILE` or `DEFAULT`; nothing is checked.
    """
    if (value := given.get(option.name)) is not None:
        return value, GIVEN
    # A queue's settings are stored: they must not depend on who opens it from where.
    if option.has_variable and Scope.QUEUE not in option.scopes and option.variable in os.environ:
        return os.environ[option.variable], option.variable
    if file is not None and option.name in file:
        return file[option.name], FILE
    return option.default, DEFAULT


def _filled(
    arguments: Mapping[str, Any], scope: Scope, spelling: Spelling, unless: Set[str] = frozenset()
) -> _Found:
    """Fill in the options of a scope that are no argument, from variables and defaults.

    Args:
        unless: Required options that may be unset this time.
    """
    found = _Found()
    found.spelling = spelling
    for option in _of(scope):
        value, origin = in_force(option, arguments)
        named = spelling.named(option.name, scope)
        if origin != DEFAULT:
            value = option.checked(named if origin == GIVEN else f"variable {origin}", value)
        elif option.is_required and option.name not in unless:
            raise OptionInvalid(
                f"{named} is not set. {option.doc} Set it, or the variable {option.variable}, to "
                f"{option.values.allowed}" + nearest_to(option.variable, os.environ)
            )
        found[option.name] = value
    return found


def _by_option(given: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """Collect what was given and is not None, by the option's own name.

    Spark lower-cases names, so case does not count; Python's keyword arguments are taken as is.
    """
    known = {_key(option.name, scope): option for option in _of(scope)}
    spelt: dict[str, str] = {}
    arguments: dict[str, Any] = {}
    for name, value in given.items():
        key = _key(name, scope)
        if scope in FORMAT and key in _SPARKS:
            continue
        if key not in known:
            raise unknown(name, scope.value, known.values())
        if key in spelt:
            raise OptionInvalid(
                f"option {known[key].name!r} of {scope.value} is given twice, as {spelt[key]!r} "
                f"and as {name!r}. Leave one out"
            )
        spelt[key] = name
        if value is not None:
            arguments[known[key].name] = value
    return arguments


def _key(name: str, scope: Scope) -> str:
    return name if scope is Scope.QUEUE else name.lower()


def _stored(option: Option, value: Any) -> Any:
    return None if value is None and option.default is None else option.values.parse(value)


def unknown(name: str, whose: str, known: Iterable[Option]) -> OptionUnknown:
    """The error for a name that is not among the known options."""
    names = [option.name for option in known]
    near = did_you_mean(name, names)
    hints = [near.strip()] if near else []
    for option in OPTIONS:
        if option.name.lower() == name.lower() and option.name not in names:
            owners = " and ".join(other.value for other in Scope if other in option.scopes)
            hints.append(f"{option.name!r} belongs to {owners}: leave it out here")
    if not hints:
        hints.append(f"Its options are: {', '.join(sorted(names))}")
    return OptionUnknown(f"{name!r} is not an option of {whose}. {' '.join(hints)}")


_SPARKS: Final = {option.name.lower() for option in SPARKS_OWN}


def check_load(given: Mapping[str, Any]) -> None:
    """Refuse options that fit neither a stream nor a batch.

    What fits one of the two is checked again when Spark makes its reader.

    Raises:
        OptionUnknown, OptionInvalid: Names the option, its value, and what is allowed.
    """
    refuse_path(given)
    names = {name.lower() for name in given}
    known = {one.name.lower(): one for one in OPTIONS if one.scopes & READING}
    for name in given:
        if name.lower() not in known.keys() | _SPARKS:
            whose = f"{Scope.SOURCE.value} or {Scope.READ.value}"
            raise unknown(name, whose, known.values())
    refused: dict[Scope, UsageError] = {}
    for scope, parse in ((Scope.SOURCE, parse_source), (Scope.READ, parse_read)):
        try:
            parse(given)
        except UsageError as error:
            refused[scope] = error
        else:
            return
    own = {
        scope: sum(known[name].scopes & READING == {scope} for name in names & known.keys())
        for scope in refused
    }
    raise refused[max(own, key=own.__getitem__)]


def refuse_path(given: Mapping[str, Any]) -> None:
    """Refuse the argument of ``load``, ``save`` and ``start``: a queue has no path.

    Raises:
        OptionInvalid: It is there.
    """
    for name, value in given.items():
        if name.lower() in ("path", "paths"):
            raise OptionInvalid(
                f"option {name.lower()!r} is {value!r}, but a path means nothing here. It is the "
                "argument of load, save or start: leave it out, and name the queue with option "
                "'queue'"
            )
