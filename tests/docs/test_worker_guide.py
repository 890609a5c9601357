"""The guide to workers: its function is called by its command, and prints what the guide says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import cassieq_spark as cassieq
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.commands import CommandLine, end

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from cassieq_spark.testing import EmbeddedCassandra

FUNCTION = re.compile(r"<!-- function:begin -->\n```python\n# (\S+)\n(.*?)```", re.DOTALL)
ROUTES = re.compile(r"<!-- routes:begin -->\n```python\n# (\S+)\n(.*?)```", re.DOTALL)
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
COMMAND = re.compile(r"```console\n\$ cassieq (.*)\n((?:.*\n)*?)```")


def test_the_guide_of_workers_sends_a_mail(
    pytestconfig: pytest.Config,
    cassandra: EmbeddedCassandra,
    client: cassieq.Client,
    queue_name: str,
    tmp_path: Path,
) -> None:
    text = (pytestconfig.rootpath / "docs" / "guides" / "worker.md").read_text("utf-8")
    function, command = FUNCTION.search(text), COMMAND.search(text)
    assert function is not None
    assert command is not None
    (tmp_path / function[1]).write_text(function[2], encoding="utf-8")
    client.create_queue(f"{queue_name}.dead")
    queue = client.create_queue(
        queue_name, max_deliveries=3, dead_letter_queue=f"{queue_name}.dead"
    )
    queue.put(b"hello", headers={"to": "ada"})

    arguments = command[1].replace(" mail ", f" {queue_name} ").split()
    assert queue_name in arguments
    assert KEYSPACE == client.keyspace
    ended = end(CommandLine(cassandra.contact_points).start(*arguments, cwd=tmp_path))

    assert 0 == ended.code
    assert TIME.sub("", command[2]) == TIME.sub("", ended.err + ended.out)
    assert 0 == queue.stats().in_flight


def test_the_guide_of_workers_has_a_function_for_each_tag(
    pytestconfig: pytest.Config,
    cassandra: EmbeddedCassandra,
    client: cassieq.Client,
    queue_name: str,
    tmp_path: Path,
) -> None:
    text = (pytestconfig.rootpath / "docs" / "guides" / "worker.md").read_text("utf-8")
    routes = ROUTES.search(text)
    assert routes is not None
    (tmp_path / routes[1]).write_text(routes[2], encoding="utf-8")
    client.create_queue(f"{queue_name}.dead")
    queue = client.create_queue(
        queue_name, max_deliveries=3, dead_letter_queue=f"{queue_name}.dead"
    )
    queue.put(b"1", tag="order.created")
    queue.put(b"2", tag="order.paid")
    queue.put(b"3", tag="order.lost")

    start = CommandLine(cassandra.contact_points).start
    arguments = ("--concurrency", "1", "--backoff", "0.1s", "--idle-timeout", "2s")
    ended = end(start("worker", "shop:worker", queue_name, *arguments, cwd=tmp_path))

    assert 0 == ended.code
    calls = [("created 1", "order.created"), ("paid 2", "order.paid")]
    lines = [line for said, tag in calls for line in (f"before {tag}", said, f"after {tag}")]
    assert lines == ended.out.splitlines()
    assert 3 == ended.err.count("worker_failed")
    assert "no function for tag 'order.lost'. Add @worker.on(...) for this tag" in ended.err
    stats = queue.stats()
    assert (0, 0, 1) == (stats.visible, stats.in_flight, stats.dead)
