"""Say which queues a query reads: one, several, those whose names match a pattern, or all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.errors import OptionInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from cassieq_spark.model.ids import QueueName

NAMING: Final = ("queue", "queues", "queuePattern")
"""The options that name queues. Exactly one of them counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSelection:
    """Which queues to read.

    Attributes:
        names: Their names; empty with a pattern, and for all.
        pattern: A regular expression of their whole names.
        is_one: Set by option ``queue``.
    """

    names: tuple[QueueName, ...] = ()
    pattern: str | None = None
    is_one: bool = False

    def __str__(self) -> str:
        """How reports and errors name it."""
        return self.pattern or ", ".join(self.names)

    @property
    def is_all(self) -> bool:
        """Whether nothing limits them."""
        return not self.names and self.pattern is None

    def has(self, queue: QueueName) -> bool:
        """Whether this queue is among them."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, queue) is not None
        return self.is_all or queue in self.names


def select(
    found: Mapping[str, Any], arguments: Set[str], whose: str, *, may_be_all: bool = False
) -> QueueSelection:
    """Find which of `NAMING` counts: an argument before a variable.

    Args:
        found: The values of all options, by name.
        arguments: The names of those that were not taken from a variable or a default.
        whose: The owner of the options, as errors call it.

    Raises:
        OptionInvalid: Several are set, or none.
    """
    given = arguments & set(NAMING)
    chosen = [name for name in NAMING if found[name] is not None and (name in given or not given)]
    if len(chosen) > 1:
        raise OptionInvalid(
            f"options {' and '.join(map(repr, chosen))} of {whose} are set, and each of them names "
            "the queues to read. Set one of them"
        )
    if not chosen and not may_be_all:
        raise OptionInvalid(
            f"option 'queue' of {whose} is not set. Set it to the name of the queue to read, or "
            "set 'queues' or 'queuePattern' to read several"
        )
    if chosen == ["queue"]:
        return QueueSelection(names=(found["queue"],), is_one=True)
    if chosen == ["queues"]:
        return QueueSelection(names=found["queues"])
    return QueueSelection(pattern=found["queuePattern"] if chosen else None)
