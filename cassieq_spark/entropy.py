"""Draw all random values of the package; none of them guards a secret."""

from __future__ import annotations

import os
import random
import uuid
from typing import Final

MAX_DOUBLINGS: Final = 10
"""The most doublings of a pause: the 10th of 50 ms is most of a minute."""


def new_uuid() -> uuid.UUID:
    """Return a random (version 4) UUID."""
    return uuid.uuid4()


def uuid_at(time_us: int) -> uuid.UUID:
    """Return a random UUID (version 7) that holds this time in milliseconds."""
    noise = uuid.uuid4().int & (1 << 76) - 1  # the variant is part of it
    return uuid.UUID(int=time_us // 1_000 << 80 | 7 << 76 | noise)


def generator(seed: int | None = None) -> random.Random:
    """Return a generator: the same numbers for the same seed, other ones each time without one."""
    return random.Random(seed)


shared: Final = generator()
"""The generator of all callers that need no seed of their own: each one takes 2.5 KB.
Thread-safe."""

# Spark forks its Python workers. With the parent's state in each, all would pause for the same
# time, and meet again [P28]. The operating system feeds uuid4, which needs no care.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared.seed)


def jitter(base_s: float, attempt: int, rng: random.Random = shared) -> float:
    """Return the seconds to pause after failed try ``attempt`` (from 0).

    The pause is a quarter to all of ``base_s``, doubled for each earlier try.
    """
    return rng.uniform(0.25, 1.0) * base_s * (1 << min(attempt, MAX_DOUBLINGS))


def new_revision() -> int:
    """Return a number of 63 random bits: no two updates of a message draw the same."""
    return uuid.uuid4().int >> 65
