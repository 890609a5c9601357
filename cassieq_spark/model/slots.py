"""Find the slots of a schedule: the times at which it puts a message. Pure.

A slot of an expression whose minute and hour are **fixed** (neither begins with ``*``) is a local
time, and follows Debian cron where clocks are changed: a time that is left out comes when the clock
jumps over it, and a time that comes twice counts once. All other slots are instants at which the
local clock shows the expression, however often. See docs/design/schedules.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim

from cassieq_spark.model.moments import time_of, us_of

_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)


class Slot(NamedTuple):
    """One of a schedule's times.

    Attributes:
        at_us: Its time.
        local: The same as a local time without an offset, in ISO 8601, if its expression is fixed.
            Its order is that of the slots whatever time zone data a process has.
    """

    at_us: int
    local: str = ""


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression of five fields, in a time zone."""

    expression: str
    zone: ZoneInfo

    @property
    def is_fixed(self) -> bool:
        """Whether its slots are local times."""
        minute, hour, *_ = self.expression.split()
        return not minute.startswith("*") and not hour.startswith("*")

    def after(self, slot: Slot) -> Iterator[Slot]:
        """Return the slots that follow a slot of its own, in order."""
        if self.is_fixed and slot.local:
            return self._fixed(datetime.fromisoformat(slot.local), slot.at_us)
        return self.since(slot.at_us)

    def since(self, time_us: int) -> Iterator[Slot]:
        """Return the slots later than a time, in order."""
        if not self.is_fixed:
            return self._elapsed(time_of(time_us))
        # A slot that was left out may come up to a day later than its local time says.
        local = time_of(time_us).astimezone(self.zone).replace(tzinfo=None) - _DAY
        return self._fixed(local, time_us)

    def _fixed(self, local: datetime, last_us: int) -> Iterator[Slot]:
        for one in CronSim(self.expression, local):
            at_us = us_of(_reached(one, self.zone))
            if at_us > last_us:  # those that are jumped over together count once
                yield Slot(at_us, one.isoformat(timespec="minutes"))
                last_us = at_us

    def _elapsed(self, after: datetime) -> Iterator[Slot]:
        """Go through stretches in which the clock is not changed."""
        at = after.replace(microsecond=0)
        local = _local(at, self.zone)
        while True:
            end = _unchanged_until(at, self.zone)
            offset = offset_of(at, self.zone)
            following = None
            for one in CronSim(self.expression, local):
                following = one.replace(tzinfo=UTC) - offset
                if following >= end:
                    break
                yield Slot(us_of(following))
            if following is None:
                return
            if end - at == _DAY and offset_of(end, self.zone) == offset:
                # The days before the next one need no look: no clock shows it so long before.
                end = max(end, following - 2 * _DAY)
            at, local = end, _local(end, self.zone) - _SECOND


@dataclass(frozen=True, slots=True)
class Every:
    """The times at equal distances from a first one, which is a slot, too."""

    interval_us: int
    first_us: int

    def after(self, slot: Slot) -> Iterator[Slot]:
        """See `Cron.after`."""
        return self.since(slot.at_us)

    def since(self, time_us: int) -> Iterator[Slot]:
        """See `Cron.since`."""
        number = max(0, (time_us - self.first_us) // self.interval_us + 1)
        while True:
            yield Slot(self.first_us + number * self.interval_us)
            number += 1


@dataclass(frozen=True, slots=True)
class Once:
    """One time."""

    at_us: int

    def after(self, slot: Slot) -> Iterator[Slot]:
        """See `Cron.after`."""
        return self.since(slot.at_us)

    def since(self, time_us: int) -> Iterator[Slot]:
        """See `Cron.since`."""
        if self.at_us > time_us:
            yield Slot(self.at_us)


Rule = Cron | Every | Once


def latest(rule: Rule, slot: Slot, until_us: int, most: int) -> list[Slot]:
    """Return the last slots after one slot and up to a time, ``most`` (1 or more) at most.

    A long time is not gone through: a schedule of every minute that slept for a year has half a
    million slots.
    """
    back_us = 60_000_000
    while True:
        begins_us = until_us - back_us
        is_all = begins_us <= slot.at_us
        found = []
        for one in rule.after(slot) if is_all else rule.since(begins_us):
            if one.at_us > until_us:
                break
            found.append(one)
        if is_all or len(found) >= most:
            return found[-most:]
        back_us *= 2


def _reached(local: datetime, zone: tzinfo) -> datetime:
    """Return when the clock of a zone first shows a local time, or jumps over it."""
    at = local.replace(tzinfo=zone).astimezone(UTC)  # fold is 0: the first time of two
    if _local(at, zone) == local:
        return at
    return _first_second(at - _DAY, at, lambda one: _local(one, zone) > local)


def _unchanged_until(at: datetime, zone: tzinfo) -> datetime:
    """Return the end of a stretch of a day at most in which the clock of a zone is not changed."""
    offset = offset_of(at, zone)
    if offset_of(at + _DAY, zone) == offset:
        return at + _DAY
    return _first_second(at, at + _DAY, lambda one: offset_of(one, zone) != offset)


def _first_second(begin: datetime, end: datetime, is_so: Callable[[datetime], bool]) -> datetime:
    """Return the first time after ``begin`` at which something is so that is so at ``end``."""
    early, late = 0, (end - begin) // _SECOND
    while late - early > 1:
        middle = (early + late) // 2
        early, late = (early, middle) if is_so(begin + middle * _SECOND) else (middle, late)
    return begin + late * _SECOND


def offset_of(at: datetime, zone: tzinfo) -> timedelta:
    """Return the offset of a zone's clock at a time."""
    return at.astimezone(zone).utcoffset() or timedelta()


def _local(at: datetime, zone: tzinfo) -> datetime:
    return at.astimezone(zone).replace(tzinfo=None)
