"""Which buckets may lack a hint: those whose writer was not answered, and what waited too long.

A hint is written before its CAS. If that CAS came late it is written again, before its answer is
used [T4]. So only a client that was not answered its CAS, or the hint after it, leaves the rest to
repair: it died, or its call was over. And a hint ends two days after its minute [R13].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.model.pointer import HINT_SPARE_S, MINUTE_US

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from cassieq_spark.store.transport import Page, Request, Told

Place = tuple["UUID", int]
"""A lane and one of its buckets."""

_KEYS: Final[dict[str, Callable[[Any], Place]]] = {
    "insert_bucket": lambda row: (row[0], row[1]),
    "fill_bucket": lambda row: (row[-3], row[-2]),
    "update_bucket": lambda row: (row[-3], row[-2]),
    "write_hint": lambda row: (row[0], row[3]),
}
"""What changes when a message comes back, or says so, and the bucket that it is about."""


class Unhinted:
    """Listens to what clients send and are told."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, str], Place] = {}
        self._changed: set[tuple[str, Place]] = set()
        self._ends_us: dict[Place, int] = {}

    def listens(self, client: str, request: Request, told: Told) -> Told:
        """Note a statement that a client sends; return what notes that it was answered.

        A statement that is sent again is the same one.
        """
        name = request.statement.name
        if name not in _KEYS:
            return told
        sent = (client, name, repr(request.rows))
        place = _KEYS[name](request.rows[0])
        if name == "write_hint":
            end_us = (request.rows[0][2] + 1) * MINUTE_US + HINT_SPARE_S * 1_000_000
            self._ends_us[place] = min(end_us, self._ends_us.get(place, end_us))
            if (client, place) not in self._changed:
                return told  # if it is not answered, no CAS is sent
        else:
            self._changed.add((client, place))
        self._open[sent] = place

        def note(answer: Page | BaseException) -> None:
            if not isinstance(answer, BaseException):
                self._open.pop(sent, None)
            told(answer)

        return note

    def places(self, now_us: int) -> set[Place]:
        """Return the buckets that may lack a hint of a message that has come back by now."""
        ended = {place for place, end_us in self._ends_us.items() if end_us <= now_us}
        return {*self._open.values()} | ended
