"""Which rules the simulated world must miss when they are taken away, and why not the others.

The first class is the safety and the liveness of queues. The others keep their own tests.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.ablations import Ablation

OUTSIDE: Final[Mapping[str, tuple[str, ...]]] = {
    "how many statements, bytes or rounds it takes: tests count them": (
        "P4",
        "P5: A bucket",
        "P5: A put",
        "P16",
        "T17: A get that",
        "P28: Who lost a race",
        "P28: Who pauses",
        "P28: Who lost a seal",
        "P28: A seal",
        "P28: A rival's",
        "P28: With rivals, open",
        "P28: Once",
        "P28: One",
        "P28: A get by id takes",
        "P28: A get by id seals",
        "P28: A bucket",
        "R6: Expired",
        "R6: A",
        "R7",
        "R8: A row",
        "R10: One",
        "R10: All",
        "R11: Buckets",
        "R13",
        "T20: What",
        "R24: A long",
        "T2: A claim",
        "T2: Reasons",
        "T2: Names",
        "T2: Any",
        "T2: Not",
        "U15: A coin",
        "U15: A quiet",
        "U15: A get",
        "U15: A lane",
        "P28: With rivals, a",
        "U8: Steps",
        "T10: A pass",
        "T10: A row",
        "T2: The",
        "T2: So",
        "T2: Updated bodies go",
        "T2: As",
        "T2: One",
        "T5: A look waits once for",
        "T5: A look waits once,",
        "T2: Updated bodies of",
        "T2: A bucket",
        "P5: A driver",
        "P22",
        "P14: A",
        "T19: A list goes when its row",
        "T19: A list goes when its commit",
        "T15: A deletion notes L",
        "T15: A deletion notes how",
    ),
    "what a deletion leaves in the tables until a full repair: tests look at them": (
        "T15: A deletion notes where",
        "T15: The monoton",
        "T15: The end",
        "T15: A lane that",
        "T15: A lane whose",
    ),
    "with which error a call ends: tests read it": (
        "T23: A CAS",
        "T23: A refusal",
        "T9: The",
        "T9: A commit",
        "R25",
    ),
    "a transaction that is ended too soon, and begins again: tests hold a writer or mover up": (
        "R3: A writer",
        "R3: An abort",
        "T18: A mover says",
        "T18: A mover leaves",
    ),
    "a lease of a call that failed, which runs out by itself: tests hold a call up": (
        "T22: An ambiguous",
        "T22: A claim",
        "T22: What cannot",
        "T22: What was claimed is",
    ),
    "in which class or shard a message is, which comes first, and how much of a get is its own: "
    "tests of lanes": (
        "lanes: A key",
        "lanes: Lower",
        "lanes: A message",
        "lanes: A redrive",
        "lanes: Messages",
        "lanes: The limit",
        "lanes: The buckets",
        "U15: Each",
        "U15: At",
        "lanes: What",
        "lanes: The first",
        "lanes: Of a limit",
        "lanes: Of a claim",
        "lanes: A get",
        "lanes: A look",
    ),
    "how long others wait for a bucket, sink or lane that does not answer: tests hold one up": (
        "T5: What several",
        "T5: A put",
        "T5: A producer",
        "T22: A pointer",
        "T5: What is",
        "T5: Who",
        "T5: A bucket",
        "T5: Each",
        "T5: A renewal",
        "T5: A batch's",
        "T5: What a replay",
        "T5: A CAS",
        "lanes: A lane",
        "lanes: A round",
        "lanes: While",
        "lanes: Once",
        "T5: A look at",
        "T5: A redrive goes",
        "T5: Messages",
        "T5: A lease",
        "T5: What was",
        "T5: Acks",
        "T22: What was granted",
        "R11: A gap",
    ),
    "rows that are damaged": (
        "T21: A row",
        "T21: One",
        "T21: A get",
        "T21: Dead",
        "T21: Stored",
    ),
    "the driver's requests and the options of tables: tests ask a real node": (
        "P20: The consistency",
        "P20: The serial",
        "P20: A",
        "R9",
        "R23",
    ),
    "several data centres": (
        "P21: A client",
        "P21: A queue",
        "P21: What",
        "P21: A home",
        "P21: A full",
    ),
    "clocks of more nodes than may be wrong, and a machine that sleeps": (
        "T7: The",
        "T7: Of two nodes that disagree a new",
        "T7: Of two nodes that disagree a running",
        "T7: A first",
        "T7: Nodes",
        "T7: A round",
        "T7: A reader that",
        "T7: A hint below",
        "T7: No hint",
        "T7: A reader carries",
        "T13: The",
        "T13: Monotonic",
    ),
    "Spark's options, processes and several queues: tests with the real Spark": (
        "P12",
        "T20: A",
        "R26",
        "T22: A planner",
        "T22: What a",
        "T22: What was claimed of",
        "U18: A replay",
        "U12",
    ),
    "a call that is wrong is refused, or a second guard behind another": (
        "T1: A bulk",
        "T1: No",
        "T1: A seal",
        "P2: A row",
        "P2: All",
        "P18: A claim that is",
        "P13: A reservation",
        "P9: A sink id belongs to one query.",
        "P9: A sink id belongs to one checkpoint",
        "R24: A sink id",
        "R24: A sink is",
    ),
    "calls that the world does not make: close, peek, redrive by ids, a write without an id, or to "
    "a queue that is deleted": (
        "T6: What",
        "T6: The",
        "T15: Rows",
        "T16",
        "T24: A consumer that closes",
        "T24: A consumer that is",
        "U18: A redrive",
        "T5: Peek",
        "T5: A redrive says",
        "T5: A redrive takes",
        "T3: Nor",
        "T8",
        "P6: Callers",
    ),
}
"""Why a rule is of the second class, and those rules: a mark, and how the rule begins."""


def table() -> str:
    """Write what docs/design/simulation.md shows of it."""
    lines = ["| Not of the first class | Rules |", "| --- | --- |"]
    for why, rules in OUTSIDE.items():
        counts = Counter(one.partition(":")[0] for one in rules)
        named = [mark if count == 1 else f"{mark} ({count})" for mark, count in counts.items()]
        lines.append(f"| {why} | {', '.join(named)} |")
    return "\n".join(lines)


def why_outside(rule: Ablation) -> str:
    """Return why the world need not miss a rule; empty: it must."""
    named = f"{rule.mark}: {rule.rule}"
    for why, rules in OUTSIDE.items():
        if any(named == one or named.startswith((f"{one} ", f"{one}:")) for one in rules):
            return why
    return ""
