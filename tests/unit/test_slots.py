"""The slots of schedules, beside a walk through each minute; see docs/design/schedules.md."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, available_timezones

import pytest

from cassieq_spark.model.moments import time_of, us_of
from cassieq_spark.model.slots import Cron, Every, Once, Rule, Slot, latest, offset_of

if TYPE_CHECKING:
    from collections.abc import Iterator

MINUTE = timedelta(minutes=1)
YEAR = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
EVERY = set(range(60))

EXPRESSIONS = {
    "30 2 * * *": ({30}, {2}),
    "15,45 0-3 * * *": ({15, 45}, {0, 1, 2, 3}),
    "0 0-23/2 * * *": ({0}, set(range(0, 24, 2))),
    "0 0-23 * * *": ({0}, set(range(24))),
    "0 0 * * *": ({0}, {0}),
    "59 23 * * *": ({59}, {23}),
    "0-59/7 1,2 * * *": (set(range(0, 60, 7)), {1, 2}),
    "0 */2 * * *": ({0}, set(range(0, 24, 2))),
    "*/15 2 * * *": ({0, 15, 30, 45}, {2}),
    "*/15 * * * *": ({0, 15, 30, 45}, EVERY),
    "0 * * * *": ({0}, EVERY),
    "* 0-3 * * *": (EVERY, {0, 1, 2, 3}),
}


def changes_of(zone: ZoneInfo) -> list[datetime]:
    """The hours of the year in which the clock is changed."""
    begin, end = YEAR
    hours = [begin + timedelta(hours=at) for at in range((end - begin) // timedelta(hours=1))]
    offsets = [offset_of(at, zone) for at in hours]
    return [hours[at] for at in range(1, len(hours)) if offsets[at] != offsets[at - 1]]


def zones_that_differ() -> dict[tuple[object, ...], str]:
    """One zone of those whose clocks are changed in the same way."""
    found: dict[tuple[object, ...], str] = {}
    for name in sorted(available_timezones()):
        zone = ZoneInfo(name)
        changes = changes_of(zone)
        offsets = [offset_of(at, zone) for at in (YEAR[0], *changes)]
        found.setdefault((*changes, *offsets), name)
    return found


def times(slots: Iterator[Slot]) -> Iterator[datetime]:
    return (time_of(one.at_us) for one in slots)


def first(rule: Rule, slot: Slot, most: int) -> list[Slot]:
    return list(islice(rule.after(slot), most))


def walked(cron: Cron, begin: datetime, end: datetime) -> list[datetime]:
    """What Debian's cron does, a minute at a time."""
    minutes, hours = EXPRESSIONS[cron.expression]
    found = []
    seen = (begin - MINUTE).astimezone(cron.zone).replace(tzinfo=None)
    for at in (begin + step * MINUTE for step in range((end - begin) // MINUTE)):
        local = at.astimezone(cron.zone).replace(tzinfo=None)
        shown = [local]
        if cron.is_fixed:  # those that the clock has reached, or jumped over, for the first time
            shown = [seen + step * MINUTE for step in range(1, (local - seen) // MINUTE + 1)]
            seen = max(seen, local)
        if any(one.minute in minutes and one.hour in hours for one in shown):
            found.append(at)
    return found


def test_all_slots_around_each_change_of_a_clock_are_those_of_debian() -> None:
    zones = zones_that_differ()
    assert len(zones) > 60
    for name in zones.values():
        zone = ZoneInfo(name)
        for change in changes_of(zone) or [YEAR[0]]:
            begin, end = change - timedelta(hours=5), change + timedelta(hours=5)
            for expression in EXPRESSIONS:
                cron = Cron(expression, zone)
                there = list(takewhile(end.__gt__, times(cron.since(us_of(begin) - 1))))
                assert (name, expression, walked(cron, begin, end)) == (name, expression, there)


@pytest.mark.parametrize("expression", [*EXPRESSIONS, "0 3 29 2 *", "30 2 L * *", "5 4 * * MON#1"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "UTC", "Africa/Cairo"])
def test_who_goes_on_from_any_slot_finds_the_same(expression: str, zone: str) -> None:
    cron = Cron(expression, ZoneInfo(zone))
    begin_us = us_of(datetime(2026, 3, 25, tzinfo=UTC))
    slots = first(
        cron, Slot(begin_us), 300 if "L" not in expression and "29" not in expression else 8
    )
    assert sorted({one.at_us for one in slots}) == [one.at_us for one in slots]
    for at in range(0, len(slots) - 1, 7):
        assert slots[at + 1] == first(cron, slots[at], 1)[0]
        assert slots[at + 1].at_us == next(cron.since(slots[at].at_us)).at_us
    last = slots[-1]
    assert slots == latest(cron, Slot(begin_us), last.at_us, 1_000)
    assert slots[-3:] == latest(cron, slots[0], last.at_us, 3)
    assert [] == latest(cron, last, last.at_us, 3)


def test_the_last_slots_of_ten_years_are_found_at_once() -> None:
    cron = Cron("* * * * *", ZoneInfo("Europe/Berlin"))
    now_us = us_of(datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC))
    begin_us = us_of(datetime(2016, 11, 30, tzinfo=UTC))
    found = latest(cron, Slot(begin_us), now_us, 2)
    assert [now_us - 90_000_000, now_us - 30_000_000] == [one.at_us for one in found]


def test_equal_distances_begin_with_the_first_time() -> None:
    every = Every(60, 1_000)
    assert [1_000, 1_060] == [one.at_us for one in first(every, Slot(5), 2)]
    assert [1_060] == [one.at_us for one in first(every, Slot(1_000), 1)]
    assert [1_120] == [one.at_us for one in first(every, Slot(1_119), 1)]
    assert [1_120] == [one.at_us for one in latest(every, Slot(0), 1_179, 1)]
    assert [Slot(7)] == first(Once(7), Slot(6), 5)
    assert [] == first(Once(7), Slot(7), 5)
