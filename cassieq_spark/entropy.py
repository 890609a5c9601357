"""Make all random values of the package; nothing here guards a secret."""

from __future__ import annotations

import os
import random
import uuid
from typing import Final

MAX_DOUBLINGS: Final = 10
"""A pause grows no further: the 10th doubling of 50 ms is most of a minute."""


def new_uuid() -> uuid.UUID:
    """A random (version 4) UUID."""
    return uuid.uuid4()


def uuid_at(time_us: int) -> uuid.UUID:
    """A random UUID (version 7) that tells the millisecond it was made for."""
    noise = uuid.uuid4().int & (1 << 76) - 1  # with its variant
    return uuid.UUID(int=time_us // 1_000 << 80 | 7 << 76 | noise)


def generator(seed: int | None = None) -> random.Random:
    """Random numbers: the same ones for the same seed, different ones each time without one."""
    return random.Random(seed)


shared: Final = generator()
"""For all who need no seed of their own: a generator has 2.5 KB. Thread-safe."""

# Spark forks its Python workers: with the parent's state in each, all would pause for the same
# time, and meet again [P28]. The operating system feeds uuid4, so that needs no care.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared.seed)


def jitter(base_s: float, attempt: int, rng: random.Random = shared) -> float:
    """Seconds to pause after failed try ``attempt`` (from 0).

    It is a quarter to all of ``base_s``, doubled for each try before.
    """
    return rng.uniform(0.25, 1.0) * base_s * (1 << min(attempt, MAX_DOUBLINGS))


def new_revision() -> int:
    """A number of 63 random bits: no two updates of a message draw the same."""
    return uuid.uuid4().int >> 65
