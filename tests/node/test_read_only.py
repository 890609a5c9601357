"""The repair job where nothing but `/tmp` can be written, as in its pods and containers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.installed import environment

if TYPE_CHECKING:
    import cassieq_spark as cassieq
    from cassieq_spark.testing import EmbeddedCassandra

pytestmark = pytest.mark.long  # starts a Spark of its own

ROOT = Path(__file__).resolve().parents[2]
SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")

SHUT = """
mount --make-rprivate /
awk '{print $5}' /proc/self/mountinfo | while read -r place; do
    mount -o remount,bind,ro "$place" 2>/dev/null || true
done
mount -t tmpfs tmpfs /tmp
cd /
! touch /read-only-or-not 2>/dev/null || exit 9
"""
"""Of a mount namespace of the process's own: so is a container with a read-only root."""


def run_shut(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    unshare = shutil.which("unshare")
    assert unshare is not None
    return subprocess.run(
        [unshare, "--mount", "sh", "-euc", f'{SHUT}exec "$@"', "sh", *command],
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture
def _can_shut() -> None:
    if shutil.which("unshare") is None or run_shut("true").returncode:
        pytest.skip("this user may make no mount namespace")
    if not {Path("/tmp"), Path("/var")}.isdisjoint(ROOT.parents):  # noqa: S108 - of the machine
        pytest.skip("the project itself would be hidden")


@pytest.mark.usefixtures("_can_shut")
def test_a_pass_and_its_files_need_no_other_place(
    cassandra: EmbeddedCassandra, client: cassieq.Client, queue_name: str
) -> None:
    client.create_queue(queue_name)
    read = "cat /tmp/repair.json; cat /tmp/repair.prom >&2"
    done = run_shut(
        "sh",
        "-euc",
        f'"$@"; {read}',
        "sh",
        *(SPARK_SUBMIT, "--master", "local[2]", ROOT / "jobs" / "repair.py", "--once"),
        *("--report", "/tmp/repair.json", "--metrics-file", "/tmp/repair.prom"),  # noqa: S108 - its own
        CASSIEQ_CONTACT_POINTS=cassandra.contact_points,
        CASSIEQ_KEYSPACE=KEYSPACE,
        PYSPARK_PYTHON=str(Path(sys.executable).with_name("cassieq-python")),
    )

    assert 0 == done.returncode, done.stderr[-3_000:]
    report = json.loads(done.stdout[done.stdout.rindex("\n{\n") :])
    assert queue_name in {one["queue"] for one in report["queues"]}
    assert 'cassieq_repair_last_pass_timestamp_seconds{work="repair"}' in done.stderr
