"""The examples run as they stand, but for the address of Cassandra."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq

if TYPE_CHECKING:
    from pathlib import Path

    from cassieq_spark.testing import EmbeddedCassandra

EXAMPLE = re.compile(
    r"<!-- example:begin -->\n```python\n(.*?)```\n<!-- example:end -->", re.DOTALL
)


@pytest.mark.usefixtures("spark")
def test_readme_example_moves_the_large_orders(
    pytestconfig: pytest.Config,
    cassandra: EmbeddedCassandra,
    tmp_path: Path,
) -> None:
    run_example(
        pytestconfig.rootpath / "README.md",
        {
            "127.0.0.1:9042": cassandra.contact_points,
            '"cassieq"}': '"cassieq_readme"}',
            "checkpoints/large": f"{tmp_path}/large",
        },
    )

    with cassieq.connect(cassandra.contact_points, keyspace="cassieq_readme") as client:
        stats = {name: client.queue(name).stats() for name in ("orders", "large-orders")}
    assert {"orders": 0, "large-orders": 100} == {name: one.visible for name, one in stats.items()}
    assert {"orders": 0, "large-orders": 0} == {name: one.in_flight for name, one in stats.items()}


def test_the_clients_guide_gets_what_it_has_put(
    pytestconfig: pytest.Config, cassandra: EmbeddedCassandra, capsys: pytest.CaptureFixture[str]
) -> None:
    run_example(
        pytestconfig.rootpath / "docs" / "guides" / "client.md",
        {"127.0.0.1:9042": cassandra.contact_points, '"cassieq"': '"cassieq_guide"'},
    )
    printed = capsys.readouterr().out
    assert printed.startswith("b'hello' greeting {'to': 'ada'} 1\n")
    with cassieq.connect(cassandra.contact_points, keyspace="cassieq_guide") as client:
        stats = client.queue("mail").stats()
    assert (0, 0, 0) == (stats.visible, stats.delayed, stats.in_flight)


def test_the_guide_of_asyncio_acks_all(
    pytestconfig: pytest.Config, cassandra: EmbeddedCassandra, capsys: pytest.CaptureFixture[str]
) -> None:
    run_example(
        pytestconfig.rootpath / "docs" / "guides" / "asyncio.md",
        {"127.0.0.1:9042": cassandra.contact_points, '"cassieq"': '"cassieq_asyncio"'},
    )
    assert "b'hello' {'to': 'ada'}\n" == capsys.readouterr().out
    with cassieq.connect(cassandra.contact_points, keyspace="cassieq_asyncio") as client:
        stats = client.queue("mail").stats()
    assert (0, 0) == (stats.visible, stats.in_flight)


def test_the_guide_of_scheduled_messages_cancels_one(
    pytestconfig: pytest.Config, cassandra: EmbeddedCassandra, capsys: pytest.CaptureFixture[str]
) -> None:
    run_example(
        pytestconfig.rootpath / "docs" / "guides" / "scheduling.md",
        {"127.0.0.1:9042": cassandra.contact_points, '"cassieq"': '"cassieq_scheduling"'},
    )
    printed = capsys.readouterr().out.splitlines()
    assert "2" == printed[0]
    assert 2 == sum(int(line.split()[1]) for line in printed[1:-2])
    assert ["True", "1"] == printed[-2:]


def test_the_guide_of_lanes_gets_the_highest_priority_first(
    pytestconfig: pytest.Config, cassandra: EmbeddedCassandra, capsys: pytest.CaptureFixture[str]
) -> None:
    run_example(
        pytestconfig.rootpath / "docs" / "guides" / "lanes.md",
        {
            "127.0.0.1:9042": cassandra.contact_points,
            '"cassieq"': '"cassieq_lanes"',
            "fairness=0.1": "fairness=0",
        },
    )
    printed = capsys.readouterr().out.splitlines()
    assert "2 b'refund'" == printed[0]
    assert {"0 b'report'", "0 b'created'", "0 b'changed'"} == set(printed[1:4])
    assert "{0: 0, 1: 0, 2: 0}" == printed[4]


def test_the_guide_of_messages_that_expire_puts_three(
    pytestconfig: pytest.Config, cassandra: EmbeddedCassandra, capsys: pytest.CaptureFixture[str]
) -> None:
    run_example(
        pytestconfig.rootpath / "docs" / "guides" / "retention.md",
        {"127.0.0.1:9042": cassandra.contact_points, '"cassieq"': '"cassieq_retention"'},
    )
    assert "2 1\n" == capsys.readouterr().out


def test_the_guide_of_deduplication_puts_each_key_once(
    pytestconfig: pytest.Config, cassandra: EmbeddedCassandra, capsys: pytest.CaptureFixture[str]
) -> None:
    run_example(
        pytestconfig.rootpath / "docs" / "guides" / "deduplication.md",
        {"127.0.0.1:9042": cassandra.contact_points, '"cassieq"': '"cassieq_dedup"'},
    )
    assert "True 1\nTrue\nFalse\n" == capsys.readouterr().out


def run_example(file: Path, changed: dict[str, str]) -> None:
    found = EXAMPLE.search(file.read_text("utf-8"))
    assert found is not None
    example = found[1]
    for old, new in changed.items():
        assert old in example
        example = example.replace(old, new)
    exec(compile(example, file.name, "exec"), {})  # noqa: S102 - our own documents
