"""The results of `bench/scale` as the tables of docs/scale.md."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cells import table
from measured import NONE_YET

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS: Final = Path("bench") / "results" / "scale.json"
MS: Final = 1e3
MEGA: Final = 1e6
GIGA: Final = 1e9
NAMES: Final = {"single": "single node", "ring": "ring of three"}
QUIET: Final = {"quiet": "single node, quiet: `bench.programs`"}


def pages(root: Path) -> dict[str, str]:
    """The parts of docs/scale.md by their markers."""
    made: dict[str, Callable[[dict[str, Any]], str]] = {
        "answer": answer,
        "breaks": breaks,
        "costs": costs,
        "bodies": bodies,
        "uses": uses,
        "validation": validation,
        "statements": statements,
        "sources": sources,
        "rows": rows,
        "consumers": consumers,
        "checks": checks,
        "latency": latency,
        "hot": hot,
        "idle": idle,
    }
    file = root / RESULTS
    if not file.exists():
        return {f"scale-{name}": NONE_YET for name in made}
    found = json.loads(file.read_text(encoding="utf-8"))
    if "plans" not in found:  # only measured so far
        return {f"scale-{name}": NONE_YET for name in made}
    return {f"scale-{name}": page(found) for name, page in made.items()}


def answer(found: dict[str, Any]) -> str:
    """What a load takes."""
    lines = [_answer(one) for one in found["plans"]]
    titles = ["load", "way", "nodes", "lanes", "bucket", "producers", "consumers", "breaks first"]
    return table(titles, lines)


def _answer(one: dict[str, Any]) -> list[str]:
    head = [f"{one['per_s']:,.0f}", one["use"]]
    if one["nodes"] is None:
        return [*head, "over 1,000", "", "", "", "", "cores: take larger groups"]
    return [
        *head,
        f"{one['nodes']:,}",
        f"{one['lanes']:,}",
        f"{one['bucket']:,}",
        f"{one['producers']:,}",
        f"{one['consumers']:,}",
        f"{one['first']['name']}, at {_short(one['first']['per_s'])}",
    ]


def breaks(found: dict[str, Any]) -> str:
    """How busy each resource is in the planned clusters, and what moves it."""
    names = ("cores", "disks", "network", "ids", "bucket rows", "repair")
    lines = [
        [
            f"{one['per_s']:,.0f}",
            one["use"],
            *(f"{one['shares'][name]:.0%}" for name in names),
            f"{one['repairs']:,}",
        ]
        for one in found["plans"]
        if one["nodes"]
    ]
    return table(["load", "way", *names, "processes of repair"], lines)


def costs(found: dict[str, Any]) -> str:
    """What a load asks of all nodes together."""
    lines = [
        [
            f"{one['per_s']:,.0f}",
            one["use"],
            f"{one['nodes']:,}",
            f"{one['lwts_per_s']:,.0f}",
            f"{one['cores']:,.1f}",
            f"{one['disk_bytes_per_s'] / MEGA:,.1f}",
            f"{one['network_bytes_per_s'] / MEGA:,.1f}",
            f"{one['space_bytes'] / GIGA:,.1f}",
        ]
        for one in found["plans"]
        if one["nodes"]
    ]
    titles = [
        "load", "way", "nodes", "LWTs a second", "cores, busy", "disk writes, MB/s",
        "network, MB/s each way", "on disks, GB",
    ]  # fmt: skip
    return table(titles, lines)


def bodies(found: dict[str, Any]) -> str:
    """Larger messages."""
    lines = [
        [
            f"{one['body_bytes']:,}",
            f"{one['per_s']:,.0f}",
            one["use"],
            "over 1,000" if one["nodes"] is None else f"{one['nodes']:,}",
            "" if one["nodes"] is None else f"{one['disk_bytes_per_s'] / GIGA:,.1f}",
            "" if one["nodes"] is None else one["first"]["name"],
        ]
        for one in found["bodies"]
    ]
    return table(["bytes", "load", "way", "nodes", "disk writes, GB/s", "breaks first"], lines)


def uses(found: dict[str, Any]) -> str:
    """What a message costs."""
    lines = [
        [
            name,
            f"{one['bucket']:,}",
            f"{one['lwts']:.5f}",
            f"{one['statements']:.4f}",
            f"{one['cpu_s'] * MEGA:,.1f}",
        ]
        for name, one in found["uses"].items()
    ]
    titles = ["way", "messages in a bucket", "LWTs", "statements", "µs of a core, all nodes"]
    return table(titles, lines)


def validation(found: dict[str, Any]) -> str:
    """Measured and predicted."""
    lines = [
        [
            (QUIET | NAMES)[cluster],
            one["loop"],
            f"{one['measured_per_s']['median']:,.0f}",
            f"{one['predicted_per_s']:,.0f}",
            f"{one['error']:+.0%}",
            f"{one['measured_lwts']:.4f}",
            f"{one['predicted_lwts']:.4f}",
            f"{one['others']:.1f}",
        ]
        for cluster, compared in found["validation"].items()
        for one in compared
    ]
    titles = [
        "", "loop", "measured, a second", "model", "off", "LWTs each, measured", "model",
        "cores that others took",
    ]  # fmt: skip
    errors = sorted(
        max(one["predicted_per_s"], 1e-9) / one["measured_per_s"]["median"]
        for compared in found["validation"].values()
        for one in compared
    )
    factors = sorted(max(one, 1 / one) for one in errors)
    within = sum(one <= 2 for one in factors)  # noqa: PLR2004 - twice or half
    machine, run = found["run"]["machine"], found["run"]
    text = (
        f"Of {len(factors)} loops, {within} are within a factor of two; the median factor is "
        f"{factors[len(factors) // 2]:.2f}, the largest {factors[-1]:.1f}. "
        f"{machine['cores']} cores shared by the nodes and all clients, and by whatever else ran; "
        f"{_rounds(run['rounds'])}; `{run['command']}`, {run['date']}."
    )
    return f"{table(titles, lines)}\n{textwrap.fill(text, width=104, break_on_hyphens=False)}\n"


def _rounds(count: int) -> str:
    return "one round" if count == 1 else f"medians of {count} rounds"


def statements(found: dict[str, Any]) -> str:
    """What each kind of statement costs, as measured."""
    made = found["calibration"]["costs"]
    measured = found["measured"]
    lines = [
        [
            kind.replace("_", " "),
            f"{one['client_s'] * MS:.2f}",
            f"{one['coordinator_s'] * MS:.2f}",
            f"{one['replica_s'] * MS:.2f}",
            f"{one['per_byte_s'] * MEGA * 1e3:.2f}",
            *(_latency(measured[cluster]["primitives"][kind]["latency_s"]) for cluster in NAMES),
        ]
        for kind, one in made.items()
    ]
    titles = [
        "statement", "client, ms of CPU", "coordinator", "each replica", "ns for each byte",
        "latency here, single node, ms", "ring of three",
    ]  # fmt: skip
    sync = found["calibration"]["sync_s"]
    text = (
        f"An fsync took {sync['median'] * MS:.2f} ms ({sync['min'] * MS:.2f} to "
        f"{sync['max'] * MS:.2f}). One factor was fitted, to one loop of "
        f"[the comparison](#how-far-it-agrees-with-measurement), 16 clients that reserve: an LWT "
        f"for which others wait at the same row takes {found['calibration']['contention']:g} times "
        f"as long as one alone. One process of repair drops "
        f"{measured['ring']['repair']['buckets_per_s']:,.0f} buckets a second."
    )
    return f"{table(titles, lines)}\n{textwrap.fill(text, width=104, break_on_hyphens=False)}\n"


def sources(found: dict[str, Any]) -> str:
    """Where the numbers come from."""
    lines = [[one["name"], one["value"], one["source"]] for one in found["sources"]]
    return table(["", "value", "source"], lines)


def _latency(one: dict[str, float]) -> str:
    return f"{one['median'] * MS:.1f} ({one['p10'] * MS:.1f} at best tenth)"


def rows(found: dict[str, Any]) -> str:
    """How many buckets one lane hands out."""
    lines = [
        [
            f"{near['producers']:,}",
            *(
                text
                for one in (near, far)
                for text in (f"{one['per_s']:,.0f}", f"{one['lwts']:.1f}", f"{one['p99_s']:.2f}")
            ),
        ]
        for near, far in zip(found["ids"]["rack"], found["ids"]["zones"], strict=True)
    ]
    titles = ["producers", "buckets a second, one rack", "LWTs each", "p99, s"]
    return table([*titles, "three zones", "LWTs each", "p99, s"], lines)


def consumers(found: dict[str, Any]) -> str:
    """How many messages consumers take from a lane."""
    lines = [
        [
            f"{one['group']:,}",
            f"{one['shards']:,}",
            f"{one['consumers']:,}",
            f"{one['per_s']:,.0f}",
            f"{one['lwts']:.4f}",
        ]
        for one in found["consumers"]
    ]
    return table(["group", "lanes", "consumers", "messages a second", "LWTs each"], lines)


def checks(found: dict[str, Any]) -> str:
    """The simulation beside the laws."""
    lines = [
        [
            f"{one['per_s']:,.0f}",
            one["use"],
            f"{one['nodes']:,}",
            f"{one['busy']:.1%}",
            f"{one['said']:.1%}",
            f"{one['busiest']:.0%}",
            f"{one['in_flight']:,.1f}",
            f"{one['by_little']:,.1f}",
            f"{one['batch']:,.0f}",
        ]
        for one in found["checks"]
    ]
    titles = [
        "load", "way", "nodes", "cores busy, simulated", "by the law", "busiest node",
        "statements under way, simulated", "by Little's law", "statements in a batch",
    ]  # fmt: skip
    return table(titles, lines)


def latency(found: dict[str, Any]) -> str:
    """An LWT by how busy the nodes are."""
    lines = [
        [
            f"{near['share']:.0%}",
            *(f"{one[key] * MS:.1f}" for one in (near, far) for key in ("p50_s", "p99_s")),
        ]
        for near, far in zip(found["latency"]["rack"], found["latency"]["zones"], strict=True)
    ]
    titles = ["cores busy", "one rack: p50, ms", "p99, ms", "three zones: p50, ms", "p99, ms"]
    return table(titles, lines)


def hot(found: dict[str, Any]) -> str:
    """How uneven nodes are."""
    lines = [
        [f"{one['open_buckets']:,}", f"{one['busy']:.0%}", f"{one['busiest']:.0%}"]
        for one in found["hot"]
    ]
    return table(["buckets written at a time", "cores busy", "of the busiest node"], lines)


def idle(found: dict[str, Any]) -> str:
    """What waits, and what is empty."""
    waiting = [
        [
            f"{one['lanes']:,}",
            f"{one['consumers']:,}",
            f"{one['reads_per_s']:,.0f}",
            f"{one['cores']:,.1f}",
        ]
        for one in found["idle"]
    ]
    empty = [
        [f"{one['queues']:,}", f"{one['statements_per_s']:,.0f}", f"{one['cores']:,.1f}"]
        for one in found["queues"]
    ]
    first = table(["lanes", "waiting consumers", "reads a second", "cores, all nodes"], waiting)
    second = table(["empty queues", "statements of repair a second", "cores, all nodes"], empty)
    return f"{first}\n{second}"


def _short(per_s: float) -> str:
    for size, name in ((MEGA, " million"), (1e3, " thousand")):
        if per_s >= size:
            return f"{per_s / size:,.3g}{name}/s"
    return f"{per_s:,.0f}/s"
