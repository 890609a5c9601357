"""Waits for a condition outside this process, such as a JVM's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_S = 0.05


def becomes_true(condition: Callable[[], bool], *, limit_s: float) -> bool:
    """Whether the condition holds before the limit; it is asked once at least."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)  # noqa: TID251 - no Clock moves another process forward
    return True
