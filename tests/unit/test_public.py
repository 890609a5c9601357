"""Public names are loaded when they are used. Those for Spark have a package of their own."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import cassieq_spark
from tests.fixtures.public import OFFERING

WITHOUT_PYSPARK = "import sys; sys.modules['pyspark'] = None\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", OFFERING)
def test_a_package_loads_no_module_of_its_names(package: str) -> None:
    done = run(
        f"import {package}, sys; print(*(one for one in sys.modules if 'cassieq' in one or "
        "one in ('pyspark', 'logging', 'asyncio')))"
    )
    light = {"cassieq_spark", "cassieq_spark.lazy"}
    if package == "cassieq_spark.spark":
        light |= {package, "cassieq_spark.errors"}
    assert light == set(done.stdout.split()), done.stderr


def test_help_shows_the_package_without_pyspark() -> None:
    done = run(f"{WITHOUT_PYSPARK}import cassieq_spark; help(cassieq_spark)")
    assert 0 == done.returncode, done.stderr
    assert [] == [name for name in cassieq_spark.__all__ if name not in done.stdout]


def test_the_spark_side_says_without_pyspark_what_to_install() -> None:
    done = run(f"{WITHOUT_PYSPARK}from cassieq_spark.spark import spark_config")
    assert (
        "cassieq_spark.errors.SparkMissing: [cassieq:spark_missing] this needs PySpark, which is "
        'not installed in this Python. Run: pip install "cassieq_spark[spark]"'
    ) == done.stderr.splitlines()[-1]


def test_a_name_that_has_moved_or_never_was_is_an_attribute_error() -> None:
    for package, name in (("cassieq_spark", "register"), ("cassieq_spark.spark", "connect")):
        with pytest.raises(AttributeError, match=f"'{package}' has no attribute '{name}'"):
            getattr(import_module(package), name)
