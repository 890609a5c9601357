"""Remember keys for a few seconds, so that a request costs the store nothing."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cassieq_spark.clock import Clock

T = TypeVar("T")

KEPT_S: Final = 10.0
"""A key that was disabled is refused after this time at the latest."""

MOST: Final = 10_000


class KeyCache(Generic[T]):
    """What was found under each id, for `KEPT_S`; also that nothing was. Thread-safe.

    Ids that nobody knows have a place of their own: whoever makes up ids pushes out none of the
    known ones.
    """

    def __init__(
        self, find: Callable[[str], Awaitable[T | None]], clock: Clock, *, most: int = MOST
    ) -> None:
        self._find = find
        self._clock = clock
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[float, T]] = OrderedDict()
        self._unknown: OrderedDict[str, float] = OrderedDict()

    async def get(self, key_id: str) -> T | None:
        """What is stored under an id, as it was at most ten seconds ago.

        Raises:
            StoreError: It is not remembered, and cannot be read.
        """
        # From before the read: a change that the read misses is seen ten seconds later, not twenty.
        now_s = self._clock.monotonic()
        is_remembered, found = self.remembered(key_id)
        if is_remembered:
            return found
        found = await self._find(key_id)
        with self._lock:
            self._known.pop(key_id, None)
            self._unknown.pop(key_id, None)
            if found is None:
                self._unknown[key_id] = now_s + KEPT_S
            else:
                self._known[key_id] = (now_s + KEPT_S, found)
            for each in (self._known, self._unknown):
                if len(each) > self._most:
                    each.popitem(last=False)
        return found

    def remembered(self, key_id: str) -> tuple[bool, T | None]:
        """Whether an id is remembered, and what is stored under it; it reads no table."""
        now_s = self._clock.monotonic()
        with self._lock:
            known = self._known.get(key_id)
            if known is not None and now_s < known[0]:
                return True, known[1]
            return now_s < self._unknown.get(key_id, 0.0), None

    def last(self, key_id: str) -> T | None:
        """What was stored under an id when it was last read, however long ago."""
        with self._lock:
            known = self._known.get(key_id)
            return None if known is None else known[1]

    def __len__(self) -> int:
        """How many ids are remembered, known or not."""
        return len(self._known) + len(self._unknown)
