"""``python -m bench.engine``: what must hold after the redesign of the engine, beside a release.

Each case is a row of the table that the redesign set itself, in the same run on the same node, by
turns. See ``docs/benchmarks.md``.
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
BUCKET = 1_000
PUT_AT_ONCE = 1_000
PAUSE_S = (0.05, 0.2)
PUTTERS = 64
COROUTINES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a run is.

    Attributes:
        alone: Messages that one consumer drains.
        together: Messages that all processes drain.
        singly: Messages of the coroutines that put, get and ack one at a time.
        times: How often all putters put.
        samples: Messages that a waiting get is put, one after the other.
        settle_s, watch_s: How long the polls wait before they are watched, and how long they are.
    """

    processes: int = 16
    alone: int = 5_000
    together: int = 48_000
    singly: int = 1_500
    times: int = 10
    samples: int = 25
    polls: int = 1_000
    settle_s: float = 4.0
    watch_s: float = 5.0
    rounds: int = 5
    warm_up: int = 1


SMOKE = Size(
    processes=4,
    alone=1_000,
    together=4_000,
    singly=100,
    times=1,
    samples=3,
    polls=50,
    settle_s=1.0,
    watch_s=1.0,
    rounds=1,
    warm_up=0,
)

TARGETS = {
    "consumer": {"cas_per_100": {"at_most": 1.1}},
    "fleet_consumer": {"messages_per_s": {"of_before": 1.3}, "cas_per_100": {"at_most": 1.3}},
    "fleet_by_hand": {"messages_per_s": {"of_before": 1.0}},
    "fifty": {
        "cycles_per_s": {"of_before": 3.0},
        "cas_per_message": {"at_most": 0.15},
        "put_to_get_ms": {"at_most_of_before": 1.0},
    },
    "puts": {"puts_per_s": {"at_least": 4_000}},
    "waiting": {"put_to_get_ms": {"at_most_of_before": 1.0}},
    "polls": {"threads": {"at_most": 50}, "reads_per_s": {"at_most": 4.0}},
}
"""What the redesign set itself; no thread for each poll: fewer than a twentieth of them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, print and save the figures; it ends if a message was lost or came twice."""
    asked = releases.parser("bench.engine", __doc__).parse_args(arguments)
    size = SMOKE if asked.smoke else Size()
    rounds = asked.rounds or size.rounds
    cases = {
        "consumer": partial(drained, 1, "consumer", size.alone),
        "fleet_consumer": partial(drained, size.processes, "consumer", size.together),
        "fleet_by_hand": partial(drained, size.processes, "hand", size.together),
        "fifty": partial(one_at_a_time, size.singly),
        "puts": partial(putting, size.times),
        "waiting": partial(waiting, size.samples),
        "polls": partial(polling, size),
    }
    with releases.releases(asked.before, size.processes) as sides:
        found = releases.take_turns(sides, cases, rounds=rounds, warm_up=size.warm_up)
    result = {
        "cases": {case: releases.compared(each) for case, each in found.items()},
        "targets": TARGETS,
        "processes": size.processes,
        "at_once": AT_ONCE,
        "bucket_size": BUCKET,
        "body_bytes": BODY_BYTES,
        "coroutines": COROUTINES,
        "putters": PUTTERS,
        "polls": size.polls,
        "rounds": rounds,
        "samples": found,
    }
    print(_as_text(releases.save(result, "engine", asked, sys.argv[1:])))
    return 0


def drained(processes: int, by: str, messages: int, side: Release) -> dict[str, float]:
    """Drain a backlog by claims of a hundred: by hand, or by a `Consumer`."""
    with side.queue(bucket_size=BUCKET) as queue:
        size = {"messages": messages, "size": BODY_BYTES, "at_once": PUT_AT_ONCE}
        side.run({"work": "fill", "queue": queue, **size})
        one = {"work": "drain", "queue": queue, "at_once": AT_ONCE, "by": by}
        done = side.run(*[one] * processes)
        releases.all_came_once(done, messages)
    return {
        "messages_per_s": messages / (done["ended_s"] - done["began_s"]),
        "cas_per_100": 100 * done["cas"] / messages,
        # Without the two that seal a bucket: what claims and acks cost.
        "cas_per_100_claimed": 100 * (done["cas"] - 2 * messages / BUCKET) / messages,
        "refused": done["refused"] / done["cas"],
    }


def one_at_a_time(messages: int, side: Release) -> dict[str, float]:
    """Some coroutines of one client put, and as many get and ack, one message at a time."""
    with side.queue() as queue:
        how = {"coroutines": COROUTINES, "messages": messages}
        done = side.run({"work": "fifty", "queue": queue, **how})
        releases.all_came_once(done, messages)
    return {
        "cycles_per_s": messages / (done["ended_s"] - done["began_s"]),
        "cas_per_message": done["cas"] / messages,
        "put_to_get_ms": releases.latency_ms(done),
    }


def putting(times: int, side: Release) -> dict[str, float]:
    """Coroutines of one client put one message each, all at once."""
    with side.queue() as queue:
        how = {"coroutines": PUTTERS, "times": times}
        done = side.run({"work": "puts", "queue": queue, **how})
    return {
        "puts_per_s": done["puts"] / (done["ended_s"] - done["began_s"]),
        "statements_per_put": done["statements"] / done["puts"],
    }


def waiting(samples: int, side: Release) -> dict[str, float]:
    """One process waits in a get, another puts one message after the other."""
    with side.queue() as queue:
        how = {"queue": queue, "samples": samples}
        done = side.run(
            {"work": "catch", **how, "wait": 20},
            {"work": "drip", **how, "seed": 20131, "pause_s": PAUSE_S},
        )
        releases.all_came_once(done, samples)
    return {"put_to_get_ms": releases.latency_ms(done)}


def polling(size: Size, side: Release) -> dict[str, float]:
    """Many coroutines of one client wait at an empty queue."""
    with side.queue() as queue:
        how = {"polls": size.polls, "settle_s": size.settle_s, "watch_s": size.watch_s}
        done = side.run({"work": "poll", "queue": queue, **how})
    return {name: done[name] for name in ("threads", "reads_per_s", "cpu")}


def _as_text(found: dict[str, Any]) -> str:
    lines = [f"{'':<16}{'':<22}{'before':>12}{'after':>12}{'ratio':>8}"]
    for case, sides in found["cases"].items():
        for figure, after in sides[releases.AFTER].items():
            before, ratio = (
                _shown(sides.get(name, {}).get(figure)) for name in ("before", "ratio")
            )
            lines.append(f"{case:<16}{figure:<22}{before:>12}{_shown(after):>12}{ratio:>8}")
    return "\n".join(lines)


def _shown(one: dict[str, float] | None) -> str:
    return "" if one is None else f"{one['median']:,.2f}"


if __name__ == "__main__":
    sys.exit(main())
