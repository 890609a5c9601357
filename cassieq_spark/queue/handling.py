"""Decide what becomes of a message that a program has worked on: `Retry`, `Reject`, other errors.

One rule for a worker's processes, for coroutines side by side, and for the block of a program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from cassieq_spark.log import event, get_logger
from cassieq_spark.model.backoff import Backoff
from cassieq_spark.model.rows.intents import ACK
from cassieq_spark.model.settlement import Action, Release
from cassieq_spark.model.settlement import Reject as Dead
from cassieq_spark.options import Seconds, arguments
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.message import Delivery

MOST_TEXT: Final = 500
"""The longest part of an error's text that goes into an error or an event of ours."""

_logger = get_logger("worker")


class Retry(Exception):
    """Raise it in a function that works on a message: the message comes again later.

    Args:
        after: Seconds or timedelta, up to 30 days. Default: the delay of the backoff.
        counted: Whether the delivery counts. A message that never counts never dies, and
            `Delivery.fence` does not grow.

    Raises:
        OptionInvalid: ``after`` has a wrong form.
    """

    def __init__(self, after: Seconds | None = None, *, counted: bool = True) -> None:
        super().__init__(after)
        self.after_s = None if after is None else arguments.after_us(after) / 1e6
        self.is_counted = counted

    def __str__(self) -> str:
        """Show when."""
        return "retry" if self.after_s is None else f"retry after {self.after_s:g} s"


class Reject(Exception):
    """Raise it in a function that works on a message: the message is dead at once.

    Repair moves it to the dead letters with the reason. If the queue has no dead-letter queue, the
    message is dropped.

    Args:
        reason: At most 200 characters.

    Raises:
        OptionInvalid: The reason has a wrong form.
    """

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(arguments.reason(reason))
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a message was not worked on to its end, and what shall become of it.

    Attributes:
        error: For the log.
        after_s: When the message comes again; None: after the delay of the backoff.
        is_counted: Whether the delivery counts.
        dies_of: The reason for which the message is dead; None: it comes again.
        is_asked: Whether the function asked for it, and no error was raised.
    """

    error: str
    after_s: float | None = None
    is_counted: bool = True
    dies_of: str | None = None
    is_asked: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return what an error says that was raised where the message was worked on."""
        cause = error.__cause__
        text, is_asked = words_of(cause or error), cause is None
        if isinstance(error, Retry):
            after_s, is_counted = error.after_s, error.is_counted
            return cls(error=text, after_s=after_s, is_counted=is_counted, is_asked=is_asked)
        if isinstance(error, Reject):
            return cls(error=text, dies_of=error.reason, is_asked=is_asked)
        return cls(error=words_of(error))


def words_of(error: BaseException) -> str:
    """The name and the text of a user's error, which may be long, or raise another one."""
    try:
        text = str(error)
    except BaseException as another:  # noqa: BLE001 - whatever its `__str__` does, it is the user's
        text = f"its text cannot be shown, because its __str__ raises {type(another).__name__}"
    return f"{type(error).__name__}: {text}"[:MOST_TEXT]


def reason_of(error: BaseException, before: str = "") -> str:
    """Return the text of an error as a reason, which is short and printable."""
    text = "".join(one if one.isprintable() else " " for one in before + words_of(error))
    return text[: arguments.MOST_REASON].strip()


def about(queue: str, message: Delivery) -> dict[str, str]:
    """Return the fields that all events about a message have."""
    return {"queue": queue, "message": message.message_id}


def settlement(lane: Lane, message: Delivery, failure: Failure | None, backoff: Backoff) -> Action:
    """Return how a message is settled that was worked on; log what was not done to its end."""
    if failure is None:
        return ACK
    known, deliveries = about(lane.queue, message), message.delivery_count
    if failure.dies_of is not None:
        has_letters = lane.settings.dead_letter_queue is not None
        becomes = "dead" if has_letters else "dropped"
        event(_logger, "worker_rejected", **known, becomes=becomes, error=failure.error)
        return Dead(reason=failure.dies_of) if has_letters else ACK
    drawn = lane.store.entropy.rng.random()
    delay_s = backoff.delay_s(deliveries, drawn) if failure.after_s is None else failure.after_s
    more = {**known, "deliveries": deliveries, "delay_s": round(delay_s, 1)}
    if failure.is_asked:
        event(_logger, "worker_retries", **more)
    else:
        event(_logger, "worker_failed", **more, error=failure.error)
    due_us = lane.clock.now_us() + round(delay_s * 1e6) if delay_s else None
    return Release(due_us=due_us, count_delivery=failure.is_counted)
