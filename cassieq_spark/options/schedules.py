"""Check the arguments of a schedule, and make its definition of them."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, TypedDict
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from cassieq_spark.errors import OptionInvalid, OptionUnknown
from cassieq_spark.model import group as groups
from cassieq_spark.model.recurring import FILLED_TO, MOST_SLOTS, NEVER_US, Definition, Misfire
from cassieq_spark.model.slots import Slot
from cassieq_spark.options import arguments, values
from cassieq_spark.options.option import FOUR_HUNDRED_DAYS_S, did_you_mean
from cassieq_spark.options.parse import Seconds

MOST_BYTES: Final = 65_536
"""The most bytes of body, tag and headers together: they are in the schedule's row."""

EVERY: Final = values.seconds(1, FOUR_HUNDRED_DAYS_S, from_text=False)
JITTER: Final = values.seconds(0, 86_400, from_text=False)
HORIZON: Final = values.seconds(60, 86_400, from_text=False)
COUNT: Final = values.whole(1, 1_000_000_000, from_text=False)
CATCH_UP: Final = values.whole(1, MOST_SLOTS, from_text=False)
_PRIORITY: Final = values.whole(0, 15, from_text=False)
OWNER: Final = values.text(200)
_MISFIRE: Final = values.one_of(*(one.value for one in Misfire))
_PLAIN: Final = Definition()
"""It has the defaults."""

_OWN: Final = "cassieq-"
_RULES: Final = ("cron", "every", "at")


class ScheduleArguments(TypedDict, total=False):
    """The keywords of `Schedules.create`, which explains them, and of `Schedules.alter`.

    None asks for the default.
    """

    cron: str | None
    timezone: str | None
    every: Seconds | None
    at: datetime | None
    start: datetime | None
    end: datetime | None
    count: int | None
    jitter: Seconds | None
    horizon: Seconds | None
    misfire: str | None
    catch_up: int | None
    body: bytes | None
    tag: str | None
    headers: Mapping[str, str] | None
    group: str | None
    priority: int | None
    key: str | None
    ttl: Seconds | None
    owner: str | None


def definition_of(
    given: Mapping[str, Any], *, now_us: int, before: Definition | None = None
) -> Definition:
    """Return the definition that these arguments ask for.

    Args:
        before: The definition that they change; None: it is a new schedule.

    Raises:
        OptionUnknown, OptionInvalid, BodyInvalid: Names the argument, its value, and what is
            allowed.
    """
    unknown = sorted(given.keys() - _FIELDS.keys())
    if unknown:
        raise OptionUnknown(
            f"a schedule has no argument {unknown[0]!r}.{did_you_mean(unknown[0], _FIELDS)} It has "
            f"{', '.join(sorted(_FIELDS))}"
        )
    made = before or Definition()
    rules = [name for name in _RULES if given.get(name) is not None]
    if len(rules) > 1 or (before is None and not rules):
        raise OptionInvalid(
            f"a schedule needs one of {', '.join(_RULES)}, and was given "
            f"{' and '.join(rules) or 'none of them'}"
        )
    if rules:
        made = replace(made, cron="", every_us=0, at_us=0)
    for name, value in given.items():
        if name not in {"headers", "group"} and not (name in _RULES and value is None):
            field, read = _FIELDS[name]
            new = getattr(_PLAIN, field) if value is None else read(name, value)
            made = replace(made, **{field: new})
    if given.keys() & {"headers", "group"}:
        made = replace(made, headers=_headers(given, made.headers))
    if made.every_us and not made.start_us:
        made = replace(made, start_us=now_us)
    if given.get("horizon") is None and ("horizon" in given or rules):
        made = replace(made, horizon_us=_horizon_us(made))
    _check(made, now_us, is_new=before is None)
    return made


