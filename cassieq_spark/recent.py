"""`Recent` keeps what was used last of something there are ever more of, such as queues.

What is in use is never made twice: as long as anybody holds a value, it is found under its key. So
whatever is dropped here is at rest, and only what it has learned is lost: the next one is made as
in a program that has just begun.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by key: what anybody holds, and the ``most`` that were used last. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._held: WeakValueDictionary[K, V] = WeakValueDictionary()
        self._last: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """The value under a key, which is used by this; None: it is not known."""
        with self._lock:
            found = self._held.get(key)
            return None if found is None else self._use(key, found)

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """The value under a key, which is used by this; one that ``make`` returns if there is none.

        Args:
            make: It must be quick: others wait meanwhile.
        """
        with self._lock:
            found = self._held.get(key)
            if found is None:
                found = self._held[key] = make()
            return self._use(key, found)

    def keep(self, key: K, value: V) -> V:
        """Put a value in the place of the one under its key, if there is one; return it."""
        with self._lock:
            self._held[key] = value
            return self._use(key, value)

    def forget(self, key: K) -> None:
        """Forget the value under a key: what it is about is gone. Whoever holds it may go on."""
        with self._lock:
            self._held.pop(key, None)
            self._last.pop(key, None)

    def values(self) -> list[V]:
        """All values that are kept here or held anywhere."""
        with self._lock:
            return list(self._held.values())

    def _use(self, key: K, value: V) -> V:
        self._last[key] = value
        self._last.move_to_end(key)
        if len(self._last) > self._most:
            self._last.popitem(last=False)
        return value
