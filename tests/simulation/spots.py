"""Trouble at named statements: there a client dies, stands still, or loses an answer.

A seed has one or two themes: what its programs do, and at which of their statements this happens.
More trouble can be spelled: ``stall after update_bucket 7 of client 2 for 12.0 s``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cassandra import OperationTimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cassieq_spark.store.transport import Request, Told
    from tests.simulation.draws import Draws
    from tests.simulation.world import World, WorldTransport

_WRITERS: Final = "reserve write_message write_message write_message read_pointers"
_SEALERS: Final = "scan_messages insert_bucket fill_bucket fill_bucket read_pointers"
_READERS: Final = "update_bucket update_bucket fill_bucket read_bucket read_messages write_hint"
_DROPPERS: Final = "advance_pointer drop_messages delete_bucket read_bucket"
_SINKS: Final = "update_sink update_sink read_sink_serial write_message insert_bucket fill_bucket"

THEMES: Final[Mapping[str, tuple[str, ...]]] = {
    theme: tuple(names.split())
    for theme, names in {
        "plain": f"{_WRITERS} {_SEALERS} {_READERS} write_overlay read_hints",
        "drops": f"{_SEALERS} {_DROPPERS} {_WRITERS} update_bucket insert_bucket",
        "sink": f"{_SINKS} insert_sink update_bucket read_sink write_alive write_sink_list",
        "source": "update_bucket update_bucket read_bucket write_hint advance_pointer fill_bucket",
        "lives": "delete_monoton reserve insert_monoton insert_queue update_queue delete_queue "
        "advance_pointer read_monoton drop_messages find_queue write_message",
        "dead": f"{_SINKS} insert_sink delete_sink update_bucket write_alive",
        "due": "add_to_schedule remove_from_schedule read_schedule insert_monoton reserve "
        "advance_pointer update_bucket delete_monoton",
        "keys": "take_key take_key read_key keep write_message insert_bucket advance_pointer",
    }.items()
}
"""What each theme's programs send."""

OF_SCHEDULES: Final = tuple(
    "touch_timetable touch_timetable touch_timetable define_timetable insert_timetable "
    f"delete_timetable read_timetable {_WRITERS} insert_bucket fill_bucket update_bucket "
    "insert_monoton add_to_schedule advance_pointer delete_bucket keep read_kept".split()
)
"""What programs with schedules send; they have a play of their own."""

ACTIONS: Final = ("kill before", "kill after", "stall before", "stall after", "lose", "late")
SPELLED: Final = (*ACTIONS, "lose and stall", "repeat")
"""Those that can be spelled."""

LASTS_S: Final = (1.0, 4.0, 12.0, 12.0, 45.0)
MOST_SPOTS: Final = 4


@dataclass
class Spot:
    """Trouble at a statement.

    Attributes:
        left: How often it still happens.
        share: Of how many of them it happens.
        client: Whose statement it is; empty: anybody's.
        number: Which one of that client's statements of this name, from 1; 0: any.
    """

    statement: str
    action: str
    lasts_s: float
    share: float = 1.0
    left: int = 1
    client: str = ""
    number: int = 0

    @property
    def name(self) -> str:
        """Its name in the plan."""
        which = f" {self.number} of {self.client}" if self.number else ""
        return f"{self.action} {self.statement}{which} for {self.lasts_s} s"

    def is_at(self, client: str, statement: str, number: int) -> bool:
        """Whether it is about this statement, so far as it still happens."""
        is_theirs = not self.number or (self.client, self.number) == (client, number)
        return self.left > 0 and self.statement == statement and is_theirs

    def happen(
        self,
        world: World,
        client: WorldTransport,
        request: Request,
        told: Told,
        send: Callable[[Request, Told], None],
    ) -> None:
        """Let it happen to a request of a client, in place of sending that."""
        loop = world.loop
        self.left -= 1
        if self.number:
            world.spelled_until_s = max(world.spelled_until_s, loop.time() + self.lasts_s)
            world.slept_s = max(world.slept_s, self.lasts_s if "stall" in self.action else 0.0)
        world.seen[f"{self.action} a statement"] += 1
        match self.action:
            case "kill before":
                client.kill()
            case "kill after":
                send(request, lambda _: None)
                client.kill()
            case "stall before":
                client.clock.resumes_s = loop.time() + self.lasts_s
                client.send(request, told)
            case "stall after":
                client.clock.resumes_s = loop.time() + self.lasts_s
                send(request, told)
            case "lose and stall":
                loop.call_later(self.lasts_s, told, OperationTimedOut("the answer was lost"))
                client.clock.resumes_s = loop.time() + self.lasts_s
                send(request, lambda _: None)
            case "repeat":  # the answer is lost, and of what is sent again some copies come late
                loop.call_later(0.03, told, OperationTimedOut("the answer was lost"))
                for part in (1, 2, 3):
                    loop.call_later(self.lasts_s * part / 3, send, request, lambda _: None)
                send(request, lambda _: None)
            case "lose":
                loop.call_later(0.03, told, OperationTimedOut("the answer was lost"))
                send(request, lambda _: None)
            case _:  # the connection breaks, and the node reads it later
                loop.call_later(0.03, told, OperationTimedOut("the answer was lost"))
                loop.call_later(self.lasts_s, send, request, lambda _: None)


_SPELLED: Final = re.compile(
    rf"({'|'.join(reversed(SPELLED))}) (\w+) (\d+) of (client \d+) for ([\d.]+) s", re.ASCII
)


def spelled(text: str) -> Spot:
    """Read a spot of one statement as its name says it.

    Raises:
        ValueError: It is no such name.
    """
    found = _SPELLED.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not like 'lose update_bucket 7 of client 2 for 1.0 s'")
    action, statement, number, client, lasts_s = found.groups()
    return Spot(
        statement=statement,
        action=action,
        lasts_s=float(lasts_s),
        client=client,
        number=int(number),
    )


def spots_of(draws: Draws, themes: list[tuple[str, ...]]) -> list[Spot]:
    """Draw the spots of a world whose programs send these."""
    return [
        Spot(
            statement=draws.choice(draws.choice(themes)),
            action=draws.choice(ACTIONS),
            lasts_s=draws.choice(LASTS_S),
            share=draws.choice([0.2, 0.5, 1.0]),
            left=draws.choice([2, 4, 10]),
        )
        for _ in range(draws.randint(0, MOST_SPOTS))
    ]
