"""Repairs for ever, in a Python process: the same steps as ``cassieq repair`` and the Spark job."""

from __future__ import annotations

import cassieq_spark as cassieq
from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import generator
from cassieq_spark.errors import StoreError
from tests.children.together import recorder

PAUSE_S = 1.0


def main(
    *,
    who: str,
    contact_points: str,
    keyspace: str,
    queues: list[str],
    directory: str,
    dials_file: str,
    loses: bool,
    seed: int,
) -> None:
    """Never returns; what is no `StoreError` ends it, and the runner sees that."""
    record = recorder(directory, who, seed, dials_file=dials_file, loses=loses)
    rng = generator(seed)
    clock = SystemClock()
    client: cassieq.Client | None = None
    while True:
        try:
            client = client or cassieq.connect(contact_points, keyspace=keyspace)
            for queue in queues:
                report = client.repair(queue, full=rng.random() < 0.1)
                for one in report.queues:
                    for problem in one.problems:
                        record.say("failed", error=problem)
        except StoreError as error:
            record.say("failed", error=str(error))
        clock.wait(rng.uniform(0, 2 * PAUSE_S))
