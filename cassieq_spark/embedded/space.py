"""Check free space first: a disk that fills up half-way gives a less helpful error."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from cassieq_spark.errors import DiskFull

if TYPE_CHECKING:
    from pathlib import Path

_MEGABYTE = 10**6


def check_space(directory: Path, need: int, *, what: str) -> None:
    """Refuse a directory whose disk has less free space than is needed.

    Args:
        directory: It may not exist yet.
        need: Bytes.
        what: What needs them, for the error.

    Raises:
        DiskFull: It names the directory, the free space and what is needed.
    """
    there = next(one for one in (directory, *directory.parents) if one.exists())
    free = shutil.disk_usage(there).free
    if free < need:
        raise DiskFull(
            f"the disk of {directory} has {free // _MEGABYTE:,} MB free, but {what} needs "
            f"{-(-need // _MEGABYTE):,} MB. Free space there, or name another directory"
        )


def size_of(directory: Path) -> int:
    """The bytes of the files below a directory; files that go away meanwhile do not count."""
    size = 0
    for file in directory.rglob("*"):
        try:
            size += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue
    return size
