"""``python -m tests.simulation --seeds 100``: run seeds, and say which went wrong."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from tests.simulation.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if asked.seed is not None:
        trace: list[tuple[object, ...]] = []
        result = run(asked.seed, trace)
        for one in result.anomalies:
            print(one)
        print(result.digest, result.statements, result.virtual_s, dict(result.seen))
        return bool(result.anomalies)
    wrong = 0
    seen: Counter[str] = Counter()
    statements, began = 0, time.perf_counter()
    for seed in range(asked.first, asked.first + asked.seeds):
        try:
            result = run(seed)
        except Exception as error:
            print("seed", seed, "failed", repr(error)[:500], flush=True)
            wrong += 1
            continue
        seen += result.seen
        statements += result.statements
        if result.anomalies:
            wrong += 1
            print(
                "seed",
                seed,
                [f"{one.kind}: {one.what}"[:300] for one in result.anomalies[:3]],
                flush=True,
            )
    took = time.perf_counter() - began
    print(
        asked.seeds,
        "seeds",
        wrong,
        "wrong",
        statements,
        "statements",
        f"{statements / took:.0f}/s",
        dict(seen),
    )
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
