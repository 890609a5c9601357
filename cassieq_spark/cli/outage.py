"""Show the events of the library in a terminal: of an outage, one line."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.cli.output import print_note
from cassieq_spark.store.retries import OUTAGE

if TYPE_CHECKING:
    from cassieq_spark.clock import Clock

OVER_AFTER_S: Final = 30.0
"""An outage is over when nothing was sent again for so long; the next one has a line again."""


class TerminalHandler(logging.Handler):
    """Prints events on standard error; the first of an outage as a sentence, the rest not.

    Several threads send statements, each again and again, and all say the same. A program that
    embeds the library has its own handlers: they get one a second, with the number of others.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        self._clock = clock
        self._guard = threading.Lock()
        self._last_s: float | None = None
        self.is_timed = False
        """Whether the line of an outage is for a log, and not for a person who waits."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        if getattr(record, "event", None) != OUTAGE:
            print_note(self.format(record))
        elif self._is_new():
            self._print_first(record)

    def _print_first(self, record: logging.LogRecord) -> None:
        text = sentence(vars(record)["fields"])
        if self.is_timed:
            told = logging.makeLogRecord(vars(record) | {"msg": text, "args": ()})
            text = self.format(told)
        print_note(text)

    def _is_new(self) -> bool:
        with self._guard:
            now_s, last_s = self._clock.monotonic(), self._last_s
            self._last_s = now_s
        return last_s is None or now_s - last_s > OVER_AFTER_S


def sentence(fields: dict[str, Any]) -> str:
    """The line for a person: cause, attempt, next try, and when it ends."""
    return (
        f"Cassandra does not answer: {fields['cause']}. Attempt {fields['attempt']} failed; next "
        f"try in {fields['next_try_s']:.1f} s, and so on for up to {fields['gives_up_in_s']:.0f} s"
    )
