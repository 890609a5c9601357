"""Check a disk before it is written to: its folders, its free space, its file system.

A folder that cannot be written, or a disk that fills up half-way, gives a less helpful error.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cassieq_spark.errors import DiskFull, EmbeddedFailed

_MEGABYTE = 10**6


@contextmanager
def writes(directory: Path, *, what: str = "data directory") -> Iterator[None]:
    """Name the directory in one line, where the system refuses to write there."""
    try:
        yield
    except OSError as error:
        raise EmbeddedFailed(
            f"the {what} {directory} cannot be written: {error.strerror or error}. Free "
            "space there, give this user the right to write, or name another directory"
        ) from error


def of_user(place: Callable[[str], Path], *, otherwise: str) -> Path:
    """One of the user's directories.

    Args:
        place: A function of platformdirs. Without a home it raises, or returns ``~/...`` (4.3).
        otherwise: What else to do where there is no home, for the error.

    Raises:
        EmbeddedFailed: The user has no home directory.
    """
    try:
        directory = place("cassieq")
    except RuntimeError:
        directory = Path("~")
    if directory.parts[0] == "~":
        raise EmbeddedFailed(
            f"user {os.getuid()} has no home directory: HOME is not set, and the system does not "
            f"know the user. Set HOME, or {otherwise}"
        )
    return directory


def temporary() -> Path:
    """The directory for temporary files.

    Raises:
        EmbeddedFailed: None can be written.
    """
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise EmbeddedFailed(
            "an embedded node needs a directory for temporary files, and none can be written: "
            f"{error.strerror or error}. Set TMPDIR to one that can"
        ) from error


def check_space(directory: Path, need: int, *, what: str) -> None:
    """Refuse a directory whose disk has less free space than is needed.

    Args:
        directory: It may not exist yet.
        need: Bytes.
        what: What needs them, for the error.

    Raises:
        DiskFull: It names the directory, the free space and what is needed.
    """
    free = shutil.disk_usage(_existing(directory)).free
    if free < need:
        raise DiskFull(
            f"the disk of {directory} has {free // _MEGABYTE:,} MB free, but {what} needs "
            f"{-(-need // _MEGABYTE):,} MB. Free space there, or name another directory"
        )


def file_system(directory: Path, *, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The name of the file system that a directory is on, such as ``ext4``; None: unknown.

    Args:
        directory: It may not exist yet.
        mounts: Linux's list of what is mounted; other systems have none.
    """
    number = _existing(directory).stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    try:
        lines = mounts.read_text("utf-8").splitlines()
    except OSError:
        return None
    # 36 35 98:0 / /data rw,noatime shared:1 - ext4 /dev/sda rw: any number of fields up to the "-".
    found = [line.partition(" - ")[2].split()[0] for line in lines if line.split()[2] == device]
    return found[0] if found else None


def _existing(directory: Path) -> Path:
    return next(one for one in (directory, *directory.parents) if one.exists())


def size_of(directory: Path) -> int:
    """The bytes of the files below a directory; files that go away meanwhile do not count."""
    size = 0
    for file in directory.rglob("*"):
        try:
            size += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue
    return size
