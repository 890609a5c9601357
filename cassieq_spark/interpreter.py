"""Name the Python that Spark runs, where nobody else has."""

from __future__ import annotations

import os
import sys
from typing import Final

LAUNCHER: Final = "cassieq-python"
"""It runs the interpreter beside it, and is installed with this package (``scripts/``)."""


def for_spark() -> str:
    """This interpreter, by its launcher where there is one.

    By the launcher Spark's processes import PySpark as it is installed, and not from its zip, which
    takes each of them 0.8 s of CPU more (PySpark 4.2 and 4.3).
    """
    # Every process imports this module, and pathlib takes longer than all else in it.
    folder = os.path.dirname(sys.executable)  # noqa: PTH120 - as said
    launcher, python = (os.path.join(folder, name) for name in (LAUNCHER, "python3"))  # noqa: PTH118 - as said
    try:
        # It runs the python3 beside it, which may be another version.
        is_this = os.access(launcher, os.X_OK) and os.path.samefile(python, sys.executable)  # noqa: PTH121 - as said
    except OSError:
        is_this = False
    return launcher if is_this else sys.executable


def name_for_spark() -> None:
    """Let a Spark that this process starts look for formats here, unless somebody said where.

    It asks PYSPARK_DRIVER_PYTHON, PYSPARK_PYTHON and ``python3`` in turn, and runs the tasks of a
    format that it has found in the same one (4.2 and 4.3). In an environment that was not activated
    ``python3`` is another, which has no ``pyspark_cassieq``: there would be no format "cassieq".
    Under spark-submit Spark runs already, and has chosen this interpreter itself.
    """
    said = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT")
    if sys.executable and not any(name in os.environ for name in said):
        os.environ["PYSPARK_DRIVER_PYTHON"] = for_spark()
