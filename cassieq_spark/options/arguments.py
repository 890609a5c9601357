"""Check the arguments of a queue's methods before anything is read or written."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from uuid import UUID

from cassieq_spark.errors import BodyInvalid, OptionInvalid
from cassieq_spark.model import group as groups
from cassieq_spark.model.dedup import Until
from cassieq_spark.model.ids import ID_LIMIT
from cassieq_spark.model.lanes import MAX_KEY_BYTES, longest_delay_us
from cassieq_spark.model.moments import us_of
from cassieq_spark.model.sizes import MAX_BODY_BYTES, MAX_EXTRA_BYTES
from cassieq_spark.options import values
from cassieq_spark.options.option import FOUR_HUNDRED_DAYS_S, THIRTY_DAYS_S
from cassieq_spark.options.values import Values

T = TypeVar("T")

MOST_MESSAGES = 1_000_000
"""The most messages that one call may ask for."""

MOST_REASON: Final = 200
"""The most characters of a reason, and of a name."""

DELAY: Final = values.seconds(0, FOUR_HUNDRED_DAYS_S, from_text=False)
TTL: Final = values.seconds(1, FOUR_HUNDRED_DAYS_S, from_text=False)

_VISIBILITY = values.seconds(0.1, THIRTY_DAYS_S, from_text=False)
_EXTENSION = values.seconds(0, THIRTY_DAYS_S, from_text=False)
_MOMENT = values.moment(from_text=False)
_WAIT = values.seconds(0, 86_400, from_text=False)
_COUNT = values.whole(1, MOST_MESSAGES, from_text=False)
_ID = values.whole(0, ID_LIMIT - 1, from_text=False)
_RETRIES = values.whole(0, MOST_MESSAGES, from_text=False)
_NAME = values.text(MOST_REASON)
_SINK_ID = values.text(400)
_ON_STALE = values.one_of("count", "fail")


def visibility_us(value: object) -> int:
    """Check ``get(visibility_timeout=)``; return µs."""
    return microseconds("visibility_timeout", value, _VISIBILITY)


def extension_us(value: object) -> int:
    """Check the timeout of ``extend`` and ``update``, where 0 gives the message back; return µs."""
    return microseconds("visibility_timeout", value, _EXTENSION)


def delay_us(value: object) -> int:
    """Check the delay of ``release``; return µs."""
    return microseconds("delay", value, _EXTENSION)


def after_us(value: object) -> int:
    """Check the ``after`` of `Retry`; return µs."""
    return microseconds("after", value, _EXTENSION)


def each(name: str, value: object, count: int) -> list[tuple[str, object]]:
    """The values of a call's messages with their names: one for all, or a list's entry for each.

    Raises:
        OptionInvalid: The list has another number of entries.
    """
    if not isinstance(value, list | tuple):
        return [(name, value)]
    if len(value) != count:
        raise OptionInvalid(
            f"{name} has {len(value)} entries for {count} bodies. Give one value for all, or one "
            "for each body"
        )
    return [(f"{name}[{at}]", one) for at, one in enumerate(value)]


def due_in_us(
    delay: object, due_at: object, *, now_us: int, period_us: int, named: str = "delay"
) -> int:
    """Check ``put(delay=, due_at=)``; return in how many µs the message is due, 0: at once.

    Args:
        period_us: The queue's ``schedule_period``.
        named: How errors name the delay.

    Raises:
        OptionInvalid: Both are given, a time has no time zone, or it is too far ahead.
    """
    if due_at is None:
        in_us = microseconds(named, delay, DELAY)
        name, shown = named, reprlib.repr(delay)
    else:
        if delay != 0 or isinstance(delay, bool):
            raise OptionInvalid(
                f"{named} is {reprlib.repr(delay)} and due_at is {due_at!r}. Give one of the two"
            )
        in_us = max(0, moment_us("due_at", due_at) - now_us)
        name, shown = "due_at", str(due_at)
    longest_us = longest_delay_us(period_us)
    if in_us > longest_us:
        raise OptionInvalid(
            f"{name} is {shown}, but with schedule_period={period_us / 1e6:g} a message of this "
            f"queue may be due at most {values.show_seconds(longest_us / 1e6)} ahead: 400 days, "
            "and 10,000 periods. Choose an earlier time, or a queue with a longer schedule_period"
        )
    return in_us


def moment_us(name: str, value: object) -> int:
    """Check a time with a time zone; return µs since the epoch."""
    return us_of(_MOMENT.checked(name, value))


def ttl_us(value: object) -> int:
    """Check the time to live of ``put``; return µs, 0 for None."""
    return 0 if value is None else microseconds("ttl", value, TTL)


def wait_s(value: object, name: str = "wait") -> float:
    """Check ``get(wait=)``; return seconds."""
    return _WAIT.checked(name, value)


def count(name: str, value: object) -> int:
    """Check a number of messages."""
    return _COUNT.checked(name, value)


def priority(name: str, value: object, classes: int) -> int:
    """Check the priority of a message, or the lowest one that a get asks for."""
    try:
        return values.whole(0, classes - 1, from_text=False).checked(name, value)
    except OptionInvalid as error:
        raise OptionInvalid(
            f"{error.message}: the queue was created with priorities={classes}, which cannot "
            "change. For more, create another queue"
        ) from error


def key(name: str, value: object) -> str | None:
    """Check ``put(key=, dedup_key=)``; None: none was given."""
    if value is None:
        return None
    if isinstance(value, str) and 1 <= len(_text(name, value).encode()) <= MAX_KEY_BYTES:
        return value
    raise OptionInvalid(
        f"{name} is {reprlib.repr(value)}, allowed: text of 1 to {MAX_KEY_BYTES:,} bytes in UTF-8"
    )


def group(name: str, value: object) -> str | None:
    """Check ``put(group=)``; None: none was given."""
    if value is None or (isinstance(value, str) and groups.is_group(value)):
        return value
    raise OptionInvalid(f"{name} is {reprlib.repr(value)}, allowed: {groups.ALLOWED}")


def dedup_keys(value: object, count: int, *, window_s: float | None) -> list[str | None] | None:
    """Check ``put_many(dedup_keys=)``: an entry for each body; None: no message has a key.

    Args:
        window_s: The queue's ``dedup_window``.
    """
    if value is None:
        return None
    given = listed(value)
    if given is None or len(given) != count:
        what = type(value).__name__ if given is None else f"{len(given)} entries"
        raise OptionInvalid(
            f"dedup_keys has {what} for {count} bodies. Give a list with one entry for each body: "
            "None for a body without a key"
        )
    keys = [key("dedup_key", one) for one in given]
    if window_s is None and any(one is not None for one in keys):
        raise OptionInvalid(
            "dedup_key is given, but the queue does not look for duplicates. Set its dedup_window: "
            "client.alter_queue(name, dedup_window=3600)"
        )
    return keys


def dedup_until(value: object) -> Until:
    """Check ``put(dedup_until=)``."""
    if value in list(Until):
        return Until(str(value))
    allowed = ", ".join(repr(one.value) for one in Until)
    raise OptionInvalid(f"dedup_until is {reprlib.repr(value)}, allowed: {allowed}")


def listed(value: object) -> list[Any] | None:
    """Return the items of a list, a tuple, a generator or the like; None if it is none of these.

    A dict would pass as its keys, and an empty dict or empty bytes as an empty list: the caller
    would think that its messages are done. A set has no order to answer in.
    """
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping | set | frozenset):
        return None
    try:
        each = iter(value)  # type: ignore[call-overload]  # that is the question
    except TypeError:
        return None
    return list(each)


def id_of(value: object) -> int:
    """Check the id of a message in its queue: ``Message.id``, which is not its message id."""
    return _ID.checked("a message's id", value)


def retries(value: object) -> int:
    """Check how many times a worker's function tries a message again."""
    return _RETRIES.checked("retries", value)


