"""``cassieq cassandra`` as a user runs it: processes, output, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from cassieq_spark.embedded.machine import choose_ports
from cassieq_spark.embedded.running import answers_cql
from cassieq_spark.testing import wait_until
from tests.fixtures.processes import has_ended

if TYPE_CHECKING:
    from collections.abc import Iterator

CASSIEQ = Path(sys.executable).with_name("cassieq")


def cassieq(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CASSIEQ, *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=240,
        check=False,
    )


def cassandra_command(verb: str, data_dir: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return cassieq("cassandra", verb, "--data-dir", str(data_dir), *options)


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    cassandra_command("stop", tmp_path / "data")


@pytest.fixture
def port() -> int:
    return choose_ports(["127.0.0.1"]).native


@pytest.mark.long
def test_start_status_stop_and_start_again_on_the_same_data(data_dir: Path, port: int) -> None:
    started = cassandra_command("start", data_dir, "--port", str(port), "--heap", "512m", "--json")
    assert started.returncode == 0, started.stderr
    node = json.loads(started.stdout)
    assert {
        "state": "up",
        "contact_points": f"127.0.0.1:{port}",
        "datacenter": "datacenter1",
        "pid": node["pid"],
        "data_dir": str(data_dir),
    } == node
    assert answers_cql("127.0.0.1", port)
    jvm = psutil.Process(node["pid"])

    again = cassandra_command("start", data_dir, "--port", str(port), "--json")
    assert (0, node) == (again.returncode, json.loads(again.stdout))

    elsewhere = cassandra_command("start", data_dir, "--port", str(port + 1))
    assert elsewhere.returncode == 1
    assert f"runs on 127.0.0.1:{port}, but port {port + 1} was asked for" in elsewhere.stderr

    up = cassandra_command("status", data_dir)
    assert up.returncode == 0
    assert f"contact_points  127.0.0.1:{port}" in up.stdout.splitlines()

    stopped = cassandra_command("stop", data_dir, "--json")
    assert (0, "down") == (stopped.returncode, json.loads(stopped.stdout)["state"])
    wait_until(lambda: has_ended(jvm), describe="the JVM to be gone")
    assert (data_dir / "node1" / "data" / "system").is_dir()


def test_status_of_a_directory_without_a_node_is_down_with_exit_code_1(data_dir: Path) -> None:
    down = cassandra_command("status", data_dir, "--json")
    assert down.returncode == 1
    assert json.loads(down.stdout)["state"] == "down"
    assert not data_dir.exists()


def test_stop_without_a_node_is_done_already(data_dir: Path) -> None:
    stopped = cassandra_command("stop", data_dir)
    assert stopped.returncode == 0
    assert f"No node is running on {data_dir}" in stopped.stderr


def test_start_that_fails_prints_the_end_of_the_log_and_no_traceback(
    data_dir: Path, port: int
) -> None:
    failed = cassandra_command("start", data_dir, "--port", str(port), "--heap", "nonsense")
    assert failed.returncode == 1
    assert "[cassieq:embedded_failed]" in failed.stderr
    assert "Invalid initial heap size: -Xmsnonsense" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert failed.stdout == ""


@pytest.mark.long
def test_paused_node_is_not_answering_and_can_be_stopped(data_dir: Path, port: int) -> None:
    started = cassandra_command("start", data_dir, "--port", str(port), "--heap", "512m", "--json")
    jvm = psutil.Process(json.loads(started.stdout)["pid"])
    jvm.suspend()
    paused = cassandra_command("status", data_dir, "--json")
    assert (1, "not answering") == (paused.returncode, json.loads(paused.stdout)["state"])
    assert cassandra_command("stop", data_dir).returncode == 0
    wait_until(lambda: has_ended(jvm), describe="the JVM to be gone")


@pytest.mark.parametrize("arguments", [["cassandra", "start", "--port", "0"], ["no-such-command"]])
def test_wrong_usage_has_exit_code_2(arguments: list[str]) -> None:
    assert cassieq(*arguments).returncode == 2


def test_java_prints_a_home_with_a_java_17_in_it() -> None:
    printed = cassieq("cassandra", "java").stdout.strip()
    answer = subprocess.run(
        [Path(printed) / "bin" / "java", "-version"], capture_output=True, text=True, check=True
    )
    assert 'version "17.' in answer.stderr
