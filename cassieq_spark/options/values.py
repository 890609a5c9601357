"""Parse the values of options: one parser per kind, which describes its range in words."""

from __future__ import annotations

import ipaddress
import math
import os
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import index
from types import UnionType
from typing import Any, Final, Generic, NoReturn, TypeVar

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.ids import QueueName

T = TypeVar("T")

DEFAULT_PORT: Final = 9042

HIDDEN: Final = "***"
"""The text that replaces a secret everywhere."""

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_UNITS_BYTES: Final = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}

# [0-9], not \d, which takes the digits of every script; and no more than a number can need.
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DURATION: Final = re.compile(r"(?P<number>[0-9]{1,12}(?:\.[0-9]{1,9})?) ?(?P<unit>ms|s|m|h|d)?")
_SIZE: Final = re.compile(r"(?P<number>[0-9]{1,19}) ?(?P<unit>[bkmg])?")
_ACCOUNT_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_OWN_NAME: Final = "[A-Za-z0-9._-]{1,200}"
_QUEUE_NAME: Final = re.compile(rf"(?:{_ACCOUNT_NAME.pattern}/)?{_OWN_NAME}")
_KEYSPACE: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")
_CONTACT_POINT: Final = re.compile(
    r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[\w.-]+))(?::(?P<port>[0-9]{1,5}))?"
)


class NotAllowed(Exception):
    """A value is not allowed; the caller catches this and names the option and the value."""


class Secret:
    """Text that prints as ``***`` wherever it is shown.

    It compares by its text and is hashable, since options are the key of a process's sessions. It
    pickles with its text: Spark's tasks need it to connect. It is not a dataclass: ``asdict`` would
    copy the text into a plain dict that somebody then logs.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text. Pass it on at once; keep it in no variable that outlives the call."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return Secret, (self._text,)


@dataclass(frozen=True, slots=True)
class Values(Generic[T]):
    """The values an option may have.

    Attributes:
        allowed: The range in words, for errors and the reference.
        parse: Turns what a user gives into the value; raises `NotAllowed`.
        schema: The range as JSON Schema, for values that come as JSON; empty: anything.
    """

    allowed: str
    parse: Callable[[object], T]
    schema: Mapping[str, Any] = field(default_factory=dict)

    def checked(self, where: str, value: object, *, is_secret: bool = False) -> T:
        """Parse a value.

        Raises:
            OptionInvalid: Names where it stands, the value, and what is allowed.
        """
        try:
            return self.parse(value)
        except NotAllowed as error:
            shown = HIDDEN if is_secret else show(value)
            raise OptionInvalid(f"{where} is {shown}, allowed: {self.allowed}") from error


def _where(
    allowed: str,
    fits: Callable[[Any], bool],
    schema: Mapping[str, Any] | None = None,
    *,
    read: Callable[[Any], Any] = lambda value: value,
) -> Values[Any]:
    """Values that fit once they are read."""

    def parse(value: object) -> Any:
        found = read(value)
        if not fits(found):
            raise NotAllowed
        return found

    return Values(allowed, parse, schema or {})


def _plain(value: Any) -> Any:
    """Make an int of what Python takes for one (``__index__``), such as numpy's; a bool is none."""
    try:
        return value if isinstance(value, bool) else index(value)
    except TypeError:
        return value


def _is_number(value: object, low: float, high: float, kind: type | UnionType = int) -> bool:
    # NaN is in no range; a huge int cannot become a float, so the range comes first.
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    return is_number and low <= value <= high  # type: ignore[operator]  # a number


