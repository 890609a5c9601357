"""Make answers that hold large messages beside the event loop, which all others wait for.

What shows a message takes up to 10 ms for each MiB of its body: it is decoded, searched, hashed,
and written as JSON or XML. A request of a few bytes is answered with ten messages of a MiB. A
thread does one text after the other, so that the loop gets its turn after each.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cassieq_spark.queue.message import Message

T = TypeVar("T")

AT_ONCE_BYTES: Final = 65_536
"""Less than this takes the loop less than a millisecond, and a thread would cost as much."""

_encoder: Final = json.JSONEncoder()


async def made(make: Callable[[], T], messages: Iterable[Message]) -> T:
    """Return what ``make`` does of the messages."""
    size = sum(len(one.body) + sum(map(len, one.headers.values())) for one in messages)
    return make() if size <= AT_ONCE_BYTES else await asyncio.to_thread(make)


def as_json(value: Any) -> bytes:
    """Write JSON text by text, each of which holds up other threads for itself alone."""
    return "".join(_encoder.iterencode(value)).encode()
