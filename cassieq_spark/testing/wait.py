"""Wait for a condition, instead of a sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.02


class ConditionNotMet(AssertionError):
    """A condition did not come true in time; says what was waited for, how long, and the state."""


def wait_until(
    condition: Callable[[], T],
    *,
    deadline_s: float = 30.0,
    describe: str | Callable[[], str] = "the condition to hold",
) -> T:
    """Return the condition's first true value, in real time even if a test's Clock stands still.

    Args:
        deadline_s: Ends a hung test; no test should expect it.
        describe: What is waited for; called at the end, it can show the state that was reached.

    Raises:
        ConditionNotMet: It never came true.
    """
    started = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - started
        if waited_s > deadline_s:
            what = describe if isinstance(describe, str) else describe()
            raise ConditionNotMet(f"waited {waited_s:.1f} s for {what}; last value: {value!r}")
        time.sleep(_POLL_S)  # noqa: TID251 - the one place where tests wait
    return value
