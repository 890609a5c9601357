"""Logs of the commands: events on a terminal, and lines with their time in long runs."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from cassieq_spark.cli.flags import Flags, flag_name
from cassieq_spark.cli.shell import in_shell, print_note
from cassieq_spark.clock import Clock, SystemClock
from cassieq_spark.log import formatter
from cassieq_spark.store.retries import OUTAGE

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
            text = sentence(vars(record)["fields"])
            told = logging.makeLogRecord(vars(record) | {"msg": text, "args": ()})
            print_note(self.format(told) if self.is_timed else text)

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


OURS: Final = "cassieq_spark"
ACCESS: Final = "cassieq_spark.access"


class Level(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Form(StrEnum):
    """The form of a line of the log."""

    TEXT = "text"
    JSON = "json"


def _option(name: str, text: str) -> Any:
    return typer.Option(
        flag_name(name),
        envvar=f"CASSIEQ_{name.upper()}",
        case_sensitive=False,
        help=text,
        rich_help_panel="Logs",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """Settings of a command's log."""

    level: Annotated[Level, _option("log_level", "The lowest level to log.")] = Level.WARNING
    form: Annotated[Form, _option("log_format", "Lines of text, or of JSON.")] = Form.TEXT

    def start(self, *, access: bool = False) -> None:
        """Log like this from now on.

        Args:
            access: Whether a gateway has a line for each request.
        """
        ours = logging.getLogger(OURS)
        for old in [one for one in ours.handlers if isinstance(one, TerminalHandler)]:
            ours.removeHandler(old)
        handler = TerminalHandler(SystemClock())
        handler.setFormatter(self._formatter())
        handler.is_timed = True
        ours.addHandler(handler)
        ours.setLevel(self.level.upper())
        logging.getLogger(ACCESS).setLevel(logging.INFO if access else logging.WARNING)

    def note(self, text: str, level: int = logging.INFO) -> None:
        """Print a line as the log has them, whatever its level: what a command itself says."""
        known = {"name": f"{OURS}.cli", "levelno": level, "levelname": logging.getLevelName(level)}
        print_note(self._formatter().format(logging.makeLogRecord({**known, "msg": text})))

    def problem(self, text: str) -> None:
        """Print what went wrong; the command goes on."""
        self.note(in_shell(text), logging.WARNING)

    def _formatter(self) -> logging.Formatter:
        return formatter(is_json=self.form is Form.JSON)


Logged = Annotated[Logs, Flags.of(Logs)]
"""The settings of a command's log, from two flags."""
