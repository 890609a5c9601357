"""No JVM and no temporary directory outlives the process that started it, however that ends."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from cassieq_spark.testing import wait_until
from tests.fixtures.processes import has_ended

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.processes import Script

pytestmark = pytest.mark.fault

STARTER = """
    import json
    import os

    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.processes import reached, say

    cassandra = EmbeddedCassandra(heap="512m")
    cassandra.start()
    if {fork} and os.fork() == 0:  # it holds a copy of every pipe of ours
        reached("forked")
    say(json.dumps({{"pid": cassandra.nodes[0].pid, "directory": str(cassandra.data_dir)}}))
    reached("running")
    cassandra.stop()
"""


def started_node(script: Script) -> tuple[psutil.Process, Path]:
    script.wait_for("running")
    (line,) = [line for line in script.lines if line.startswith("{")]
    node = json.loads(line)
    jvm = psutil.Process(node["pid"])
    assert jvm.is_running()
    return jvm, Path(node["directory"])


@pytest.mark.parametrize("is_paused", [False, True], ids=["running", "paused"])
def test_killed_parent_takes_node_and_directory_with_it(
    start_script: Callable[..., Script], is_paused: bool
) -> None:
    script = start_script(STARTER.format(fork=False))
    jvm, directory = started_node(script)
    if is_paused:
        jvm.suspend()
    os.kill(script.pid, signal.SIGKILL)
    wait_until(lambda: has_ended(jvm), describe="the JVM to end")
    wait_until(lambda: not directory.exists(), describe=f"{directory} to be removed")


def test_killed_parent_takes_the_node_even_if_a_fork_of_it_lives_on(
    start_script: Callable[..., Script],
) -> None:
    script = start_script(STARTER.format(fork=True))
    jvm, directory = started_node(script)
    script.wait_for("forked")
    os.kill(script.pid, signal.SIGKILL)
    wait_until(lambda: has_ended(jvm), describe="the JVM to end")
    wait_until(lambda: not directory.exists(), describe=f"{directory} to be removed")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")
def test_killed_supervisor_takes_the_node_with_it(start_script: Callable[..., Script]) -> None:
    script = start_script(STARTER.format(fork=False))
    jvm, directory = started_node(script)
    supervisor = jvm.parent()
    assert supervisor is not None
    supervisor.kill()
    wait_until(lambda: has_ended(jvm), describe="the JVM to end")
    script.proceed()
    assert script.wait() == 0, script.output
    assert not directory.exists()
