"""What a stranger gets by `pip install`: small, quick to import, and whole without PySpark."""

from __future__ import annotations

import json
import re
import shlex
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import cassieq_spark
from tests.fixtures.installed import producer, wheel

if TYPE_CHECKING:
    import pytest

    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.installed import Installed

__all__ = ["producer", "wheel"]

MEGABYTE = 1 << 20  # as `du -m` counts, by which PySpark has 491
MISSING = (
    "[cassieq:spark_missing] this needs PySpark, which is not installed in this Python. Run: "
    'pip install "cassieq_spark[spark]"'
)
EVERY_NAME = """
import json, cassieq_spark
print(json.dumps([name for name in cassieq_spark.__all__ if getattr(cassieq_spark, name)]))
"""
PUT_GET_ACK = """
import sys
import cassieq_spark as cassieq
with cassieq.connect(sys.argv[1], keyspace="cassieq_installed") as client:
    client.bootstrap()
    queue = client.create_queue("orders")
    queue.put(b"one")
    queue.put_many([b"%d" % number for number in range(3_000)], delay=0)
    bodies = []
    while messages := queue.get(1_000, wait=5 if len(bodies) < 3_001 else 0):
        bodies += [message.body for message in messages]
        queue.ack(messages)
    stats = queue.stats()
    print(len(set(bodies)), stats.visible, stats.in_flight)
    print(sorted({"numpy", "pandas", "pyspark", "rich", "typer"} & sys.modules.keys()))
"""


def test_the_package_alone_is_below_250_megabytes_and_has_no_pyspark(producer: Installed) -> None:
    files = [path for path in producer.home.rglob("*") if path.is_file() and not path.is_symlink()]
    packages = {
        path.name for path in next(producer.home.glob("lib/python3*/site-packages")).iterdir()
    }

    assert sum(path.stat().st_blocks * 512 for path in files) < 250 * MEGABYTE
    assert {"cassieq_spark", "pyarrow", "cassandra"} <= packages
    assert set() == {"pyspark", "py4j", "numpy", "pandas"} & packages


def test_importing_the_package_imports_nothing_that_costs(producer: Installed) -> None:
    """Modules, not seconds: each of these takes 50 ms or more, and a test machine may be busy."""
    loaded = producer.says("import cassieq_spark, sys; print(' '.join(sys.modules))").split()

    ours = {name for name in loaded if name.startswith("cassieq_spark")}
    assert {"cassieq_spark", "cassieq_spark.lazy"} == ours
    heavy = {"cassandra", "pyarrow", "msgpack", "stamina", "rich", "typer", "asyncio", "logging"}
    assert set() == heavy & set(loaded)


def test_every_name_of_the_package_is_there_and_help_shows_it(producer: Installed) -> None:
    assert cassieq_spark.__all__ == json.loads(producer.says(EVERY_NAME))
    shown = producer.says("import cassieq_spark; help(cassieq_spark)")
    assert [] == [name for name in cassieq_spark.__all__ if name not in shown]


def test_an_import_of_the_spark_side_says_in_one_line_which_extra_it_needs(
    producer: Installed,
) -> None:
    for code in (
        "import cassieq_spark.spark",
        "from cassieq_spark.spark import register",
        "import cassieq_spark.spark.data_source",
        "import pyspark_cassieq",
    ):
        done = producer.run("python", "-c", code)
        assert (1, f"cassieq_spark.errors.SparkMissing: {MISSING}") == (
            done.returncode,
            done.stderr.splitlines()[-1],
        )


def test_the_line_that_an_error_gives_adds_an_extra_to_an_installed_package(
    producer: Installed,
) -> None:
    extra = re.findall(r'pip install "(.*?)"', MISSING)[0].replace("spark]", "prometheus]")

    done = producer.run("python", "-m", "pip", "install", "--dry-run", extra)

    assert 0 == done.returncode, done.stderr
    assert "Would install prometheus" in done.stdout


def test_a_program_puts_gets_and_acks(producer: Installed, cassandra: EmbeddedCassandra) -> None:
    assert ["3001 0 0", "[]"] == producer.says(PUT_GET_ACK, cassandra.contact_points).splitlines()


def test_its_pytest_fixture_is_there_without_a_word_of_configuration(
    producer: Installed, pytestconfig: pytest.Config
) -> None:
    guide = (pytestconfig.rootpath / "docs" / "guides" / "testing.md").read_text("utf-8")
    example = next(one for one in re.findall(r"```python\n(.*?)```", guide, re.S) if "def " in one)
    (producer.home / "test_orders.py").write_text(example)
    added = producer.run("python", "-m", "pip", "--quiet", "install", "pytest")
    assert 0 == added.returncode, added.stderr

    done = producer.run("python", "-m", "pytest", "-q", "-W", "error", "test_orders.py")

    assert 0 == done.returncode, done.stdout
    assert "1 passed" in done.stdout


def test_the_shell_does_what_the_page_about_installing_says(
    producer: Installed, cassandra: EmbeddedCassandra, pytestconfig: pytest.Config
) -> None:
    page = (pytestconfig.rootpath / "docs" / "installing.md").read_text("utf-8")
    commands = re.findall(r"^\$ cassieq (.*)$", page, re.MULTILINE)
    where = {
        "CASSIEQ_CONTACT_POINTS": cassandra.contact_points,
        "CASSIEQ_KEYSPACE": "cassieq_shell",
    }

    printed = {}
    for command in commands:
        done = producer.run("cassieq", *shlex.split(command), **where)
        assert 0 == done.returncode, (command, done.stderr)
        printed[command.split()[0]] = done.stdout
    assert ["bootstrap", "queue", "put", "get"] == list(printed)
    receipt, body = printed["get"].split()
    assert receipt
    assert "hello" == body


def test_a_local_cassandra_without_a_spark_says_which_extra_brings_what_fetches_it(
    producer: Installed, tmp_path: Path
) -> None:
    done = producer.run("cassieq", "cassandra", "fetch", XDG_CACHE_HOME=str(tmp_path))

    assert 0 != done.returncode
    assert ["[cassieq:embedded_failed]"] == [
        line.split()[0] for line in done.stderr.splitlines()[-1:]
    ]
    assert 'pip install "cassieq_spark[spark]"' in done.stderr


def test_the_jobs_are_there_and_ask_for_the_extra(producer: Installed) -> None:
    path = Path(producer.run("cassieq", "job-path", "repair").stdout.strip())
    done = producer.run("python", "-m", "cassieq_spark.jobs.repair", "--once")

    assert producer.home.resolve() in path.resolve().parents
    assert path.is_file()
    assert f"cassieq_spark.errors.SparkMissing: {MISSING}" == done.stderr.splitlines()[-1]


def test_the_wheel_says_what_it_is_and_has_the_types(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        said = files.read(metadata).decode()

    assert {"pyspark_cassieq.py", "cassieq_spark/py.typed"} <= names
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]
    required = [line for line in said.splitlines() if line.startswith("Requires-Dist: ")]
    pyspark = [line for line in required if " pyspark" in line]
    assert all("extra == " in line for line in pyspark), pyspark
    assert any("extra == 'spark'" in line for line in pyspark), pyspark
