"""A driver that moves one queue's messages into another, to be killed at a point."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from cassieq_spark.testing import wait_until
from tests.children.blocking import VARIABLE, BlockingSource
from tests.fixtures.processes import reached
from tests.fixtures.spark import build_session

source, target, checkpoint = (json.loads(argument) for argument in sys.argv[1:])
announced = Path(os.environ[VARIABLE])

spark = build_session(Path(checkpoint).parent / "child")
spark.dataSource.register(BlockingSource)
query = (
    spark.readStream.format("cassieq_blocking")
    .options(**source)
    .load()
    .select("body")
    .writeStream.format("cassieq_blocking")
    .options(**target)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
wait_until(lambda: announced.exists() or not query.isActive, deadline_s=120)
if query.exception() is not None:
    raise query.exception()  # type: ignore[misc]  # not None
reached(announced.name)