def reason(value: object) -> str:
    """Check why messages are dead: a few words, since their bucket's row stores them."""
    return _NAME.checked("reason", value)


def sink_id(value: object) -> str:
    """Check the sink id of ``forget_sink``, by the rules of option ``sinkId``."""
    return _SINK_ID.checked("sink_id", value)


def check_where(value: object) -> None:
    """Check ``redrive(where=)``."""
    if value is not None and not callable(value):
        raise OptionInvalid(
            f"where is {type(value).__name__}, allowed: a function that takes a message and "
            "returns whether to redrive it"
        )


def on_stale(value: object) -> str:
    """Check ``settle(on_stale=)``."""
    return _ON_STALE.checked("on_stale", value)


def consumer(value: object) -> str:
    """Check ``get(consumer=)``."""
    return _NAME.checked("consumer", value)


def body(value: object) -> bytes:
    """Check the content of a message.

    Raises:
        BodyInvalid: It is not bytes, or too long.
    """
    if isinstance(value, str):
        raise BodyInvalid(
            "a body must be bytes, but this one is text. Encode it, e.g. body.encode('utf-8')"
        )
    if not isinstance(value, bytes | bytearray | memoryview):
        raise BodyInvalid(
            f"a body must be bytes, but this one is {type(value).__name__}. Serialise it first, "
            "e.g. json.dumps(value).encode('utf-8')"
        )
    try:
        size = value.nbytes if isinstance(value, memoryview) else len(value)
    except ValueError as error:
        raise BodyInvalid("this body is a memoryview that was released. Pass its bytes") from error
    if size > MAX_BODY_BYTES:
        raise BodyInvalid(
            f"a body has {size:,} bytes, but the limit is {MAX_BODY_BYTES:,}. Store it elsewhere "
            "and put a reference to it"
        )
    return bytes(value)


