"""``python -m bench.scale``: what a cluster would do, from what one statement costs here.

python -m bench.scale               the sweeps, from the last calibration (a minute)
python -m bench.scale --calibrate   measure on a single node and a ring of three first (4 minutes)

See ``docs/scale.md`` for what the figures say.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cassieq_spark as cassieq
from bench import report
from bench.fleet import Fleet
from bench.scale import calibrate, loops, pictures, sweeps
from bench.scale.calibrate import say

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
TASKS = 2
"""Tasks of the main benchmark."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure if asked to, then compute, print and save."""
    asked = _parser().parse_args(arguments)
    folder = Path(asked.results)
    file = folder / ("scale-smoke.json" if asked.smoke else "scale.json")
    found: dict[str, Any] = {}
    if asked.calibrate or asked.smoke:
        found = _measured_all(is_smoke=asked.smoke, rounds=1 if asked.smoke else asked.rounds)
        folder.mkdir(parents=True, exist_ok=True)
        # It took minutes: it is there, whatever becomes of the rest.
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    else:
        before = json.loads(file.read_text(encoding="utf-8"))
        found = {name: before[name] for name in ("measured", "run")}
    found["calibration"] = _calibrated(found["measured"], is_smoke=asked.smoke)
    found["validation"] = _validated(found, is_smoke=asked.smoke)
    found |= sweeps.all_of(found, seed=asked.seed, is_smoke=asked.smoke, tasks=_tasks())
    found |= {"seed": asked.seed, "command": "python -m bench.scale"}
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    pictures.draw(found, folder if asked.smoke else ROOT / "docs")
    print(sweeps.as_text(found))
    return 0


def _measured_all(*, is_smoke: bool, rounds: int) -> dict[str, Any]:
    effort = calibrate.SMOKE if is_smoke else calibrate.FULL
    some = loops.SMOKE if is_smoke else loops.LOOPS
    measured: dict[str, Any] = {}
    for name, nodes in calibrate.NODES.items():
        measured[name] = _measured(nodes, effort, some, rounds=rounds)
        say(f"{name}: measured")
    run = report.circumstances("python -m bench.scale --calibrate", [])
    return {"measured": measured, "run": run | {"rounds": rounds}}


def _calibrated(measured: dict[str, Any], *, is_smoke: bool) -> dict[str, Any]:
    some = loops.SMOKE if is_smoke else loops.LOOPS
    found = calibrate.calibration(measured)
    real = measured["ring"]["loops"]["of"]
    return found | {"contention": loops.contention(real, found, nodes=3, loops=some)}


def _measured(
    nodes: int, effort: calibrate.Effort, some: Sequence[loops.Loop], *, rounds: int
) -> dict[str, Any]:
    most = max(one.clients for one in some)
    with contextmanager(calibrate.running)(nodes) as (cassandra, client):
        folder = cassandra.data_dir
        if folder is None:
            raise SystemExit("a running cluster has no directory")
        cpu = calibrate.Cpu(cassandra)
        found: dict[str, Any] = {"primitives": calibrate.primitives(client, cpu, effort)}
        found["disk"] = calibrate.disk(folder)
        say(f"{nodes} nodes: primitives")
        ours = partial(cassieq.connect, cassandra.contact_points, keyspace=calibrate.KEYSPACE)
        with Fleet(most, ours=ours) as fleet:
            runs = [
                {one.name: loops.measure(one, client, fleet, cpu) for one in some}
                for _ in range(rounds)
            ]
        each = {one.name: loops.together([run[one.name] for run in runs]) for one in some}
        # The last two loops move ten thousand messages with a few statements: the rest is Python.
        put, drain = (each[one.name]["client_s"] for one in some[-2:])
        found["loops"] = {"of": each, "put_message_s": put, "get_message_s": drain}
        found["repair"] = calibrate.repair(client, buckets=8 if effort is calibrate.SMOKE else 200)
    return found


def _validated(found: dict[str, Any], *, is_smoke: bool) -> dict[str, Any]:
    some = loops.SMOKE if is_smoke else loops.LOOPS
    file = ROOT / "bench" / "results" / "programs.json"
    programs = json.loads(file.read_text(encoding="utf-8"))
    quiet = {"quiet": loops.against_programs(programs, found["calibration"])}
    return quiet | {
        name: loops.compare(
            found["measured"][name]["loops"]["of"], found["calibration"], nodes=nodes, loops=some
        )
        for name, nodes in calibrate.NODES.items()
    }


def _tasks() -> dict[str, float]:
    """Messages a second of one Spark task, by the main benchmark: two shared the machine there."""
    file = ROOT / "bench" / "results" / "queue.json"
    per_s = json.loads(file.read_text(encoding="utf-8"))["messages_per_s"]
    return {
        "put": per_s["sink_batch"]["median"] / TASKS,
        "take": per_s["source_body"]["median"] / TASKS,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--calibrate", action="store_true", help="measure on real nodes first")
    parser.add_argument(
        "--smoke", action="store_true", help="small, with a calibration: does it run"
    )
    parser.add_argument("--rounds", type=int, default=2, help="of the loops that are compared")
    parser.add_argument("--seed", type=int, default=20131)
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
