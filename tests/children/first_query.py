"""The first streaming query of a session; prints what was forked for it, as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import cassieq_spark as cassieq
from cassieq_spark.testing import wait_until
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.processes import fork_servers, say, serves
from tests.fixtures.spark import build_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

contact_points, directory, queue, how = sys.argv[1:]
spark = build_session(Path(directory))
jvm = spark._jvm
assert jvm is not None
pid = jvm.java.lang.ProcessHandle.current().pid()
if how == "registered":
    cassieq.register(spark)
options = {"contactPoints": contact_points, "keyspace": KEYSPACE, "queue": queue}
source = spark.readStream.format("cassieq").options(**options)
# A first query as people see it on a machine that has the time: the server is there when it begins.
load = source.schema("body binary").load
if how == "found":
    load()
wait_until(
    lambda: any(serves(one) for one in fork_servers(pid)),
    deadline_s=60,
    describe="a server serves",
)
found: dict[str, int] = {}


def note(frame: DataFrame, _: int) -> None:
    """What there is while the query runs."""
    servers = fork_servers(pid)
    children = [child for server in servers for child in server.children()]
    daemons = [child for child in children if os.getpgid(child.pid) == child.pid]
    found["rows"] = frame.count()
    found["servers"] = len(servers)
    found["daemons"] = len(daemons)
    found["planners"] = len(children) - len(daemons)


query = load().writeStream.foreachBatch(note).trigger(availableNow=True)
query.option("checkpointLocation", f"{directory}/checkpoint").start().awaitTermination()
say(f"FOUND {json.dumps(found)}")
spark.stop()
