"""Samples of the pages about Spark run as they stand, but for addresses and folders."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as all the world calls it

import cassieq_spark as cassieq
from cassieq_spark.store import store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cassieq_spark.testing import EmbeddedCassandra

KEYSPACE = "cassieq_samples"


@pytest.fixture(autouse=True)
def _disconnected() -> Iterator[None]:
    yield
    store.close_shared()


@pytest.fixture
def client(cassandra: EmbeddedCassandra) -> Iterator[cassieq.Client]:
    with cassieq.connect(cassandra.contact_points, keyspace=KEYSPACE) as own:
        own.bootstrap()
        yield own


def sample(page: Path, mark: str, changed: dict[str, str]) -> str:
    """The one block of Python on a page that has these words."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    (found,) = [block for block in blocks if mark in block]
    for old, new in changed.items():
        assert old in found
        found = found.replace(old, new)
    return str(found)


def test_the_split_of_a_filter_keeps_both_parts(
    pytestconfig: pytest.Config,
    cassandra: EmbeddedCassandra,
    spark: SparkSession,
    client: cassieq.Client,
    tmp_path: Path,
) -> None:
    for name in ("large-orders", "small-orders"):
        client.create_queue(name)
    source = client.create_queue("orders-to-split")
    source.put_many([b"x" * 2_000] * 3 + [b"x"] * 4)
    here = {"contactPoints": cassandra.contact_points, "keyspace": KEYSPACE}
    columns = "message_id string, body binary, tag string, headers map<string,string>"
    source_of = spark.readStream.format("cassieq").schema(f"{columns}, `group` string")
    messages = source_of.options(**here, queue="orders-to-split").load()
    code = sample(
        pytestconfig.rootpath / "docs" / "guides" / "source.md",
        "def split(",
        {
            'contactPoints="127.0.0.1:9042"': f"**{here!r}",
            '"checkpoints/split"': repr(str(tmp_path / "split")),
            ".start()": ".trigger(availableNow=True).start().awaitTermination()",
        },
    )

    exec(compile(code, "source.md", "exec"), {"F": F, "messages": messages})  # noqa: S102 - our own documents

    assert 3 == client.queue("large-orders").stats().visible
    assert 4 == client.queue("small-orders").stats().visible
    assert (0, 0) == (source.stats().visible, source.stats().in_flight)


def test_a_copy_in_parquet_is_restored_once_however_often_it_is_run(
    pytestconfig: pytest.Config,
    cassandra: EmbeddedCassandra,
    spark: SparkSession,
    client: cassieq.Client,
    tmp_path: Path,
) -> None:
    queue = client.create_queue("orders-to-copy", priorities=3)
    ids = [queue.put(b"a", priority=2, tag="t", headers={"h": "1"}), queue.put(b"b")]
    code = sample(
        pytestconfig.rootpath / "docs" / "operations" / "cluster.md",
        "write.parquet(",
        {
            '.option("contactPoints", "10.0.0.1:9042")': f'.option("contactPoints", '
            f'"{cassandra.contact_points}").option("keyspace", "{KEYSPACE}")',
            '"orders"': '"orders-to-copy"',
            "s3://backup/orders": f"{tmp_path}/backup",
        },
    )
    copy, _, restore = code.partition("# later")

    exec(compile(copy, "cluster.md", "exec"), {"spark": spark})  # noqa: S102 - our own documents
    queue.purge()
    for _ in range(2):
        exec(compile(f"#{restore}", "cluster.md", "exec"), {"spark": spark})  # noqa: S102 - our own documents

    found = [(one.message_id, one.body, one.priority, one.tag) for one in queue.get()]
    assert [(ids[0], b"a", 2, "t"), (ids[1], b"b", 0, None)] == sorted(
        found, key=lambda one: -one[2]
    )
