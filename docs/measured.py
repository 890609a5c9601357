"""The benchmarks' results as the tables of README.md and docs/benchmarks.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cells import run_as as _run_as
from cells import spread as _spread
from cells import table
from cells import with_text as _with_text
from measured_kafka import kafka_in_short, kafka_page
from measured_queues import queues_page

if TYPE_CHECKING:
    from collections.abc import Callable

BENCH = Path("bench") / "results" / "queue.json"
PROGRAMS = Path("bench") / "results" / "programs.json"
LATENCY = Path("bench") / "results" / "latency.json"
SINKS = Path("bench") / "results" / "sinks.json"
ENGINE = Path("bench") / "results" / "engine.json"
CHOICE = Path("bench") / "results" / "choice.json"
SHARDS = Path("bench") / "results" / "shards.json"
SCHEDULED = Path("bench") / "results" / "scheduled.json"
GATEWAY = Path("bench") / "results" / "gateway.json"
PEERS = Path("bench") / "results" / "peers.json"
KAFKA = Path("bench") / "results" / "kafka.json"

NONE_YET = (
    "There are no figures yet: the benchmark has only been run small, to see that it works.\n"
)

SIDES = {
    "sink_batch": "`df.write` into a queue",
    "sink_stream": "`writeStream` into a queue, from Parquet files",
    "source_body": "`readStream` drained: claim, read, ack; column `body`",
    "source_all": "the same, all ten columns",
}

DOORS = {
    "arrow": "`df.write`",
    "connector": "`foreach_batch`, by the connector",
    "plain": "no queue: Spark's tasks and the plain driver",
}

PROGRAM_SIDES = {
    "put": "`put`, one after the other, one thread",
    "one": "put, get and ack one message, then the next",
    "hundred": "put, get and ack a hundred together",
    "load": "put by 2,000, `get(100)` and ack, buckets of 2,000",
    "fleet": "16 processes, `get(1000)` and ack",
    "fleet_consumer": "16 processes, a loop over `consumer(prefetch=2000)`",
}


ENGINE_FIGURES = {
    ("consumer", "messages_per_s"): "one `Consumer`: messages a second",
    ("consumer", "cas_per_100"): "CASes for 100 messages",
    ("fleet_consumer", "messages_per_s"): "16 processes, one lane, `consumer()`: messages a second",
    ("fleet_consumer", "cas_per_100"): "CASes for 100 messages",
    ("fleet_by_hand", "messages_per_s"): "16 processes, `get(100)` and `ack`: messages a second",
    ("fleet_by_hand", "cas_per_100"): "CASes for 100 messages",
    ("fifty", "cycles_per_s"): "50 coroutines put, 50 get and ack one at a time: cycles a second",
    ("fifty", "cas_per_message"): "CASes a message",
    ("fifty", "put_to_get_ms"): "from put to get, ms",
    ("puts", "puts_per_s"): "64 coroutines put one message each: puts a second",
    ("waiting", "put_to_get_ms"): "a get that waits, from put to get, ms",
    ("polls", "threads"): "1,000 waiting gets in one process: threads",
    ("polls", "reads_per_s"): "reads a second",
}

WANTED = {
    "of_before": "at least {:g} times",
    "at_most_of_before": "at most {:g} times",
    "at_least": "at least {:,g}",
    "at_most": "at most {:g}",
}

SHARDS_SIDES = {
    "put": "16 processes put",
    "get": "16 processes get and ack",
    "both": "8 put, 8 get and ack",
}


SCHEDULED_SIDES = {
    "put": "put, each",
    "get": "get and ack, each",
    "idle": "a consumer that waits, each second",
    "pass": "a repair pass",
}

ONCE_SCHEDULED = {"turn": "the pass that heals its share of periods", "stats": "`stats`"}


GATEWAY_PHASES = {
    "send": "16 clients send",
    "receive": "16 receive and delete",
    "all": "8 send, 8 receive and delete",
}


def pages(root: Path) -> dict[str, str]:
    """The parts of docs/benchmarks.md by their markers."""
    made = {
        "numbers": (BENCH, numbers_page),
        "programs": (PROGRAMS, programs_page),
        "engine": (ENGINE, engine_page),
        "choice": (CHOICE, choice_page),
        "shards": (SHARDS, shards_page),
        "scheduled": (SCHEDULED, scheduled_page),
        "gateway": (GATEWAY, gateway_page),
        "peers": (PEERS, queues_page),
        "kafka": (KAFKA, kafka_page),
        "sinks": (SINKS, sinks_page),
        "latency": (LATENCY, latency_page),
    }
    return {marker: _made(root / file, page) or NONE_YET for marker, (file, page) in made.items()}


def kafka_table(root: Path) -> str:
    """What the README shows of the last comparison with Kafka."""
    return _made(root / KAFKA, kafka_in_short) or NONE_YET


def numbers_page(found: dict[str, Any]) -> str:
    """The ratios and rates with their spreads, and the limits themselves."""
    rows = [
        [
            name,
            _spread(found["ratios"][side], "{:.2f}"),
            f"{found['targets'][side]:.1f}",
            _spread(found["messages_per_s"][side], "{:,.0f}"),
            f"{found['lwts_per_message'][side]:.5f}",
            str(found["micro_batches"][side]),
        ]
        for side, name in SIDES.items()
    ]
    titles = ["", "of the limit", "target", "messages a second", "LWTs a message", "batches"]
    limits = [
        [
            "raw write",
            _spread(found["messages_per_s"]["raw_write"], "{:,.0f}") + " messages a second",
        ],
        [
            "raw read",
            _spread(found["messages_per_s"]["raw_read"], "{:,.0f}") + " messages a second",
        ],
        ["Spark's empty micro-batch", _spread(found["empty_micro_batch_s"], "{:.3f}") + " s"],
    ]
    made = f"{table(titles, rows)}\n{table(['Limit', 'Median (least to most)'], limits)}"
    return _with_circumstances(made, found)


def programs_page(found: dict[str, Any]) -> str:
    """What a message costs a program."""
    lwts, targets = found["lwts_per_message"], found["targets"]
    rows = [
        [
            name,
            _spread(found["messages_per_s"][side], "{:,.0f}"),
            f"{lwts[side]:.4f}",
            f"{targets[side]:g}" if side in targets else "",
        ]
        for side, name in PROGRAM_SIDES.items()
    ]
    titles = ["", "messages a second", "LWTs a message", "at most"]
    grown = found["history"]
    text = (
        f"After {grown['messages']:,} messages were drained, an empty get is "
        f"{sum(grown['empty_get'].values())} statements and a client's first put "
        f"{sum(grown['put'].values())}, as on the first day. "
        f"{found['messages']:,} messages of {found['body_bytes']} bytes for the processes, medians "
        f"of {found['rounds']} rounds; {found['machine']['cores']} cores shared by Cassandra and "
        f"all clients; {_run_as(found)}"
    )
    return _with_text(table(titles, rows), text)


def engine_page(found: dict[str, Any]) -> str:
    """What the redesign of the engine set itself, and what it has come to."""
    rows = []
    for (case, figure), name in ENGINE_FIGURES.items():
        sides = found["cases"][case]
        wanted = found["targets"][case].get(figure, {})
        rows.append(
            [
                name,
                f"{sides['before'][figure]['median']:,.4g}",
                f"{sides['after'][figure]['median']:,.4g}",
                _spread(sides["ratio"][figure], "{:.2f}"),
                ", ".join(WANTED[how].format(value) for how, value in wanted.items()),
            ]
        )
    titles = ["", "before", "after", "after / before, by pairs", "wanted"]
    text = (
        f"Messages of {found['body_bytes']} bytes, buckets of {found['bucket_size']:,}; medians of "
        f"{found['rounds']} rounds by turns (least to most); {found['releases']['before']} and "
        f"{found['releases']['after']}; {found['machine']['cores']} cores shared by Cassandra and "
        f"all clients; {_run_as(found)}"
    )
    return _with_text(table(titles, rows), text)


def choice_page(found: dict[str, Any]) -> str:
    """What programs cost each other that drain one lane."""
    rows = []
    for one in found["cases"].values():
        before, after = one["before"], one["after"]
        rows.append(
            [
                str(one["processes"]),
                str(one["buckets"]),
                f"{before['cas_per_100']['median']:.2f}",
                f"{after['cas_per_100']['median']:.2f}",
                f"{before['refused']['median']:.0%}",
                f"{after['refused']['median']:.0%}",
                _spread(one["ratio"]["messages_per_s"], "{:.2f}"),
            ]
        )
    titles = [
        *("processes", "buckets", "CASes for 100, before", "after"),
        *("refused, before", "after", "messages a second, after / before"),
    ]
    text = (
        f"{found['messages']:,} messages of {found['body_bytes']} bytes, {found['at_once']} at "
        f"once; medians of {found['rounds']} rounds by turns (least to most); "
        f"{found['releases']['before']} and {found['releases']['after']}; "
        f"{found['machine']['cores']} cores shared by Cassandra and all clients; {_run_as(found)}"
    )
    return _with_text(table(titles, rows), text)


def shards_page(found: dict[str, Any]) -> str:
    """What shards bring, and what lanes cost who waits."""
    rows = [
        [
            name,
            shards,
            _spread(sides[side]["of_one_shard"], "{:.2f}"),
            _spread(sides[side]["messages_per_s"], "{:,.0f}"),
            f"{sides[side]['lwts_per_message']:.4f}",
        ]
        for side, name in SHARDS_SIDES.items()
        for shards, sides in found["busy"].items()
    ]
    titles = ["", "shards", "of one shard", "messages a second", "LWTs a message"]
    idle = [
        [lanes, f"{one['reads_per_s']:.1f}", _spread(one["cpu"], "{:.1%}")]
        for lanes, one in found["idle"].items()
    ]
    waits = table(["lanes", "reads a second", "of a core, in the consumer"], idle)
    text = (
        f"{found['messages']:,} messages of {found['body_bytes']} bytes, {found['at_once']} at "
        f"once, buckets of {found['bucket_size']:,}; medians of {found['rounds']} rounds (least to "
        f"most); {found['machine']['cores']} cores shared by Cassandra and all clients; "
        f"{_run_as(found)}"
    )
    return _with_text(f"{table(titles, rows)}\n{waits}", text)


def scheduled_page(found: dict[str, Any]) -> str:
    """What scheduled messages cost those who do not wait for them."""
    empty, ours = found["sides"]["empty"], found["sides"]["scheduled"]
    rows = [
        [
            name,
            _spread(found["of_empty"][side], "{:.2f}"),
            f"{ours[side]['statements']:.2f}",
            f"{empty[side]['statements']:.2f}",
        ]
        for side, name in SCHEDULED_SIDES.items()
    ]
    titles = ["", "time, of the empty queue", "statements", "statements of the empty queue"]
    once = [
        [
            name,
            f"{found[work]['scheduled']['seconds']:.1f} s",
            f"{found[work]['scheduled']['statements']:,}",
            f"{found[work]['empty']['statements']:,}",
        ]
        for work, name in ONCE_SCHEDULED.items()
        if work in found
    ]
    once_titles = ["once", "time", "statements", "statements of the empty queue"]
    text = (
        f"{found['scheduled']:,} messages scheduled in {found['lanes']:,} periods, put in "
        f"{found['put_s']:.0f} s; medians of {found['rounds']} rounds (least to most); repair had "
        f"dropped {found['dropped']['scheduled']:,} buckets of the queue with scheduled messages "
        f"in the end, and {found['dropped']['empty']:,} of the other; "
        f"{found['machine']['cores']} cores shared by Cassandra and the client; {_run_as(found)}"
    )
    return _with_text(f"{table(titles, rows)}\n{table(once_titles, once)}", text)


def gateway_page(found: dict[str, Any]) -> str:
    """Messages through one gateway process, beside other servers, and what waiting costs."""
    targets, idle = found["targets"], found["idle"]
    rows = [
        [
            name,
            server,
            _spread(sides[phase]["messages_per_s"], "{:,.0f}"),
            _spread(sides[phase]["of_moto"], "{:.2f}"),
            _spread(sides[phase]["cpu"], "{:.2f}"),
        ]
        for phase, name in GATEWAY_PHASES.items()
        for server, sides in found["sides"].items()
    ]
    titles = ["", "server", "messages a second", "of moto", "cores, of the server's process"]
    asked = [
        [server, action, f"{one['p50']:.1f}", f"{one['p99']:.1f}"]
        for server, actions in found["requests_ms"].items()
        for action, one in actions.items()
    ]
    times = table(["server", "request", "p50, ms", "p99, ms"], asked)
    through = found["sides"]["cassieq"]["all"]
    polls = f"{idle['polls']:,} idle long polls"
    reached = table(
        ["", "target", "measured"],
        [
            [
                f"messages a second, {GATEWAY_PHASES['all']}",
                f"{targets['messages_per_s']:,}",
                f"{through['messages_per_s']['median']:,.0f}",
            ],
            [
                "the same, of moto",
                f"{targets['of_moto']:.1f}",
                f"{through['of_moto']['median']:.2f}",
            ],
            [
                f"reads a second on the store, {polls}",
                f"below {targets['idle_reads_per_s']:.0f}",
                f"{idle['reads_per_s']:.1f}",
            ],
            [
                f"MB of the gateway's process, {polls}",
                f"below {targets['idle_rss_mb']:.0f}",
                f"{idle['rss_mb']:.0f}",
            ],
        ],
    )
    text = (
        f"{found['messages']['cassieq']:,} messages of {found['body_bytes']} bytes in batches of "
        f"{found['in_tens']}, at moto {found['messages']['moto']:,}; {found['clients']} clients; "
        f"medians of {found['rounds']} rounds (least to most); {found['machine']['cores']} cores "
        f"shared by Cassandra, the servers and all clients. The gateway makes "
        f"{found['lwts_per_message']:.3f} LWTs for each message that is sent, received and "
        f"deleted. The idle long polls take "
        f"{idle['cpu']:.1%} of a core. Given out twice inside their visibility timeout: "
        f"{found['twice']['cassieq']} by the gateway, {found['twice']['moto']} by moto, "
        f"{found['twice']['elasticmq']} by ElasticMQ; {_run_as(found)}"
    )
    return _with_text(f"{reached}\n{table(titles, rows)}\n{times}", text)


def sinks_page(found: dict[str, Any]) -> str:
    """Both doors at three sizes of messages, and what a worker takes."""
    rows = [
        [
            size,
            name,
            _spread(one["ratios"][door], "{:.2f}"),
            f"{found['targets'][door]:.1f}" if door in found["targets"] else "",
            _spread(one["of_plain"][door], "{:.2f}") if door in one["of_plain"] else "",
            _spread(one["messages_per_s"][door], "{:,.0f}"),
            f"{one['lwts_per_message'][door]:.5f}" if door in one["lwts_per_message"] else "",
        ]
        for size, one in found["sizes"].items()
        for door, name in DOORS.items()
    ]
    titles = [
        "",
        "",
        "of the raw write",
        "target",
        "of no queue",
        "messages a second",
        "LWTs a message",
    ]
    most = ", ".join(
        f"{round(size / 1024**2)} MB ({DOORS[door]})"
        for door, size in found["worker_bytes"].items()
    )
    text = (
        f"A Python worker whose partition has {found['partition_bytes'] / 1024**3:g} GB takes "
        f"{most} at most; the target is {found['most_worker_bytes'] // 1024**2} MB. Medians of "
        f"{found['rounds']} rounds (least to most); {found['machine']['cores']} cores; "
        f"{_run_as(found)}"
    )
    return _with_text(table(titles, rows), text)


def latency_page(found: dict[str, Any]) -> str:
    """From a put to its row in ``foreachBatch``."""
    sides = {"queue": "put to row seen", "spark": "Spark's own: a source that looks at a file"}
    rows = [
        [name, *(f"{found['seconds'][side][key] * 1e3:.0f} ms" for key in ("p50", "p95", "max"))]
        for side, name in sides.items()
    ]
    text = (
        f"So a queue adds {found['behind_spark_s'] * 1e3:.0f} ms (p50; target: "
        f"{found['target_s'] * 1e3:.0f} ms). {found['samples']} samples a side, in turns; "
        f"{found['machine']['cores']} cores; {_run_as(found)}"
    )
    return _with_text(table(["", "p50", "p95", "most"], rows), text)


def _made(results: Path, page: Callable[[dict[str, Any]], str]) -> str:
    return page(json.loads(results.read_text(encoding="utf-8"))) if results.exists() else ""


def _with_circumstances(made: str, found: dict[str, Any]) -> str:
    machine, versions = found["machine"], found["versions"]
    text = (
        f"{found['messages']:,} messages of {found['body_bytes']} bytes, medians of "
        f"{found['rounds']} rounds; {machine['cores']} cores shared by Cassandra, Spark and its "
        f"workers; Spark {versions['pyspark']}; {_run_as(found)}"
    )
    return _with_text(made, text)
