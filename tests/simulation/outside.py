"""Worlds outside of what the cluster's page permits, each with one weather that it forbids.

docs/reliability.md says what may happen then. Nothing else may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cassieq_spark.testing.simulated.ring import Node
    from tests.storm.checker import Anomaly


@dataclass(frozen=True, kw_only=True)
class Weather:
    """What is outside, and what may come of it.

    Attributes:
        faults: The names of the faults that come, beside those that come inside, too.
        without: The faults that do not come.
        may: What may go wrong: the kind of promise, and a part of what is told of it.
        pace: See `World`; None: as the seed draws it.
        limits: Internal limits, see `limits`.
        hints_lost: The share of expiry hints that are lost.
        has_handoff: Whether nodes keep hints for each other.
        leaves_to_repair: Whether messages may come back by repair only.
    """

    name: str
    faults: tuple[str, ...] = ()
    without: tuple[str, ...] = ("jump",)
    may: tuple[tuple[str, str], ...] = ()
    pace: int | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    hints_lost: float = 0.0
    has_handoff: bool = True
    leaves_to_repair: bool = False

    def accepts(self, one: Anomaly) -> bool:
        """Whether this may happen."""
        return any(one.kind == kind and part in one.what for kind, part in self.may)


NO_HINT: Final = ("tables", "visible_without_hint")
BY_TIME: Final = (
    ("two_leases", " had delivery "),  # but the same delivery has one holder, whatever the time is
    ("ended", ""),
    ("expired", ""),
    ("unexpected", " with a delay of "),
)
"""What a wrong time may do: leases end early, and delays and lives end early or late."""
UNDONE: Final = tuple(
    (kind, "")
    for kind in (
        *("lost", "resurrected", "two_leases", "batch", "unexpected", "tables"),
        *("hidden", "late", "skipped", "reverted"),
    )
)
"""What two copies of three may do that both lack what was acknowledged: it never happened."""

WEATHERS: Final = (
    Weather(
        name="two wrong clocks",
        faults=("jump_two",),
        pace=12,
        limits={"clock.MEASURE_EVERY_S": 20.0},
        leaves_to_repair=True,
        may=(*BY_TIME, NO_HINT),
    ),
    Weather(
        name="a wrong clock while a node is away",
        faults=("jump", "stop"),
        without=(),
        pace=12,
        limits={"clock.MEASURE_EVERY_S": 20.0},
        leaves_to_repair=True,
        may=(*BY_TIME, NO_HINT),
    ),
    Weather(
        name="power cut",
        faults=("power",),
        without=("jump", "stop", "cut", "slow", "lose", "double", "hush"),
    ),
    Weather(
        name="power cut while another node is behind",
        faults=("power_behind",),
        may=UNDONE,
    ),
    Weather(name="expiry hints lost", hints_lost=0.3, leaves_to_repair=True, may=(NO_HINT,)),
    Weather(name="no hints between nodes", faults=("stop", "cut", "lose"), has_handoff=False),
)


def synced(node: Node) -> Callable[[], None]:
    """Take what is on a node's disk now; return what lets it have no more than that."""
    disk = deepcopy((node.data, node.promises, node.hints))

    def forget() -> None:
        node.data, node.promises, node.hints = disk

    return forget
