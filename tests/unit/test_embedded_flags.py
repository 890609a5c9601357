"""The flags that a node's JVM is started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from cassieq_spark.embedded.config import NodeConfig


@pytest.mark.parametrize("optimize", [True, False])
def test_only_a_node_that_is_to_work_for_long_compiles_twice(
    tmp_path: Path, *, optimize: bool
) -> None:
    (tmp_path / "jamm-0.4.0.jar").touch()
    config = NodeConfig(
        directory=tmp_path / "node1",
        index=0,
        addresses=("127.0.0.1",),
        native_port=9_042,
        storage_port=7_000,
        heap="1g",
        optimize=optimize,
    )
    assert optimize is not ("-XX:TieredStopAtLevel=1" in config.jvm_arguments(tmp_path))