def _check(made: Definition, now_us: int, *, is_new: bool) -> None:
    if made.end_us <= made.start_us:
        raise OptionInvalid("end is not later than start. Give a later end")
    size = len(made.body) + sum(
        len(text.encode()) for text in (made.tag or "", *made.headers, *made.headers.values())
    )
    if size > MOST_BYTES:
        raise OptionInvalid(
            f"body, tag and headers of a schedule have {size:,} bytes, but the limit is "
            f"{MOST_BYTES:,}. Store the content elsewhere and put a reference to it"
        )
    slots = list(islice(made.slots(Slot(now_us)), MOST_SLOTS + 1))
    if not slots and is_new:
        raise OptionInvalid(
            "this schedule has no time to come. Look at its expression, start and end"
        )
    ahead_us = slots[-1].at_us - max(now_us, made.start_us) if len(slots) > MOST_SLOTS else NEVER_US
    if ahead_us < FILLED_TO * made.horizon_us:
        raise OptionInvalid(
            f"horizon is {made.horizon_us / 1e6:g} s, in which this schedule has too many times: "
            f"{MOST_SLOTS} may be put ahead, for three horizons. Give a horizon of at "
            f"most {max(60, ahead_us // FILLED_TO // 1_000_000):,} s"
        )


def _horizon_us(made: Definition) -> int:
    """Return an hour, or the time of a hundred occurrences if that is shorter."""
    most_us = _PLAIN.horizon_us
    return max(60_000_000, min(most_us, 100 * (made.every_us or most_us)))


def _headers(given: Mapping[str, Any], before: Mapping[str, str]) -> dict[str, str]:
    plain, group = groups.split(dict(before))
    if "headers" in given:
        plain = arguments.headers(given["headers"])
        own = sorted(name for name in plain if name.lower().startswith(_OWN))
        if own:
            raise OptionInvalid(
                f"header {own[0]!r} is of the queue's own: names that begin with {_OWN!r} are. "
                "Choose another name"
            )
    if "group" in given:
        group = arguments.group("group", given["group"])
    return groups.with_group(plain, group)


def zone_of(name: str, value: object) -> str:
    """Check the name of a time zone."""
    if isinstance(value, str):
        try:
            return ZoneInfo(value).key
        except (KeyError, ValueError, OSError):
            pass
    near = did_you_mean(str(value), available_timezones())
    raise OptionInvalid(
        f"{name} is {reprlib.repr(value)}, allowed: a name of the IANA time zone data, such as "
        f"'Europe/Berlin' or 'UTC'.{near}"
    )


def cron_of(name: str, value: object) -> str:
    """Check a cron expression."""
    why = "it is not text"
    if isinstance(value, str):
        fields = value.split()
        why = f"it has {len(fields)} fields" if len(fields) != 5 else ""  # noqa: PLR2004
        if not why:
            try:
                next(CronSim(value, datetime(2026, 1, 1)))  # noqa: DTZ001 - a local time
            except CronSimError as error:
                why = str(error)
            except StopIteration:
                why = "it has no time within 50 years"
            else:
                return " ".join(fields)
    raise OptionInvalid(
        f"{name} is {reprlib.repr(value)} ({why}), allowed: an expression of five fields, as in "
        "crontab: minute, hour, day of month, month, day of week"
    )


def _us(kind: values.Values[float]) -> Callable[[str, object], int]:
    return lambda name, value: arguments.microseconds(name, value, kind)


_FIELDS: Final[Mapping[str, tuple[str, Callable[[str, Any], Any]]]] = {
    "cron": ("cron", cron_of),
    "timezone": ("timezone", zone_of),
    "every": ("every_us", _us(EVERY)),
    "at": ("at_us", arguments.moment_us),
    "start": ("start_us", arguments.moment_us),
    "end": ("end_us", arguments.moment_us),
    "count": ("count", COUNT.checked),
    "jitter": ("jitter_us", _us(JITTER)),
    "horizon": ("horizon_us", _us(HORIZON)),
    "misfire": ("misfire", lambda name, one: Misfire(_MISFIRE.checked(name, one))),
    "catch_up": ("catch_up", CATCH_UP.checked),
    "body": ("body", lambda _, one: arguments.body(one)),
    "tag": ("tag", lambda _, one: arguments.tag(one)),
    "headers": ("headers", lambda _, one: one),
    "group": ("headers", lambda _, one: one),
    "priority": ("priority", _PRIORITY.checked),
    "key": ("key", arguments.key),
    "ttl": ("ttl_us", lambda _, one: arguments.ttl_us(one)),
    "owner": ("owner", OWNER.checked),
}
"""The field of each argument, and how its value is read."""


def interval(us: int) -> timedelta | None:
    """Return a length of time; None for none."""
    return timedelta(microseconds=us) if us else None
