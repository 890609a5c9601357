"""Wait a moment for others, so that one call serves all of them.

a b c d ─► ┌──────┐     b c d have their answers, and ask again one after the other
e   ─►  │ call │ ──► e alone would have the next call, and b c d would wait for it
└──────┘
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

LINGER_S: Final = 0.05
"""The longest time that a call waits until as many have asked as the last call served. It also
waits no longer than a few times as long as the last call took. After a call that served only one,
nobody waits."""


def until_s(*, began_s: float, ended_s: float, times: float = 1.0) -> float:
    """The latest time of the next call.

    Args:
        began_s: When the last call began, by any clock.
        times: How many times as long as the last call took the next one may wait.
    """
    return ended_s + min(LINGER_S, times * (ended_s - began_s))


async def as_many(is_enough: Callable[[], bool], changed: asyncio.Event, until_s: float) -> None:
    """Wait until enough have asked, or the time is over.

    Args:
        changed: Whoever asks sets it.
        until_s: By the event loop's clock.
    """
    if is_enough() or until_s <= asyncio.get_running_loop().time():
        return
    with suppress(TimeoutError):
        async with asyncio.timeout_at(until_s):
            while not is_enough():
                changed.clear()
                await changed.wait()
