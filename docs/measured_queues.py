"""What ``bench.against_queues`` has found, as the tables and sentences of docs/benchmarks.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cells import run_as, spread, table, with_text

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = "ours"
PHASES = ("put", "get and ack")
LATER = "a put returns before its fsync"
P99_SAMPLES = 100


def queues_page(found: dict[str, Any]) -> str:
    """All parts that were measured."""
    parts = [_sides(found), *_rates(found), *_latency(found), *_history(found), *_rows(found)]
    parts += _ring(found)
    missing = [f"{name}: {why}" for name, why in found["skipped"].items()]
    missing += [
        f"{_title(found, side)} at {load}: {why}"
        for load, sides in found.get("failures", {}).items()
        for side, why in sides.items()
    ]
    if missing:
        parts.append(
            "There are no figures of these:\n\n" + "".join(f"- {one}\n" for one in missing)
        )
    text = (
        f"{_rounds(found['rounds'])}; {found['machine']['cores']} cores "
        f"shared by all servers and clients; {_runs(found)}"
    )
    return with_text("\n".join(parts), text)


def _runs(found: dict[str, Any]) -> str:
    """The command of each run and its day, with its loads if there was more than one."""
    loads: dict[str, list[str]] = {}
    for load, run in found["runs"].items():
        loads.setdefault(run_as(run), []).append(load)
    if len(loads) == 1:
        return next(iter(loads))
    return " ".join(f"{', '.join(some)}: {run}" for run, some in loads.items())


def _sides(found: dict[str, Any]) -> str:
    rows = [[one["title"], one["version"], one["durability"]] for one in found["sides"].values()]
    return table(["", "what ran", "durability"], rows)


def _rates(found: dict[str, Any]) -> Iterator[str]:
    rates = found.get("rates", {})
    for size, cells in _by_size(rates).items():
        sides = [
            side
            for side in found["sides"]
            if any(side in one[phase] for one in cells.values() for phase in PHASES)
        ]
        rows = [
            [
                f"{phase}, {load}",
                *(
                    spread(one[phase][side], "{:,.0f}") if side in one[phase] else ""
                    for side in sides
                ),
            ]
            for phase in PHASES
            for load, one in cells.items()
        ]
        titles = [f"{size}, messages a second", *(_title(found, side) for side in sides)]
        name = f"peers-{size.replace(' ', '')}.svg"
        yield f"{table(titles, rows)}\n![Messages a second of {size}](../bench/results/{name})\n"
    if rates:
        yield from _verdicts(found, rates)


def _verdicts(found: dict[str, Any], rates: dict[str, Any]) -> Iterator[str]:
    """Ours by each peer of the same durability: who is ahead, and where."""
    rows: list[list[str]] = []
    sentences: list[str] = []
    for peer, rival in _rivals(found):
        ahead: list[str] = []
        behind: list[str] = []
        mixed: list[str] = []
        for work, ratios in _ratios(rates, peer, rival).items():
            least, most = min(ratios), max(ratios)
            first = sum(ratio > 1 for ratio in ratios)
            rows.append(
                [
                    _title(found, rival),
                    work,
                    f"{least:.2f} to {most:.2f}",
                    f"{first} of {len(ratios)}",
                ]
            )
            (ahead if least > 1 else behind if most < 1 else mixed).append(work)
        sentences.append(_verdict(_title(found, rival), ahead, behind, mixed))
    yield table(["ours, as a multiple of", "work", "lowest to highest", "loads ahead"], rows)
    yield "".join(f"- {one}\n" for one in sentences)


def _rivals(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Our side and a peer's, with the same durability."""
    for rival, one in found["sides"].items():
        if rival.startswith(OURS):
            continue
        ours = "ours_periodic" if one["durability"] == LATER else OURS
        if any(rival in cell["put"] for cell in found["rates"].values()):
            yield ours, rival


