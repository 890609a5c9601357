"""`Recent` keeps the most recently used values of a kind that is ever growing, such as queues.

A value that is in use is never made twice: as long as somebody holds it, it is found under its key.
So only idle values are dropped, and only what they have learned is lost: the next value starts as
in a new program.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by key: those in use anywhere, and the ``most`` that were used last. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._held: WeakValueDictionary[K, V] = WeakValueDictionary()
        self._last: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the value under a key, and mark it as used; None if there is none."""
        with self._lock:
            found = self._held.get(key)
            return None if found is None else self._use(key, found)

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return the value under a key, and mark it as used; ``make`` makes it if there is none.

        Args:
            make: It must be quick: other threads wait meanwhile.
        """
        with self._lock:
            found = self._held.get(key)
            if found is None:
                found = self._held[key] = make()
            return self._use(key, found)

    def keep(self, key: K, value: V) -> V:
        """Store a value under its key, in place of any other; return it."""
        with self._lock:
            self._held[key] = value
            return self._use(key, value)

    def forget(self, key: K) -> None:
        """Forget the value under a key, because its subject is gone. Its holders may go on."""
        with self._lock:
            self._held.pop(key, None)
            self._last.pop(key, None)

    def values(self) -> list[V]:
        """Return all values that are kept here or held anywhere."""
        with self._lock:
            return list(self._held.values())

    def _use(self, key: K, value: V) -> V:
        self._last[key] = value
        self._last.move_to_end(key)
        if len(self._last) > self._most:
            self._last.popitem(last=False)
        return value
