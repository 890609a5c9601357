"""Name the Python that Spark is to run: this one, by its launcher where there is one."""

from __future__ import annotations

import os
import sys
from typing import Final

LAUNCHER: Final = "cassieq-python"
"""The launcher runs the interpreter beside it, and is installed with this package
(``scripts/``)."""


def for_spark() -> str:
    """Return the path of this interpreter, or of its launcher where there is one.

    With the launcher, Spark's processes import PySpark as it is installed, and not from its zip,
    which takes each of them 0.8 s of CPU more (PySpark 4.2 and 4.3).
    """
    # Every process imports this module, and pathlib takes longer than all else in it.
    folder = os.path.dirname(sys.executable)  # noqa: PTH120 - as said
    launcher = launcher_in(folder)
    # It runs the python3 beside it, which may be another version.
    if launcher and os.path.samefile(os.path.join(folder, "python3"), sys.executable):  # noqa: PTH118, PTH121 - as said
        return launcher
    return sys.executable


def launcher_in(folder: str) -> str | None:
    """The launcher in a folder of programs, if there is one and the Python that it runs."""
    launcher, python = (os.path.join(folder, name) for name in (LAUNCHER, "python3"))  # noqa: PTH118 - as above
    is_there = all(os.access(path, os.X_OK) for path in (launcher, python))
    return launcher if is_there else None


def is_this(named: str) -> bool:
    """Whether a name that Spark was given is the Python of this environment.

    The pythons of two environments are often links to one file, so their folder tells.
    """
    import shutil  # noqa: PLC0415 - only where somebody has named one

    found = shutil.which(named)
    if not found or not sys.executable:
        return False
    pairs = ((found, sys.executable), map(os.path.dirname, (found, sys.executable)))  # as above
    return all(os.path.samefile(*pair) for pair in pairs)  # noqa: PTH121 - as above