def tag(value: object) -> str | None:
    """Check a tag, the text to route a message by."""
    return None if value is None else _text("tag", value)


def headers(value: object) -> dict[str, str]:
    """Check headers: a mapping of text to text, without the name that group ids have there."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise OptionInvalid(f"headers must be a dict of text to text, not {type(value).__name__}")
    if groups.HEADER in value:
        raise OptionInvalid(
            f"header {groups.HEADER!r} is how a queue stores a group id. Give group="
            f"{reprlib.repr(value[groups.HEADER])} in its place"
        )
    try:
        is_plain = "".join((*value, *value.values())).isascii()  # as nearly always, and quick
    except TypeError:
        is_plain = False  # one is not text
    return dict(value) if is_plain else {key: _of_header(key, value[key]) for key in value}


def message_id(value: object) -> UUID | None:
    """Check the message id of a put: a UUID or its text; None: none is chosen."""
    return None if value is None else known_message_id(value)


def known_message_id(value: object) -> UUID:
    """Check the id of a message that there is."""
    if isinstance(value, UUID):
        return value
    if isinstance(value, str):
        try:
            found = UUID(value)
        except ValueError:
            pass
        else:
            # UUID() takes braces, urn: and any dashes, but a stored id must be found as it was
            # given.
            if str(found) == value.lower():
                return found
    raise OptionInvalid(
        f"message_id is {reprlib.repr(value)}, allowed: a UUID or its text of 36 characters"
    )


def check_extras(tag_: str | None, headers_: dict[str, str]) -> None:
    """Refuse a tag or headers so large that they are a body in disguise."""
    size = len("".join((tag_ or "", *headers_, *headers_.values())).encode())
    if size > MAX_EXTRA_BYTES:
        raise OptionInvalid(
            f"tag, headers and group have {size:,} bytes, but the limit is {MAX_EXTRA_BYTES:,}. "
            "Put the rest into the body"
        )


def _of_header(name: Any, text: Any) -> str:
    """The text of a header, once both it and its name are checked."""
    checked_name = _text("a header's name", name)
    return _text(f"header {checked_name!r}", text)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise OptionInvalid(f"{name} is {reprlib.repr(value)}, allowed: text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        if "\udc80" <= value[error.start] <= "\udcff":  # as Python shows a byte of an argument
            what = (
                "which has bytes that this process cannot read as text: the encoding of its locale "
                f"is {sys.getfilesystemencoding()}. Set LC_ALL to a UTF-8 locale, such as C.UTF-8, "
                "and give UTF-8"
            )
        else:
            what = "which contains half of a character, so it cannot be stored as UTF-8"
        raise OptionInvalid(f"{name} is {reprlib.repr(value)}, {what}") from error
    return value


def microseconds(name: str, value: object, allowed: Values[float]) -> int:
    """Check a length of time; return µs."""
    return round(allowed.checked(name, value) * 1e6)


LABEL_BYTES: Final = 65_536
"""The most bytes that the labels of a queue have together: its row is read with every open."""


def labels(value: object) -> dict[str, str | None]:
    """Check labels: a mapping of text to text, or to None for a label that is removed."""
    if not isinstance(value, Mapping):
        raise OptionInvalid(f"labels must be a dict of text to text, not {type(value).__name__}")
    return {
        _text("a label's name", key): None
        if value[key] is None
        else _text(f"label {key!r}", value[key])
        for key in value
    }


def check_labels(checked: Mapping[str, str]) -> None:
    """Refuse labels that are too large together."""
    size = sum(len(key.encode()) + len(text.encode()) for key, text in checked.items())
    if size > LABEL_BYTES:
        raise OptionInvalid(
            f"the labels of a queue would have {size:,} bytes, allowed: {LABEL_BYTES:,}. Remove "
            "some, or make them shorter"
        )
