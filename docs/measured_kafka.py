"""What ``bench.against_kafka`` has found, as the tables of README.md and docs/benchmarks.md."""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, Any

from cells import run_as, spread, table, with_text

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS, THEIRS, SPARK = "cassieq", "kafka", "spark"
MAIN = "main"

LEGS = {
    "sink_batch": "`df.write`",
    "sink_stream": "`writeStream` from Parquet files",
    "source_limit": "`readStream`, 200,000 a batch",
    "source_limit_triggers": "the same, its triggers only",
    "source_all": "`readStream`, no limit",
    "source_all_triggers": "the same, its one trigger only",
}
DURABILITY = {
    OURS: {"fsync": "fsync before each answer", "periodic": "fsync every 10 s"},
    THEIRS: {"default": "no fsync", "fsync": "fsync before each answer"},
}
QUERIES = {
    "first_query": "first row of the first `availableNow` query of a session",
    "first_wall": "the same query until its end",
    "second_query": "first row of the second query",
    "second_wall": "the same query until its end",
}
SIDES = {
    OURS: "put to row seen, in a queue",
    THEIRS: "put to row seen, in a Kafka topic",
    SPARK: "Spark's own: a source that looks at a file",
}


def kafka_in_short(found: dict[str, Any]) -> str:
    """What the README shows: six lines."""
    main = found["cases"][MAIN]
    rows = []
    for key, name in LEGS.items():
        if key in main["legs"]:
            ours, theirs = _median_round(main, key)
            rates = (_thousands(rate) for rate in (ours, theirs))
            rows.append([name, f"**{ours / theirs:.2f}**", *rates])
    titles = ["", "of Kafka's speed", "messages a second", "Kafka's"]
    text = (
        f"{main['messages']:,} messages of {main['body_bytes']} bytes. Each line is the round with "
        f"the median ratio, of {found['rounds']} rounds. {_durability(main)} {_ran(found)}"
    )
    return with_text(table(titles, rows), text)


def kafka_page(found: dict[str, Any]) -> str:
    """All cases with their spreads, then the latencies."""
    parts = [table(_CASE_TITLES, _case_rows(found)), *_latencies(found)]
    text = (
        f"Medians of {found['rounds']} rounds (least to most). A ratio is one of a round, so the "
        "median ratio is not the ratio of the two median rates. "
    )
    if again := found.get("repeated"):
        text += f"Begun again, as the Kafka sink had failed: {', '.join(again)}. "
    return with_text("\n".join(parts), text + _ran(found))


_CASE_TITLES = ["", "", "of Kafka's speed", "target", "messages a second", "Kafka's", "batches"]


def _case_rows(found: dict[str, Any]) -> Iterator[list[str]]:
    for name, case in found["cases"].items():
        what = f"{case['messages']:,} x {case['body_bytes']:,} B"
        if name in ("fsync", "no_fsync"):
            both = (DURABILITY[side][case["durability"][side]] for side in (OURS, THEIRS))
            what += f"; {' against '.join(both)}"
        if name == "named":
            what += "; PYSPARK_PYTHON is set"
        for key, leg in case["legs"].items():
            batches = case["batches"].get(key.removesuffix("_triggers"), {})
            yield [
                what,
                LEGS[key],
                spread(leg["ratio"], "{:.2f}"),
                f"{found['targets'][key]:.1f}" if name == MAIN else "",
                *(spread(leg["messages_per_s"][side], "{:,.0f}") for side in (OURS, THEIRS)),
                " and ".join(f"{batches[side]:.0f}" for side in (OURS, THEIRS) if side in batches),
            ]


def _latencies(found: dict[str, Any]) -> Iterator[str]:
    if "first_row" in found:
        rows = [
            [
                name,
                *(_ms(one["seconds"][side]["median"]) for side in (OURS, THEIRS)),
                _ms(one["later_s"]),
                _ms(found["later_targets_s"][key]) if key in found["later_targets_s"] else "",
            ]
            for key, name in QUERIES.items()
            for one in [found["first_row"][key]]
        ]
        yield table(["", "ours", "Kafka's", "later", "at most"], rows)
    if "trickle" in found:
        one = found["trickle"]
        rows = [
            [name, *(_ms(one["seconds"][side][key]) for key in ("p50", "p95", "p99"))]
            for side, name in SIDES.items()
        ]
        behind, target = _ms(one["later_s"]), _ms(found["later_targets_s"]["trickle"])
        yield (
            f"{table(['', 'p50', 'p95', 'p99'], rows)}\n"
            f"So a queue adds {behind} to Spark's own part (p50; target: {target}).\n"
        )


def _median_round(case: dict[str, Any], leg: str) -> tuple[float, float]:
    """Return both sides' messages a second in the round whose ratio is the median."""
    samples = case["samples_s"][leg]
    rounds = [
        (case["messages"] / ours, case["messages"] / theirs)
        for ours, theirs in zip(samples[OURS], samples[THEIRS], strict=True)
    ]
    middle = median_low(ours / theirs for ours, theirs in rounds)
    return next((ours, theirs) for ours, theirs in rounds if ours / theirs == middle)


def _durability(case: dict[str, Any]) -> str:
    ours, theirs = (DURABILITY[side][case["durability"][side]] for side in (OURS, THEIRS))
    return f"Each side as it ships: {ours} here, {theirs} there."


def _ran(found: dict[str, Any]) -> str:
    versions = found["versions"]
    return (
        f"{found['machine']['cores']} cores; Spark {versions['pyspark']} here, Kafka "
        f"{versions['kafka']} with Spark {versions['pyspark_of_kafka']} there; {run_as(found)}"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"


def _thousands(value: float) -> str:
    return f"{round(value, -3):,.0f}"
