"""The Python that Spark runs, and what its launcher leaves out of the path."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cassieq_spark import interpreter

CODE = "import json, os, sys; print(json.dumps([os.environ.get('PYTHONPATH'), sys.argv[1:]]))"


def run(launcher: Path, path: str | None, *arguments: str) -> tuple[str | None, list[str]]:
    """What a process sees that the launcher starts with this PYTHONPATH."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = path
    command = [launcher, "-c", CODE, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    seen, given = json.loads(done.stdout)
    return seen, given


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """In an environment of its own, whose Python is this one."""
    bin_ = tmp_path / "venv" / "bin"
    bin_.mkdir(parents=True)
    (bin_ / "python3").symlink_to(sys.executable)
    return Path(shutil.copy(interpreter.for_spark(), bin_))


@pytest.fixture
def site(launcher: Path) -> Path:
    """The environment's packages: a PySpark, in which its zips lie."""
    found = launcher.parent.parent / "lib" / "site-packages"
    for package in ("pyspark", "py4j"):
        (found / package).mkdir(parents=True)
        (found / package / "__init__.py").touch()
    return found


def zips(site: Path) -> list[str]:
    lib = site / "pyspark" / "python" / "lib"
    return [str(lib / "pyspark.zip"), str(lib / "py4j-0.10.9.9-src.zip")]


def test_spark_is_told_the_launcher_beside_this_interpreter() -> None:
    assert str(Path(sys.executable).parent / "cassieq-python") == interpreter.for_spark()


def test_a_launcher_beside_another_python_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where python3.12 was installed beside an older python3."""
    (tmp_path / "python3").symlink_to("/bin/sh")
    (tmp_path / "python3.12").symlink_to(sys.executable)
    shutil.copy(interpreter.for_spark(), tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3.12"))
    assert sys.executable == interpreter.for_spark()


def test_this_python_is_known_by_every_name_that_it_has_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "venv").symlink_to(Path(sys.executable).parents[1])
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    python = Path(sys.executable).name
    linked = str(tmp_path / "venv" / "bin" / python)
    for named in (sys.executable, python, "python3", linked):
        assert interpreter.is_this(named), named


def test_a_python_of_another_environment_is_not_this_though_it_is_the_same_file(
    launcher: Path,
) -> None:
    other = str(launcher.parent / "python3")
    assert Path(other).samefile(sys.executable)
    for named in (other, str(launcher), interpreter.for_spark(), "jupyter", "/nowhere/python"):
        assert not interpreter.is_this(named), named


def test_what_we_ship_names_the_launcher() -> None:
    conf = Path(__file__).parents[2] / "conf"
    found = [
        line.strip()
        for path in conf.rglob("*")
        if path.is_file() and path.suffix not in {".conf", ".py"}
        for line in path.read_text("utf-8").splitlines()
        if "PYSPARK_PYTHON=" in line
    ]
    assert 3 <= len(found)
    assert all(line.endswith(f"/{interpreter.LAUNCHER}") for line in found)


def test_an_installed_pyspark_is_imported_instead_of_its_zip(launcher: Path, site: Path) -> None:
    path = os.pathsep.join([*zips(site), "/a folder/spark-core.jar", "/of the user/*"])
    assert "/a folder/spark-core.jar:/of the user/*" == run(launcher, path)[0]
    assert run(launcher, os.pathsep.join(zips(site)))[0] is None
    assert run(launcher, None)[0] is None


def test_the_launcher_may_be_named_by_a_link(launcher: Path, site: Path, tmp_path: Path) -> None:
    link = tmp_path / "spark-python"
    link.symlink_to(launcher)
    assert run(link, os.pathsep.join(zips(site)))[0] is None


def test_the_zip_of_another_spark_stays(launcher: Path, site: Path, tmp_path: Path) -> None:
    """Another Python's PySpark may be another version; a home of Spark's holds no package."""
    other = tmp_path / "other"
    shutil.copytree(site, other)
    path = os.pathsep.join([*zips(other), "/opt/spark/python/lib/pyspark.zip"])
    assert path == run(launcher, path)[0]


def test_a_program_gets_its_arguments_as_they_are(launcher: Path, site: Path) -> None:
    given = ["two words", "a:b", "*", ""]
    assert given == run(launcher, os.pathsep.join(zips(site)), *given)[1]
