"""Read standard input by lines, and write the file of --report."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from cassieq_spark.cli.output import cannot_write
from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import BodyInvalid, OptionInvalid
from cassieq_spark.model.sizes import MAX_BODY_BYTES
from cassieq_spark.repair import outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cassieq_spark.repair.report import RepairReport, VerifyReport


def check_report_file(path: str | None, option: str = "--report") -> None:
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
            f"{option} {path} cannot be written. Name a file in a folder that exists and that "
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


def write_metrics(path: str | None, report: RepairReport | VerifyReport) -> None:
    """Write what is known of a pass over all queues for node_exporter, if a file is given.

    Raises:
        OutputFailed: The disk is full, for example. The work is done.
    """
    if path is None:
        return
    outcome.note(report, SystemClock().now_us())
    # node_exporter may read at any time, and reads *.prom only: it never finds half a file.
    half = Path(f"{path}.{os.getpid()}")
    try:
        half.write_text(outcome.as_text(), "utf-8")
        half.replace(path)
    except OSError as error:
        raise cannot_write(f"--metrics-file {path}", error) from error


READ_BYTES: Final = 256 * 1024

STDIN: Final = "-"


def batches(source: BinaryIO | None = None) -> Iterator[list[bytes]]:
    r"""Lines without their ``\n``, as many together as one read brings.

    So ``cat file`` goes in large batches, and ``tail -f`` line by line, without a timer.

    Raises:
        BodyInvalid: A line is longer than a body may be; it is not kept in memory to its end.
    """
    stream: BinaryIO = sys.stdin.buffer if source is None else source
    rest = b""
    number = 0
    while read := _read_some(stream):
        *lines, rest = (rest + read).split(b"\n") if b"\n" in read else (rest + read,)
        if len(rest) > MAX_BODY_BYTES:
            raise BodyInvalid(
                f"line {number + len(lines) + 1} of standard input has more than "
                f"{MAX_BODY_BYTES:,} bytes, which is the limit of a body; the {number:,} lines "
                "before it are put. If the whole input is one message, use --file -"
            )
        if lines:
            yield lines
        number += len(lines)
    if rest:
        yield [rest]


def whole(path: Path) -> bytes:
    """Read a file as one body; ``-`` is standard input.

    Raises:
        OptionInvalid: It cannot be read.
    """
    # One byte more than allowed is enough for the error that says so.
    try:
        if str(path) == STDIN:
            return sys.stdin.buffer.read(MAX_BODY_BYTES + 1)
        with path.open("rb") as file:
            return file.read(MAX_BODY_BYTES + 1)
    except OSError as error:
        raise OptionInvalid(
            f"--file {path} cannot be read: {error.strerror}. Name a file that can be read"
        ) from error


def _read_some(stream: BinaryIO) -> bytes:
    """Read what is there, at least one byte; none at the end."""
    read_now = getattr(stream, "read1", stream.read)
    found: bytes = read_now(READ_BYTES)
    return found
