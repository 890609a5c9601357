"""``python -m bench.choice``: what programs cost each other that drain one lane, by its buckets.

So many processes get and ack by a hundred from one lane whose backlog is in so many buckets. The
figures that do not hang on the machine are CASes per hundred messages, and how many of them were
refused. See ``docs/benchmarks.md``, and ``docs/design/choice.md`` for the rule.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bench import releases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.releases import Release

AT_ONCE = 100
BODY_BYTES = 96
PUT_AT_ONCE = 1_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a run is: each number of processes with each number of buckets."""

    processes: tuple[int, ...]
    buckets: tuple[int, ...]
    messages: int
    rounds: int
    warm_up: int


FULL = Size(processes=(1, 4, 16, 64), buckets=(1, 4, 16, 64), messages=25_600, rounds=5, warm_up=1)
SMOKE = Size(processes=(1, 4), buckets=(1, 4), messages=3_200, rounds=1, warm_up=0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, print and save the figures; it ends if a message was lost or came twice."""
    asked = releases.parser("bench.choice", __doc__).parse_args(arguments)
    size = SMOKE if asked.smoke else FULL
    rounds = asked.rounds or size.rounds
    cases = {
        f"{processes} {buckets}": partial(drained, processes, buckets, size.messages)
        for processes in size.processes
        for buckets in size.buckets
    }
    with releases.releases(asked.before, max(size.processes)) as sides:
        found = releases.take_turns(sides, cases, rounds=rounds, warm_up=size.warm_up)
    result = {
        "cases": {
            case: {"processes": int(case.split()[0]), "buckets": int(case.split()[1])}
            | releases.compared(each)
            for case, each in found.items()
        },
        "messages": size.messages,
        "at_once": AT_ONCE,
        "body_bytes": BODY_BYTES,
        "rounds": rounds,
        "samples": found,
    }
    print(_as_text(releases.save(result, "choice", asked, sys.argv[1:])))
    return 0


def drained(processes: int, buckets: int, messages: int, side: Release) -> dict[str, float]:
    """Fill so many buckets, and let so many processes drain them."""
    with side.queue(bucket_size=messages // buckets) as queue:
        size = {"messages": messages, "size": BODY_BYTES, "at_once": min(PUT_AT_ONCE, messages)}
        side.run({"work": "fill", "queue": queue, **size})
        one = {"work": "drain", "queue": queue, "at_once": AT_ONCE, "by": "hand"}
        done = side.run(*[one] * processes)
        releases.all_came_once(done, messages)
    return {
        "messages_per_s": messages / (done["ended_s"] - done["began_s"]),
        "cas_per_100": 100 * done["cas"] / messages,
        "refused": done["refused"] / done["cas"],
        "statements_per_100": 100 * done["statements"] / messages,
    }


def _as_text(found: dict[str, Any]) -> str:
    lines = [
        f"{'processes, buckets':<22}{'side':>8}{'messages/s':>12}{'CASes/100':>11}{'refused':>9}"
    ]
    lines += [
        f"{case:<22}{name:>8}{one['messages_per_s']['median']:>12,.0f}"
        f"{one['cas_per_100']['median']:>11.2f}{one['refused']['median']:>9.0%}"
        for case, sides in found["cases"].items()
        for name in ("before", releases.AFTER)
        if (one := sides.get(name))
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