def _ratios(rates: dict[str, Any], ours: str, rival: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for load, cell in rates.items():
        how = load.rpartition(", ")[2]
        for phase in PHASES:
            one = cell[phase]
            if ours in one and rival in one and one[rival]["median"]:
                ratio = one[ours]["median"] / one[rival]["median"]
                found.setdefault(f"{phase}, {how}", []).append(ratio)
    return found


def _verdict(name: str, ahead: list[str], behind: list[str], mixed: list[str]) -> str:
    parts = []
    for works, says in (
        (behind, f"{name} is ahead of ours at every load of"),
        (ahead, f"ours is ahead of {name} at every load of"),
        (mixed, f"between ours and {name} it depends on size and processes for"),
    ):
        if works:
            parts.append(f"{says} *{'*, *'.join(works)}*")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _latency(found: dict[str, Any]) -> Iterator[str]:
    if "latency_ms" not in found:
        return
    delays = found["latency_ms"]
    fewest = min(map(len, found["latency_samples_s"].values()))
    # With fewer samples p99 would be the longest delay once more.
    keys = ("p50", "p99", "most") if fewest >= P99_SAMPLES else ("p50", "most")
    rows = [
        [_title(found, side), *(f"{one[key]:.1f} ms" for key in keys)]
        for side, one in sorted(delays.items(), key=lambda item: item[1]["p50"])
    ]
    yield table(["put to the return of a waiting get", *keys], rows)
    yield "![Delays from a put to a waiting get](../bench/results/peers-latency.svg)\n"


def _history(found: dict[str, Any]) -> Iterator[str]:
    if "history" not in found:
        return
    rows = []
    for side, one in found["history"].items():
        if "failure" in one:
            rows.append([_title(found, side), one["failure"], *[""] * (1 + len(_CALLS))])
            continue
        moments = one["of_first_day"] | {"after it, of a new queue": one["of_new_queue"]}
        for moment, calls in moments.items():
            rows.append(
                [
                    _title(found, side),
                    f"{one['messages']:,}",
                    moment,
                    *(f"{calls[call]:.2f}" if call in calls else "" for call in _CALLS),
                ]
            )
    yield table(["cost, of the first day", "backlog", "when", *_CALLS], rows)
    ours = found["history"].get(OURS, {})
    if "statements" in ours:
        yield _statements(ours["statements"], found["targets"]["history"])
    yield "![What calls cost after a history](../bench/results/peers-history.svg)\n"


_CALLS = ("put", "get", "ack", "idle poll", "idle trigger")


def _statements(moments: dict[str, dict[str, float]], target: float) -> str:
    first, after = moments["first day"], moments["after it"]
    each = ", ".join(
        f"{call} {after[call]:.2f} (first day: {first[call]:.2f})"
        for call in _CALLS
        if call in after
    )
    return (
        f"Statements of ours after its history: {each}. The target is {target:g} times at most.\n"
    )


def _rows(found: dict[str, Any]) -> Iterator[str]:
    if "rows" not in found:
        return
    one = found["rows"]
    rows = [
        [
            work,
            *(
                spread(one["messages_per_s"][f"{work}, {who}"], "{:,.0f}")
                for who in ("ours", "rows")
            ),
            spread(one["times_rows"][work], "{:.2f}"),
        ]
        for work in ("df.write", "read")
    ]
    head = f"Spark, {one['messages']:,} x {one['body_bytes']} B, messages a second"
    yield table([head, "ours", "a row each, by the connector", "ours / rows"], rows)


def _ring(found: dict[str, Any]) -> Iterator[str]:
    if "ring" not in found:
        return
    ring = found["ring"]
    rows = [
        [load, *(spread(one[phase]["ours_ring"], "{:,.0f}") for phase in PHASES)]
        for load, one in ring["rates"].items()
        if "ours_ring" in one["put"]
    ]
    yield table(["ours on a ring of three, messages a second", *PHASES], rows)
    for one in ring["latency_ms"].values():
        yield (
            f"From a put to the return of a waiting get on the ring: p50 {one['p50']:.1f} ms, "
            f"p99 {one['p99']:.1f} ms.\n"
        )


def _rounds(count: int) -> str:
    return "One round" if count == 1 else f"Medians of {count} rounds (least to most)"


def _by_size(rates: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for load, one in rates.items():
        size, _, rest = load.partition(", ")
        found.setdefault(size, {})[rest] = one
    return found


def _title(found: dict[str, Any], side: str) -> str:
    one = found["sides"][side]
    return f"{one['title']}{', fsync later' if one['durability'] == LATER else ''}"
