"""Define the headers of a dead letter: its origin, and the reason. Repair writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

PREFIX: Final = "cassieq-"

HISTORY: Final = "cassieq-history"
"""The header of all moves of a message, oldest first, as JSON. The last death has headers, too."""

SOURCE_QUEUE: Final = "source-queue"
SOURCE_ID: Final = "source-id"
DELIVERIES: Final = "deliveries"
FIRST_TIME: Final = "first-time"
LAST_TIME: Final = "last-time"
REASON: Final = "reason"
PRIORITY: Final = "priority"
SHARD: Final = "shard"

_OF_A_DEATH: Final = frozenset(
    PREFIX + name for name in (SOURCE_QUEUE, SOURCE_ID, DELIVERIES, FIRST_TIME, LAST_TIME)
)

MOST_DIGITS: Final = 19
"""The most digits of a number in a header: Python refuses to read a number of 5,000 digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterHeaders:
    """The death of a message; all None if it never died. A redriven message has only a reason.

    Programs that reach Cassandra may write these headers, too. Unreadable values are None.

    Attributes:
        source_queue: The queue in which it died. Older releases wrote it for redrives, too.
        reason: ``max_deliveries``, ``redrive``, or the words of the consumer that rejected it.
        deliveries: The number of its deliveries there.
        priority, shard: The lane in which it was there, if that queue had several.
        first_time, last_time: The times of its put there and of its death; UTC.
    """

    source_queue: str | None
    reason: str | None
    deliveries: int | None
    priority: int | None
    shard: int | None
    first_time: datetime | None
    last_time: datetime | None


def headers_of(headers: Mapping[str, str]) -> DeadLetterHeaders:
    """Read the dead-letter headers from a message's headers."""

    def of(name: str) -> str | None:
        return headers.get(PREFIX + name)

    return DeadLetterHeaders(
        source_queue=of(SOURCE_QUEUE),
        reason=of(REASON),
        deliveries=_number(of(DELIVERIES)),
        priority=_number(of(PRIORITY)),
        shard=_number(of(SHARD)),
        first_time=_time(of(FIRST_TIME)),
        last_time=_time(of(LAST_TIME)),
    )


def _number(text: str | None) -> int | None:
    has_digits = text is not None and text.isascii() and text.isdigit()
    return int(text) if text is not None and has_digits and len(text) < MOST_DIGITS else None


def moved(headers: Mapping[str, str], hop: Mapping[str, str], *, dies: bool) -> dict[str, str]:
    """Return the headers of a message after a move.

    Args:
        hop: The history's entry about the move, by names without their prefix.
        dies: Whether it moves because it is dead. A redriven message is alive: its headers must not
            name a queue in which it died, or the next redrive would send it there.
    """
    now = {PREFIX + name: text for name, text in hop.items() if dies or name == REASON}
    kept = {name: text for name, text in headers.items() if dies or name not in _OF_A_DEATH}
    return {**kept, **now, HISTORY: json.dumps([*history_of(headers), dict(hop)])}


def is_own(name: str) -> bool:
    """Whether only the queue writes a header of this name: no API takes it from a producer.

    A redrive follows such a header. Programs that reach Cassandra may write all of them, and so
    they can copy dead letters.
    """
    return name.lower().startswith(PREFIX)


def history_of(headers: Mapping[str, str]) -> list[Any]:
    """Return all moves. A producer may have written this header: it may hold anything."""
    try:
        found = json.loads(headers.get(HISTORY, "[]"))
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _time(text: str | None) -> datetime | None:
    try:
        found = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found is None or found.tzinfo is not None else found.replace(tzinfo=UTC)
