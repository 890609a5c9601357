"""Check ``--report FILE`` of the jobs before the work begins, and write it afterwards."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cassieq_spark.cli.output import cannot_write
from cassieq_spark.errors import OptionInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_report_file(path: str | None) -> None:
    """Refuse a file that cannot be written, before a pass has spent its time.

    Raises:
        OptionInvalid: The folder does not exist, or this user may not write there.
    """
    if path is None:
        return
    file = Path(path)
    target = file if file.exists() else file.parent
    if file.is_dir() or not target.exists() or not os.access(target, os.W_OK):
        raise OptionInvalid(
            f"--report {path} cannot be written. Name a file in a folder that exists and that "
            "this user may write to"
        )


def write_report(path: str | None, report: Mapping[str, Any]) -> None:
    """Write the report as JSON, if a file is given.

    Raises:
        OutputFailed: The disk is full, for example. The work is done.
    """
    if path is None:
        return
    try:
        Path(path).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise cannot_write(f"--report {path}", error) from error
