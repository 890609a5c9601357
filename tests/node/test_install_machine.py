"""`conf/docker/install.sh`, which makes the image: what it installs works, from an empty directory.

No Docker engine is at hand where the tests run, so this is what is tested of the image.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from tests.docs.test_readme import EXAMPLE
from tests.fixtures.installed import ROOT, environment, machine, wheel

if TYPE_CHECKING:
    from pathlib import Path

    from cassieq_spark.testing import EmbeddedCassandra

__all__ = ["machine", "wheel"]
pytestmark = pytest.mark.long  # installs a PySpark of 491 MB

KEYSPACE = "cassieq_machine"


def run(
    machine: Path, cassandra: EmbeddedCassandra, *command: str, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """As in the image: its environment, and where Cassandra is."""
    variables = environment(
        JAVA_HOME=str(machine / "java"),
        PATH=f"{machine}/venv/bin:/usr/bin:/bin",
        PYSPARK_PYTHON=str(machine / "venv" / "bin" / "cassieq-python"),
        CASSIEQ_CONTACT_POINTS=cassandra.contact_points,
        CASSIEQ_KEYSPACE=KEYSPACE,
    )
    return subprocess.run(
        [machine / "venv" / "bin" / command[0], *command[1:]],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_what_it_installs_repairs_serves_and_writes_files(
    machine: Path, cassandra: EmbeddedCassandra, tmp_path: Path
) -> None:
    def done(*command: str) -> str:
        ended = run(machine, cassandra, *command, cwd=tmp_path)
        assert 0 == ended.returncode, ended.stderr[-3_000:]
        return ended.stdout

    submit = ("spark-submit", "--master", "local[2]")
    done("cassieq", "bootstrap")
    done("cassieq", "queue", "create", "orders")
    with cassieq.connect(cassandra.contact_points, keyspace=KEYSPACE) as client:
        client.queue("orders").put_many([b"%d" % number for number in range(500)])

        done(
            *submit,
            str(machine / "jobs" / "to_files.py"),
            *("--contact-points", cassandra.contact_points, "--keyspace", KEYSPACE),
            *("--queue", "orders", "--drain"),
            *("--output", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "checkpoint")),
        )
        stats = client.queue("orders").stats()
        report = tmp_path / "report.json"
        done(*submit, str(machine / "jobs" / "repair.py"), "--once", "--report", str(report))

    assert (0, 0) == (stats.visible, stats.in_flight)
    read = "import pyarrow.parquet as p, sys; print(p.read_table(sys.argv[1]).num_rows)"
    assert "500\n" == done("python", "-c", read, str(tmp_path / "out"))
    assert ["orders"] == [one["queue"] for one in json.loads(report.read_text())["queues"]]
    example = EXAMPLE.search((ROOT / "README.md").read_text("utf-8"))
    assert example is not None
    program = tmp_path / "example.py"
    program.write_text(
        example[1]
        .replace("127.0.0.1:9042", cassandra.contact_points)
        .replace('"cassieq"}', '"cassieq_example"}'),
        encoding="utf-8",
    )
    done("python", str(program))
    with cassieq.connect(cassandra.contact_points, keyspace="cassieq_example") as client:
        assert 100 == client.queue("large-orders").stats().visible
    assert "--auth" in done("cassieq", "serve", "--help")
    done("python", "-c", "import cassieq_spark.server.serve")
