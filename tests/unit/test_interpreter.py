"""The Python that Spark runs, and what its launcher leaves out of the path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cassieq_spark import interpreter

CODE = "import json, os, sys; print(json.dumps([os.environ.get('PYTHONPATH'), sys.argv[1:]]))"


def run(path: str | None, *arguments: str) -> tuple[str | None, list[str]]:
    """What a process sees that the launcher starts with this PYTHONPATH."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = path
    command = [interpreter.for_spark(), "-c", CODE, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    seen, given = json.loads(done.stdout)
    return seen, given


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with an installed PySpark, in which its zips lie."""
    for package in ("pyspark", "py4j"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    return tmp_path


def zips(site: Path) -> list[str]:
    lib = site / "pyspark" / "python" / "lib"
    return [str(lib / "pyspark.zip"), str(lib / "py4j-0.10.9.9-src.zip")]


def test_spark_is_told_the_launcher_beside_this_interpreter() -> None:
    assert str(Path(sys.executable).parent / "cassieq-python") == interpreter.for_spark()


def test_an_installed_pyspark_is_imported_instead_of_its_zip(site: Path) -> None:
    path = os.pathsep.join([*zips(site), "/a folder/spark-core.jar", "/of the user"])
    assert "/a folder/spark-core.jar:/of the user" == run(path)[0]
    assert run(os.pathsep.join(zips(site)))[0] is None
    assert run(None)[0] is None


def test_the_zip_of_another_spark_stays(tmp_path: Path) -> None:
    """Where nothing is installed around it, it is the only one; its home need not be PySpark's."""
    path = os.pathsep.join([*zips(tmp_path), "/opt/spark/python/lib/pyspark.zip"])
    assert path == run(path)[0]


def test_a_program_gets_its_arguments_as_they_are(site: Path) -> None:
    given = ["two words", "a:b", "*", ""]
    assert given == run(os.pathsep.join(zips(site)), *given)[1]