def _matching(pattern: re.Pattern[str]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def whole(low: int, high: int, *, from_text: bool = True) -> Values[int]:
    """Whole numbers of a range.

    Args:
        from_text: Whether digits as text are allowed, as Spark passes options on.
    """

    def read(value: object) -> object:
        if from_text and isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
            return int(value.strip())  # strips more than int() does
        return _plain(value)

    return _where(
        f"a whole number from {low:,} to {high:,}",
        lambda value: _is_number(value, low, high),
        {"type": "integer", "minimum": low, "maximum": high},
        read=read,
    )


def size_bytes(low: int, high: int) -> Values[int]:
    """Numbers of bytes: ``262144``, ``"256k"``, ``"32m"``."""

    def read(value: object) -> object:
        if not isinstance(value, str):
            return _plain(value)
        match = _SIZE.fullmatch(value.strip().lower()) or _refuse()
        return int(match["number"]) * _UNITS_BYTES[match["unit"] or "b"]

    allowed = f"bytes from {show_bytes(low)} to {show_bytes(high)}, such as '256k'"
    return _where(allowed, lambda value: _is_number(value, low, high), read=read)


def seconds(low: float, high: float, *, from_text: bool = True) -> Values[float]:
    """Lengths of time, to the microsecond: ``30``, ``0.5``, a timedelta, ``"30s"``, ``"5m"``.

    Args:
        from_text: Whether text is allowed, as Spark passes options on. The Python API refuses it.
    """
    kinds = "seconds, or text such as '30s' or '5m'" if from_text else "seconds or timedelta"

    def parse(value: object) -> float:
        if isinstance(value, timedelta):
            value = value.total_seconds()
        elif from_text and isinstance(value, str):
            match = _DURATION.fullmatch(value.strip().lower()) or _refuse()
            value = float(match["number"]) * _UNITS_S[match["unit"] or "s"]
        return _to_micros(value, low, high)

    allowed = f"a time from {show_seconds(low)} to {show_seconds(high)}: {kinds}"
    return Values(allowed, parse, {"type": "number", "minimum": low, "maximum": high})


def share(high: float) -> Values[float]:
    """Shares of a whole, from 0."""
    schema = {"type": "number", "minimum": 0, "maximum": high}
    return Values(f"a number from 0 to {high}", lambda value: _to_micros(value, 0, high), schema)


def _to_micros(value: Any, low: float, high: float) -> float:
    """Keep time in microseconds: two ways to write the same time must be equal."""
    value = _plain(value)
    if not _is_number(value, low, high, int | float) or not math.isfinite(value):
        raise NotAllowed
    return round(float(value), 6) + 0.0


def flag() -> Values[bool]:
    """True or false, and nothing that only looks like it."""
    words = {"true": True, "false": False}
    return _where(
        "true or false",
        lambda value: isinstance(value, bool),
        {"type": "boolean"},
        read=lambda value: words.get(str(_lower(value))) if isinstance(value, str) else value,
    )


def one_of(*words: str) -> Values[str]:
    """Return the values that are a few lower-case words, in any capitalisation."""
    allowed = " or ".join(repr(word) for word in words)
    schema = {"type": "string", "enum": list(words)}
    return _where(allowed, lambda value: value in words, schema, read=_lower)


def text(longest: int) -> Values[str]:
    """Printable text without blanks around it, which nobody would see in a log."""

    def fits(value: object) -> bool:
        return (
            isinstance(value, str)
            and 1 <= len(value) <= longest
            and value.isprintable()
            and value == value.strip()
        )

    schema = {"type": "string", "minLength": 1, "maxLength": longest}
    return _where(f"1 to {longest} printable characters, no space first or last", fits, schema)


def secret(longest: int) -> Values[Secret]:
    """Text that is never shown. Blanks count: a password may begin or end with one."""

    def parse(value: object) -> Secret:
        if isinstance(value, Secret):
            value = value.reveal()
        # NUL ends a field of the SASL PLAIN message that carries it.
        if not isinstance(value, str) or not 1 <= len(value) <= longest or "\0" in value:
            raise NotAllowed
        try:
            value.encode()
        except UnicodeEncodeError as error:  # half of a character cannot be sent
            raise NotAllowed from error
        return Secret(value)

    return Values(f"1 to {longest:,} characters, no NUL", parse)


def file_path() -> Values[str]:
    """Paths of files. A path is checked where the file is read, which is on each machine."""
    return _where(
        "the path of a file",
        lambda value: isinstance(value, str) and bool(value.strip()) and value.isprintable(),
        read=lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value,
    )


def account_name() -> Values[str]:
    """Names of accounts: safe in a file name, a URL path and a log line, and never ``.``."""
    return _where(
        "1 to 64 of a-z, 0-9, '-' and '_', beginning with a letter or digit",
        _matching(_ACCOUNT_NAME),
    )


def queue_name() -> Values[QueueName]:
    """Names of queues, ``orders`` or ``account/orders``: safe in a URL path and a log line."""
    return _where(
        "1 to 200 letters (a-z, A-Z), digits, '.', '-' or '_'; before it may be an account and '/'",
        _matching(_QUEUE_NAME),
        # Over HTTP, the account is the caller's.
        {"type": "string", "pattern": f"^{_OWN_NAME}$"},
    )


def queue_names() -> Values[tuple[QueueName, ...]]:
    """Several names of queues in one text, as Spark's options are texts."""
    one = queue_name()

    def parse(value: object) -> tuple[QueueName, ...]:
        if not isinstance(value, str):
            raise NotAllowed
        names = tuple(one.parse(name.strip()) for name in value.split(","))
        if len(set(names)) < len(names):
            raise NotAllowed
        return names

    return Values("different names of queues, separated by commas", parse, {"type": "string"})


def pattern() -> Values[str]:
    """Regular expressions."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or not value:
            raise NotAllowed
        try:
            re.compile(value)
        except (re.error, RecursionError, OverflowError, Warning):
            # A warning ("[[" may once mean something else), where a program makes them errors.
            raise NotAllowed from None
        return value

    return Values("a regular expression of Python", parse, {"type": "string"})


def moment(*, from_text: bool = True) -> Values[datetime]:
    """Times of day and date, with their time zone.

    Args:
        from_text: Whether text is allowed, as ISO 8601 writes times. The Python API refuses it.
    """
    allowed = "a time with a time zone, such as 2030-01-01T09:00Z or 2030-01-01T09:00+01:00"
    if not from_text:
        allowed = (
            "a datetime with a time zone, such as datetime(2030, 1, 1, tzinfo=UTC). Without one it "
            "is unknown which moment is meant"
        )

    def parse(value: object) -> datetime:
        try:
            found = datetime.fromisoformat(value) if from_text and isinstance(value, str) else value
        except ValueError:
            raise NotAllowed from None
        if not isinstance(found, datetime) or found.utcoffset() is None:
            raise NotAllowed
        return found

    return Values(allowed, parse, {"type": "string", "format": "date-time"})


def keyspace() -> Values[str]:
    """Names that CQL takes without quotes and does not change."""
    return _where(
        "1 to 48 lower-case letters, digits or '_', beginning with a letter", _matching(_KEYSPACE)
    )


def contact_points() -> Values[tuple[tuple[str, int], ...]]:
    """Hosts with ports, ``(("127.0.0.1", 9042), ...)``, from text or a list of texts."""

    def parse(value: object) -> tuple[tuple[str, int], ...]:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, Sequence) or not parts:
            raise NotAllowed
        return tuple(_contact_point(part) for part in parts)

    return Values(
        "'host:port,host:port' or a list of 'host:port'; IPv6 addresses in brackets; ports from "
        "1 to 65535",
        parse,
    )


def anything() -> Values[object]:
    """Any value: the option belongs to Spark."""
    return Values("", lambda value: value)


def show_bytes(number: int) -> str:
    """The shortest text that `size_bytes` reads as this number: ``"256k"``."""
    for unit in ("g", "m", "k"):
        if number >= _UNITS_BYTES[unit] and number % _UNITS_BYTES[unit] == 0:
            return f"{number // _UNITS_BYTES[unit]}{unit}"
    return str(number)


def show_seconds(number: float) -> str:
    """The time in the largest unit that makes it whole: ``"30 d"``; else in seconds."""
    for unit in ("d", "h", "m"):
        if number >= _UNITS_S[unit] and number % _UNITS_S[unit] == 0:
            return f"{number / _UNITS_S[unit]:.12g} {unit}"
    return f"{number:.12g} s"


def show(value: object) -> str:
    """Shorten a value to one line. Python refuses to print an integer of 5,000 digits."""
    try:
        return reprlib.repr(value)
    except ValueError:
        return f"a very large {type(value).__name__}"


def _contact_point(part: object) -> tuple[str, int]:
    if not isinstance(part, str):
        raise NotAllowed
    match = _CONTACT_POINT.fullmatch(part.strip()) or _refuse()
    port = DEFAULT_PORT if match["port"] is None else int(match["port"])
    if not 1 <= port <= 65_535:  # noqa: PLR2004 - the range of ports
        raise NotAllowed
    if match["v6"] is None:
        return _host(match["host"]), port
    try:
        return str(ipaddress.IPv6Address(match["v6"])), port
    except ipaddress.AddressValueError as error:
        raise NotAllowed from error


def _host(name: str) -> str:
    """Check that a name can be looked up: ``getaddrinfo`` raises its own errors on bad names."""
    try:
        name.encode("idna")
    except UnicodeError as error:  # a label that is empty, or has more than 63 characters
        raise NotAllowed from error
    return name


def _refuse() -> NoReturn:
    raise NotAllowed
