"""Name the folder that a node needs and that is missing, or cannot be written, in one line."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cassieq_spark.errors import EmbeddedFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
