"""A DataFrame into a queue and out, beside a table of rows by the Spark Cassandra Connector."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from bench import report
from bench.peers import rows
from bench.sides import Sides

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    import cassieq_spark as cassieq

BODY_BYTES = 96


def compare(
    spark: SparkSession,
    client: cassieq.Client,
    contact_points: str,
    *,
    messages: int,
    rounds: int,
    warm_up: int,
    seed: int,
    folder: Path,
) -> dict[str, Any]:
    """Messages a second of both, and how many times as many are ours; they take turns.

    Raises:
        RuntimeError: What was read is not what was written.
    """
    options = {"contactPoints": contact_points, "keyspace": "cassieq"}
    sides = Sides(spark, client, options, messages=messages, seed=seed, folder=folder)
    frame = rows.numbered(sides.frame)
    written = rows.digest(sides.frame)
    seconds: dict[str, list[float]] = defaultdict(list)
    for number in range(-warm_up, rounds):
        name = f"rows{number + warm_up}"
        rows.create(contact_points, name)
        sides.new_queue(name)
        took = {
            "df.write, ours": sides.write(name).seconds,
            "df.write, rows": rows.write(frame, name),
            "read, ours": sides.drain(name, columns="body binary").seconds,
            "read, rows": rows.read(spark, name),
        }
        if rows.stored(spark, name) != written:
            raise RuntimeError(f"{written} were written as rows, {rows.stored(spark, name)} read")
        for work, one in took.items() if number >= 0 else ():
            seconds[work].append(one)
        print(f"rows, round {number + 1}: {sum(took.values()):.0f} s", file=sys.stderr)
    return {
        "messages": messages,
        "body_bytes": BODY_BYTES,
        "messages_per_s": {
            work: report.spread([messages / one for one in each]) for work, each in seconds.items()
        },
        "times_rows": {
            work: report.spread(
                [
                    theirs / ours
                    for ours, theirs in zip(
                        seconds[f"{work}, ours"], seconds[f"{work}, rows"], strict=True
                    )
                ]
            )
            for work in ("df.write", "read")
        },
        "samples_s": dict(seconds),
    }
