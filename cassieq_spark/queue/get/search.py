"""`Search` decides whether one get is done with one lane, and when to look at it again.

Holds I10: a get says "nothing is visible" of a lane only after a round in which nothing changed, in
which all buckets answered, and in which nothing was passed over from memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cassieq_spark.entropy import jitter
from cassieq_spark.model.rows.known import MAX_REFUSALS
from cassieq_spark.queue.apart import first_of
from cassieq_spark.store.row_port import race_pause_s

if TYPE_CHECKING:
    from cassieq_spark.errors import CassieqError
    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.queue.get.choosing import Choosing
    from cassieq_spark.queue.get.scan import Scanner
    from cassieq_spark.queue.lane import Lane

PAUSE_S: Final = 0.25
"""A call that has no messages waits this long before it asks unanswered buckets again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The result of one look at a lane that has given us nothing.

    Attributes:
        has_changed: Whether any row was changed, by us or by others.
        has_sealed: Whether a seal changed a row; the number of such rounds is limited.
        young_for_s: How long the first message is too young to be taken; None if there is none, or
            it was waited for.
    """

    has_changed: bool
    has_sealed: bool
    young_for_s: float | None = None


class Search:
    """One get's way through one lane, round by round.

    Attributes:
        is_over: Whether nothing is visible in the lane.
        failure: The error of a part that has not answered in the last round.
        pause_s: How long to wait before the next round.
        more_at: The time (monotonic) when more than the last round has claimed can be had: at once,
            or when young messages will be ripe. None: it has seen no more.
    """

    def __init__(self, lane: Lane, scanner: Scanner) -> None:
        self.is_over = False
        self.failure: CassieqError | None = None
        self.pause_s = 0.0
        self.more_at: float | None = None
        self._lane = lane
        self._scanner = scanner
        self._has_begun = False
        self._known_away = set(scanner.away)
        self._is_sure = False
        self._in_vain = 0

    def begin(self, choosing: Choosing) -> None:
        """Begin the choice of buckets, once for all rounds."""
        if not self._has_begun:
            self._has_begun = True
            choosing.begin()

    def fail(self, error: CassieqError) -> None:
        """Note a round that ended with an error."""
        self.failure = error
        self.pause_s = jitter(PAUSE_S, 0)
        self._is_sure = False

    def note(self, one: Round) -> None:
        """Note a round that has claimed nothing.

        Raises:
            CasContention: It lost too many races in a row.
        """
        self.failure, self.pause_s = None, 0.0
        if away := self._scanner.passed_over:
            self._is_sure = False  # nothing is known of buckets that were passed over
            self._note_away(away)
        elif one.young_for_s is not None:
            self._is_sure = False
            self.pause_s = one.young_for_s
        elif not one.has_changed:
            self.is_over = self._is_sure or not self._scanner.forget_jumps()
            self._is_sure = True
        else:
            self._is_sure = False
            if not one.has_sealed:
                self._in_vain += 1
                if self._in_vain >= MAX_REFUSALS:
                    raise self._lane.contended(f"what is visible in {self._lane.title}")
                self.pause_s = race_pause_s(self._in_vain)

    def _note_away(self, away: dict[BucketNo, CassieqError]) -> None:
        has_more = not self._known_away >= away.keys()
        self._known_away = set(away)
        if has_more:
            return  # without them it may find messages that come after them
        self.failure = first_of(away)
        self.pause_s = jitter(PAUSE_S, 0)
        self._scanner.forget_away()
        self._known_away.clear()
