"""Compute how long a message waits before it is tried again. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.frozen import frozen

MOST_DOUBLINGS: Final = 60
"""A bound far above any limit: a number of deliveries has none, and a float overflows."""

MOST_S: Final = 30 * 86_400.0
"""The longest delay for which a message is given back."""


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential backoff with a limit and jitter.

    Attributes:
        base_s: The longest wait after the first failure; it doubles with each further one.
        most_s: The longest wait of all.
        jitter: The part of a wait that is random, 0 to 1: without it, messages that failed together
            would come again together.
    """

    base_s: float = 1.0
    most_s: float = 600.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not (self.base_s >= 0 and 0 <= self.most_s <= MOST_S and 0 <= self.jitter <= 1):
            raise OptionInvalid(
                f"{self} is no backoff, allowed: base_s of 0 or more, most_s up to 30 days, jitter "
                "from 0 to 1"
            )

    def delay_s(self, deliveries: int, drawn: float) -> float:
        """Return the seconds until the next delivery.

        Args:
            deliveries: The number of deliveries so far, 1 or more.
            drawn: A random number from 0 to 1.
        """
        doublings = min(max(deliveries, 1) - 1, MOST_DOUBLINGS)
        longest_s = min(self.most_s, self.base_s * 2.0**doublings)
        return longest_s * (1.0 - self.jitter * drawn)


DEFAULT_BACKOFF: Final = Backoff()
