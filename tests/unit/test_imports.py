"""What a process imports, for Spark starts several for each query, and waits for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]

HEAVY = {"cassandra", "numpy", "pyarrow"}
"""What takes a tenth of a second or more."""


def imported(code: str, **options: Any) -> set[str]:
    """The packages in a fresh process after some code."""
    code += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, **options)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import pyspark_cassieq",  # Spark looks formats up
        "from cassieq_spark.spark.source.reader import StreamReader",  # and pickles a reader
    ],
)
def test_spark_plans_without_what_only_tasks_need(code: str) -> None:
    spark_itself = imported("import pyspark.sql.datasource, pyspark.sql.streaming.datasource")
    assert not HEAVY & (imported(code) - spark_itself)


def test_a_load_is_told_its_columns_without_a_store() -> None:
    imported(
        "import sys\nfrom cassieq_spark.spark.views.columns import VIEWS\n"
        "assert 'cassandra' not in sys.modules"
    )


def test_the_package_in_a_zip_file_offers_its_names_too(tmp_path: Path) -> None:
    archive = tmp_path / "package.zip"
    with ZipFile(archive, "w") as packed:
        for path in sorted((ROOT / "cassieq_spark").rglob("*.py")):
            packed.write(path, path.relative_to(ROOT))
    imported(
        "import cassieq_spark as cassieq\nassert '.zip' in cassieq.__file__\n"
        "assert {'Client', 'connect'} < set(cassieq.__all__) < set(dir(cassieq))\n"
        "assert issubclass(cassieq.UsageError, ValueError)\n"
        "assert not hasattr(cassieq, 'conect')",
        env={**os.environ, "PYTHONPATH": str(archive)},
        cwd=tmp_path,
    )


def test_a_store_does_not_look_for_twisted() -> None:
    """The driver's look for Twisted would import it, and more."""
    assert not {"wrapt", "deprecated"} & imported("import cassieq_spark.store.store")
