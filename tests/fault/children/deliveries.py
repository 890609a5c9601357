"""What consumers were handed and did with it: written by them, judged by the test.

Times are the machine's monotonic clock, the same in each of its processes, and none of the
package's own: a lease that begins after ``begun`` and lasts n seconds is alive before
``begun + n``, so whoever *has* the next delivery before that has it too early.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import cassieq_spark as cassieq
    from cassieq_spark.queue.message import Message

Delivered = tuple[str, int]
"""Message id and delivery count: one delivery of one message."""


class Log:
    """A consumer's side: each entry is one write, which SIGKILL cannot take back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now

    def got(self, begun_s: float, messages: Iterable[Message]) -> None:
        """After a get that was begun then."""
        self._say("got", begun_s, messages)

    def acking(self, messages: Iterable[Message]) -> None:
        """Before an ack: it may happen from now on."""
        self._say("acking", None, messages)

    def acked(self, messages: Iterable[Message]) -> None:
        """After an ack that said so."""
        self._say("acked", None, messages)

    def releasing(self, messages: Iterable[Message]) -> None:
        """Before a release: from now on others may have them."""
        self._say("releasing", None, messages)

    def _say(self, what: str, begun_s: float | None, messages: Iterable[Message]) -> None:
        named = [(one.message_id, one.delivery_count) for one in messages]
        line = json.dumps({"what": what, "begun": begun_s, "at": self.now(), "named": named})
        os.write(1, f"{line}\n".encode())


@dataclass(slots=True)
class Deliveries:
    """All consumers' entries together.

    Attributes:
        got: Per message and delivery count each handing-out: (begun, returned).
    """

    visibility_s: float
    got: dict[str, dict[int, list[tuple[float, float]]]] = field(default_factory=dict)
    acking: set[Delivered] = field(default_factory=set)
    acked: set[Delivered] = field(default_factory=set)
    released_at: dict[Delivered, float] = field(default_factory=dict)

    def add(self, lines: Iterable[str]) -> None:
        """One consumer's whole lines."""
        for line in lines:
            entry: dict[str, Any] = json.loads(line)
            for message_id, count in entry["named"]:
                match entry["what"]:
                    case "got":
                        self.add_got(message_id, count, entry["begun"], entry["at"])
                    case "acking":
                        self.acking.add((message_id, count))
                    case "acked":
                        self.acked.add((message_id, count))
                    case "releasing":
                        self.released_at[message_id, count] = entry["at"]

    def add_got(self, message_id: str, count: int, begun_s: float, returned_s: float) -> None:
        """One delivery."""
        counts = self.got.setdefault(message_id, {})
        counts.setdefault(count, []).append((begun_s, returned_s))

    def merge(self, other: Deliveries) -> None:
        """Another consumer's too."""
        for message_id, counts in other.got.items():
            for count, times in counts.items():
                self.got.setdefault(message_id, {}).setdefault(count, []).extend(times)
        self.acking |= other.acking
        self.acked |= other.acked
        self.released_at |= other.released_at

    def faults(self) -> list[str]:
        """Everything that must not be; empty if all is well."""
        return [*self._doubled(), *self._early(), *self._acked_and_back()]

    def last_count(self, message_id: str) -> int:
        """Of the last delivery that anybody saw; 0: none."""
        return max(self.got.get(message_id, {0: []}))

    def _doubled(self) -> Iterator[str]:
        for message_id, counts in self.got.items():
            for count, times in counts.items():
                if len(times) > 1:
                    yield f"{message_id}: delivery {count} was handed out at {times}"

    def _early(self) -> Iterator[str]:
        for message_id, counts in self.got.items():
            in_order = sorted(counts.items())
            for (count, former), (next_count, latter) in pairwise(in_order):
                free_s = min(begun for begun, _ in former) + self.visibility_s
                free_s = min(free_s, self.released_at.get((message_id, count), free_s))
                had_s = min(returned for _, returned in latter)
                if had_s < free_s:
                    yield (
                        f"{message_id}: delivery {count} held it until {free_s:.3f}, delivery "
                        f"{next_count} was handed out by {had_s:.3f}"
                    )

    def _acked_and_back(self) -> Iterator[str]:
        for message_id, count in self.acked:
            if self.last_count(message_id) > count:
                yield (
                    f"{message_id}: acked by delivery {count}, seen again in delivery "
                    f"{self.last_count(message_id)}"
                )


def drain(queue: cassieq.Queue, *, wait_s: float = 0) -> Iterator[Message]:
    """Get and ack until a get says "none"; what is got stays ours, however slow the machine."""
    while messages := queue.get(1_000, visibility_timeout=600, wait=wait_s):
        queue.ack(messages)
        yield from messages
