"""`OPTIONS` is the table of every option, one row each, and nowhere else (conventions 4)."""

from __future__ import annotations

from typing import Final

from cassieq_spark.options.of_connection import CONNECTION
from cassieq_spark.options.of_queue import QUEUE_SETTINGS
from cassieq_spark.options.of_spark import FORMATS, SPARKS_OWN
from cassieq_spark.options.option import Option

OPTIONS: Final[tuple[Option, ...]] = (*CONNECTION, *FORMATS, *QUEUE_SETTINGS, *SPARKS_OWN)
