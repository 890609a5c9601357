"""Show messages, mostly dead letters, as JSON objects, and select them by their content."""

from __future__ import annotations

import base64
import reprlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.dead_letter import headers_of
from cassieq_spark.model.moments import show_time
from cassieq_spark.options import values
from cassieq_spark.options.values import NotAllowed
from cassieq_spark.queue.message import Delivery, Message

_AGE: Final = values.seconds(0, 36_500 * 86_400.0)

HEADER: Final = "header."
KEYS: Final = "tag, group, source-queue, reason, message-id, header.NAME"


def body_as_object(body: bytes) -> dict[str, Any]:
    """Return a body as entries of a JSON object. One that is not UTF-8 is base64, and marked so."""
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode("ascii"), "encoding": "base64"}


def as_object(message: Message) -> dict[str, Any]:
    """Return the message as a JSON object. A body that is not UTF-8 is base64, and marked so."""
    held = message if isinstance(message, Delivery) else None
    return {
        "message_id": message.message_id,
        "id": message.id,
        "lane": str(message.lane),
        "priority": message.priority,
        **body_as_object(message.body),
        "tag": message.tag,
        "group": message.group,
        "headers": dict(message.headers),
        "receipt": None if held is None else held.receipt,
        "delivery_count": message.delivery_count,
        "enqueued_at": show_time(message.enqueued_at),
        "visible_until": None if held is None else show_time(held.visible_until),
    }


def letter_as_object(message: Message) -> dict[str, Any]:
    """Return a dead letter as a JSON object, with its source queue and its reason of death."""
    letter = headers_of(message.headers)
    return {
        **as_object(message),
        "source_queue": letter.source_queue,
        "reason": letter.reason,
        "deliveries": letter.deliveries,
        "first_time": show_time(letter.first_time),
        "last_time": show_time(letter.last_time),
    }


def conditions(
    where: Sequence[str] | None,
    before: str | None,
    after: str | None,
    *,
    mark: str = "--",
    now: datetime | None = None,
) -> Callable[[Message], bool]:
    """Combine ``where``, ``before`` and ``after`` into one condition.

    Args:
        where: Texts ``KEY=VALUE``. A message must match every key, by one of its values.
        before, after: Times of death in ISO 8601. ``after`` includes its time.
        mark: A prefix that errors write before these names, as the user writes it.
        now: If given, ``5m`` means five minutes before it.

    Raises:
        OptionInvalid: A key is unknown, or a time is malformed; nothing was done.
    """
    wanted: dict[str, set[str]] = defaultdict(set)
    for one in where or []:
        key, is_there, value = one.partition("=")
        is_key = key in VALUES or (key.startswith(HEADER) and key != HEADER)
        if not is_there or not is_key:
            raise OptionInvalid(
                f"{mark}where is {reprlib.repr(one)}, allowed: KEY=VALUE, where KEY is one of "
                f"{KEYS}"
            )
        wanted[key].add(value)
    end, start = _time(f"{mark}before", before, now), _time(f"{mark}after", after, now)

    def is_wanted(message: Message) -> bool:
        if any(_value(message, key) not in allowed for key, allowed in wanted.items()):
            return False
        if end is None and start is None:
            return True
        died = headers_of(message.headers).last_time
        return died is not None and (end is None or died < end) and (start is None or died >= start)

    return is_wanted


VALUES: Final[dict[str, Callable[[Message], str | None]]] = {
    "tag": lambda message: message.tag,
    "group": lambda message: message.group,
    "source-queue": lambda message: headers_of(message.headers).source_queue,
    "reason": lambda message: headers_of(message.headers).reason,
    "message-id": lambda message: message.message_id,
}


def _value(message: Message, key: str) -> str:
    """Return the value of a key; empty if there is none."""
    if key.startswith(HEADER):
        return message.headers.get(key.removeprefix(HEADER), "")
    return VALUES[key](message) or ""


def _time(name: str, given: str | None, now: datetime | None) -> datetime | None:
    if given is None:
        return None
    try:
        try:  # 20261121 is a date, and 300 is five minutes
            found = datetime.fromisoformat(given)
        except ValueError:
            if now is None:
                raise
            found = now - timedelta(seconds=_AGE.parse(given))
    except (ValueError, NotAllowed) as error:
        ago = "" if now is None else ", or how long ago it was, such as 5m, 12h or 7d"
        raise OptionInvalid(
            f"{name} is {reprlib.repr(given)}, allowed: a time such as 2026-11-21T13:00, which is "
            f"UTC if it names no zone{ago}"
        ) from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
