"""Pass randomness as an argument: ids, pauses and choices; none of them guards a secret.

A client has one `Entropy`, beside its clock. The edges of the package, which no client reaches,
draw from the operating system by `new_uuid` and `generator`.
"""

from __future__ import annotations

import random
from typing import Final
from uuid import UUID

MAX_DOUBLINGS: Final = 10
"""The most doublings of a pause: the 10th of 50 ms is most of a minute."""


class Entropy:
    """Draws all random values of one client. Thread-safe.

    Attributes:
        rng: Draws numbers. By default the operating system does: Spark forks its Python workers,
            and with the parent's state in each, all would pause for the same time, and meet again
            [P28].
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        """Prepare.

        Args:
            rng: A seeded generator, for the same values each time.
        """
        self.rng = random.SystemRandom() if rng is None else rng

    def new_uuid(self) -> UUID:
        """Return a random (version 4) UUID."""
        return UUID(int=self.rng.getrandbits(128), version=4)

    def uuid_at(self, time_us: int) -> UUID:
        """Return a random UUID (version 7) that holds this time in milliseconds."""
        noise = self.new_uuid().int & (1 << 76) - 1  # the variant is part of it
        return UUID(int=time_us // 1_000 << 80 | 7 << 76 | noise)

    def new_revision(self) -> int:
        """Return a number of 63 random bits: no two updates of a message draw the same."""
        return self.rng.getrandbits(63)

    def jitter(self, base_s: float, attempt: int) -> float:
        """Return the seconds to pause after failed try ``attempt`` (from 0).

        The pause is a quarter to all of ``base_s``, doubled for each earlier try.
        """
        return self.rng.uniform(0.25, 1.0) * base_s * (1 << min(attempt, MAX_DOUBLINGS))


system: Final = Entropy()
"""For the edges of the package, which no client reaches."""


def new_uuid() -> UUID:
    """Return a random (version 4) UUID of the operating system, for the edges of the package."""
    return system.new_uuid()


def generator(seed: int | None = None) -> random.Random:
    """Return a generator: the same numbers for the same seed, other ones each time without one."""
    return random.Random(seed)
