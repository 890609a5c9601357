"""The only randomness of the package."""

from __future__ import annotations

import random
import uuid
from typing import Final

_jitter: Final = random.Random()


def new_uuid() -> uuid.UUID:
    """A random (version 4) UUID."""
    return uuid.uuid4()


def jitter(base_s: float, attempt: int) -> float:
    """Seconds to wait before the next try: a random part of ``base_s`` doubled per attempt."""
    return _jitter.uniform(0.25, 1.0) * base_s * (1 << attempt)
