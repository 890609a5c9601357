"""``python -m bench.against_kafka``: our sinks and source beside Kafka and Spark's connector to it.

Both sides do the same in Spark sessions of their own, with the same settings, by the same code, and
take turns in one run: `bench.spark_work`. See ``docs/benchmarks.md`` for what is compared.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.__main__ import HEAP, ROOT, compile_package
from bench.kafka_rounds import FIRST_ROW, OURS, TARGETS, THEIRS, TRICKLE, Case, Extent, Rounds
from bench.spark_child import SparkChild

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.peers.kafka import Installation

MAIN, NAMED = "main", "named"
LEGS: Final = (*TARGETS, FIRST_ROW, TRICKLE)
_SIZED = ("sink_batch", "sink_stream", "source_all", "source_all_triggers")
_SOURCES = tuple(leg for leg in TARGETS if leg.startswith("source"))
CASES: Final = {
    MAIN: Case(2_000_000, 96),
    NAMED: Case(2_000_000, 96, is_named=True, legs=_SOURCES),
    "1kb": Case(200_000, 1_024, legs=_SIZED),
    "100kb": Case(2_000, 100 * 1_024, legs=_SIZED),
    "no_fsync": Case(500_000, 96, ours="periodic"),
    "fsync": Case(500_000, 96, theirs="fsync"),
}
SMOKE_CASES: Final = {
    MAIN: Case(50_000, 96),
    NAMED: Case(20_000, 96, is_named=True, legs=("source_all", "source_all_triggers")),
    "100kb": Case(100, 100 * 1_024, legs=_SIZED),
    "no_fsync": Case(20_000, 96, ours="periodic", legs=("sink_batch",)),
    "fsync": Case(20_000, 96, theirs="fsync", legs=("sink_batch",)),
}


SIZES = {"memtable_offheap_space": "512MiB", "commitlog_total_space": "2GiB"}
"""An embedded node is small: it flushes after each 128 MB. So much Cassandra gives itself with a
heap of 2 GB, and a quarter of its own commit log."""

FULL = Extent(rounds=5, warm_up=8, fresh_sessions=5, trickle_samples=100, trickle_warm_up=10)
SMOKE = Extent(rounds=1, warm_up=1, fresh_sessions=1, trickle_samples=5, trickle_warm_up=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, print and save the figures; nothing fails where Kafka cannot be had."""
    asked = _parser().parse_args(arguments)
    legs = _chosen(asked.legs, LEGS, "leg")
    cases = _cases(asked)
    extent = SMOKE if asked.smoke else FULL
    extent = replace(
        extent,
        rounds=asked.rounds or extent.rounds,
        warm_up=asked.warm_up or extent.warm_up,
    )

    from bench import kafka_report, report  # noqa: PLC0415 - numpy and the package, for a run only
    from bench.peers import kafka  # noqa: PLC0415 - as above
    from bench.peers.peer import PeerMissing  # noqa: PLC0415 - as above

    try:
        installed = kafka.fetch()
    except PeerMissing as error:
        print(f"Skipped python -m bench.against_kafka: {error}", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory(prefix="cassieq-bench-") as folder:
        found = _run(installed, cases, legs, extent, folder=Path(folder), seed=asked.seed)
    found |= {"targets": TARGETS, "later_targets_s": kafka_report.LATER_TARGETS_S}
    found |= {"seed": asked.seed, "heaps": {"cassandra": HEAP, "kafka": kafka.HEAP, "spark": "2g"}}
    found |= report.circumstances("python -m bench.against_kafka", sys.argv[1:])
    found["versions"] |= {
        "kafka": kafka.KAFKA.version,
        "pyspark_of_kafka": kafka.SPARK_VERSION,
    }
    if not asked.dry:
        kafka_report.save(found, Path(asked.results), name=_name(asked))
    print(kafka_report.as_text(found))
    return 0


def _run(
    installed: Installation,
    cases: Mapping[str, Case],
    legs: Sequence[str],
    extent: Extent,
    *,
    folder: Path,
    seed: int,
) -> dict[str, Any]:
    """Start both sides, and measure all that was chosen."""
    import cassieq_spark as cassieq  # noqa: PLC0415 - see main
    from bench import kafka_report  # noqa: PLC0415 - as above
    from bench.peers.kafka import PARTITIONS, broker  # noqa: PLC0415 - as above
    from cassieq_spark.embedded import EmbeddedCassandra  # noqa: PLC0415 - as above

    compile_package()
    periodic = {"commitlog_sync": "periodic", "commitlog_sync_period": "10000ms"}
    nodes = {"fsync": SIZES, "periodic": {**SIZES, **periodic}}
    with ExitStack() as stack:
        addresses = {}
        for durability in dict.fromkeys(["fsync", *(case.ours for case in cases.values())]):
            node = EmbeddedCassandra(heap=HEAP, settings=nodes[durability], optimize=True)
            addresses[durability] = stack.enter_context(node).contact_points
            with cassieq.connect(addresses[durability]) as client:
                client.bootstrap()
        topics = stack.enter_context(broker(installed))
        os.environ["JAVA_HOME"] = str(installed.java_home)
        starts = Starts(installed, addresses, topics, PARTITIONS, folder)
        children = {side: stack.enter_context(starts.child(side)) for side in (OURS, THEIRS)}
        rounds = Rounds(children, extent, folder=folder, seed=seed)
        found: dict[str, Any] = {"rounds": extent.rounds, "cases": {}, "repeated": rounds.repeated}
        for name, case in cases.items():
            if chosen := [leg for leg in case.legs if leg in legs]:
                turns = rounds
                if case.is_named:
                    ours = stack.enter_context(starts.child(OURS, is_named=True))
                    sides = {**children, OURS: ours}
                    turns = Rounds(
                        sides, extent, folder=folder, seed=seed, repeated=rounds.repeated
                    )
                samples = turns.case(name, case, chosen)
                found["cases"][name] = kafka_report.of_case(samples, case)
        if FIRST_ROW in legs:
            found[FIRST_ROW] = kafka_report.of_first_rows(rounds.first_rows(starts.child))
        if TRICKLE in legs:
            found[TRICKLE] = kafka_report.of_trickle(rounds.trickle())
    return found


class Starts:
    """Starts a Spark session of either side."""

    def __init__(
        self,
        installed: Installation,
        addresses: Mapping[str, str],
        broker: str,
        partitions: int,
        folder: Path,
    ) -> None:
        self._folder = folder
        self._started = 0
        self._arguments: dict[str, Any] = {
            OURS: (sys.executable, OURS, {"addresses": dict(addresses)}),
            THEIRS: (
                str(installed.python),
                THEIRS,
                {"address": broker, "partitions": partitions},
            ),
        }
        self._settings = {OURS: {}, THEIRS: {"spark.jars": ",".join(map(str, installed.connector))}}

    def child(self, side: str, *, is_named: bool | None = None) -> SparkChild:
        """A fresh one. Nobody names the interpreter of ours; theirs has no other way to find it."""
        self._started += 1
        is_named = side == THEIRS if is_named is None else is_named
        return SparkChild(
            *self._arguments[side],
            folder=self._folder / f"{side}{self._started}",
            settings=self._settings[side],
            is_named=is_named,
        )


def _name(asked: argparse.Namespace) -> str:
    """Of the results: only a full run replaces those that the documentation is made from."""
    if asked.smoke:
        return "kafka-smoke"
    is_part = asked.legs or asked.cases or asked.messages
    return "kafka-part" if is_part else "kafka"


def _cases(asked: argparse.Namespace) -> dict[str, Case]:
    known = dict(SMOKE_CASES if asked.smoke else CASES)
    if asked.messages:
        known[MAIN] = replace(known[MAIN], messages=asked.messages)
    wanted = asked.cases or (MAIN if asked.legs else None)
    return {name: known[name] for name in _chosen(wanted, known, "case")}


def _chosen(asked: str | None, known: Iterable[str], what: str) -> list[str]:
    """Some of the known, in their order.

    Raises:
        SystemExit: One is not known.
    """
    names = list(known)
    wanted = asked.split(",") if asked else names
    if unknown := set(wanted) - set(names):
        raise SystemExit(f"unknown {what} {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    return [name for name in names if name in wanted]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.against_kafka", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="small: does it run, do counts agree")
    parser.add_argument("--legs", help=f"some of {','.join(LEGS)}; then only case main")
    parser.add_argument("--cases", help=f"some of {','.join(CASES)}")
    parser.add_argument("--messages", type=int, help="of case main; a multiple of 10")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--warm-up", type=int, help="rounds that do not count, at least 1")
    parser.add_argument("--seed", type=int, default=20131)
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    parser.add_argument("--dry", action="store_true", help="print the figures, and save nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
