"""Options of commands that run for long: level and form of what they log, each line with a time."""

from __future__ import annotations

import inspect
import json
import logging
import os
import time
from argparse import ArgumentTypeError
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cassieq_spark.cli.flags import with_parameters
from cassieq_spark.cli.in_shell import in_shell
from cassieq_spark.cli.outage import TerminalHandler
from cassieq_spark.cli.output import print_note
from cassieq_spark.clock import SystemClock

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

OURS: Final = "cassieq_spark"
ACCESS: Final = "cassieq_spark.access"
PANEL: Final = "Logs"


class Level(StrEnum):
    """The least that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Form(StrEnum):
    """Lines for people, or one JSON object each."""

    TEXT = "text"
    JSON = "json"


class Timed(logging.Formatter):
    """``2026-11-28T02:15:00.123Z WARNING cassieq_spark.server: repair_failed error=...``."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonLines(Timed):
    """One object a line: time, level, logger, message; of our events, also name and fields."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as one line."""
        found: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("event", "fields"):
            if hasattr(record, name):
                found[name] = getattr(record, name)
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """How a command logs."""

    level: Level = Level.WARNING
    form: Form = Form.TEXT

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
        return JsonLines() if self.form is Form.JSON else Timed()


def _flag(name: str, kind: type[StrEnum], default: StrEnum, text: str) -> inspect.Parameter:
    info = typer.Option(
        f"--{name.replace('_', '-')}",
        envvar=f"CASSIEQ_{name.upper()}",
        case_sensitive=False,
        help=text,
        rich_help_panel=PANEL,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def logging_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags to a command, which gets them as ``logs``."""
    added = [
        _flag("log_level", Level, Level.WARNING, "The least that is logged."),
        _flag("log_format", Form, Form.TEXT, "Lines for people, or one JSON object each."),
    ]

    def build(given: dict[str, Any]) -> Logs:
        return Logs(level=given["log_level"], form=given["log_format"])

    return with_parameters(command, "logs", added, build)


def add_logging(job: argparse.ArgumentParser) -> None:
    """Add the same flags to a job."""
    group = job.add_argument_group("Logs: also by the variables CASSIEQ_LOG_LEVEL and ..._FORMAT")
    for name, kind, default in (
        ("log_level", Level, Level.WARNING),
        ("log_format", Form, Form.TEXT),
    ):
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=_one_of(kind),
            metavar="|".join(kind),
            default=os.environ.get(f"CASSIEQ_{name.upper()}", default.value),
        )


def logs_of(job: argparse.Namespace) -> Logs:
    """How a job shall log."""
    return Logs(level=job.log_level, form=job.log_format)


def _one_of(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    """Parse one of an enum's values: argparse checks choices of flags, but not of defaults."""

    def parse(text: str) -> StrEnum:
        try:
            return kind(text.lower())
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is none of {', '.join(kind)}") from None

    return parse
