"""Random draws of one actor from one number: another actor more changes none of them."""

from __future__ import annotations

import random
from typing import Any

MASK = (1 << 64) - 1


def mixed(value: int) -> int:
    """One step of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom generators)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


class Draws(random.Random):
    """The draws of one actor, by its name."""

    def __init__(self, seed: int, actor: str) -> None:
        state = mixed(seed & MASK)
        for byte in actor.encode():
            state = mixed(state ^ byte)
        self._state = state
        self._count = 0
        super().__init__()

    def seed(self, *_: Any, **__: Any) -> None:
        """It has its seed."""

    def _next(self) -> int:
        self._count += 1
        return mixed(self._state + self._count)

    def random(self) -> float:
        """A number from 0 to below 1."""
        return (self._next() >> 11) / (1 << 53)

    def getrandbits(self, k: int) -> int:
        """As many random bits."""
        found = 0
        for _ in range(0, k, 64):
            found = found << 64 | self._next()
        return found & ((1 << k) - 1)
