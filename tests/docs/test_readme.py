"""The README's example runs as it stands, but for the address of Cassandra."""

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
    text = (pytestconfig.rootpath / "README.md").read_text("utf-8")
    found = EXAMPLE.search(text)
    assert found is not None
    example = found[1].replace("127.0.0.1:9042", cassandra.contact_points)
    example = example.replace('"cassieq"}', '"cassieq_readme"}')
    example = example.replace("checkpoints/large", f"{tmp_path}/large")
    assert cassandra.contact_points in example

    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)  # noqa: S102 - our own README

    with cassieq.connect(cassandra.contact_points, keyspace="cassieq_readme") as client:
        stats = {name: client.queue(name).stats() for name in ("orders", "large-orders")}
    assert {"orders": 0, "large-orders": 100} == {name: one.visible for name, one in stats.items()}
    assert {"orders": 0, "large-orders": 0} == {name: one.invisible for name, one in stats.items()}
