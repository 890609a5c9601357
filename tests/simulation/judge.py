"""What is judged in a simulated world beside the rules of `tests.storm.checker`. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.storm.book import read
from tests.storm.checker import Anomaly

if TYPE_CHECKING:
    from tests.storm.history import Entry

MAIN = "orders"
LATE_S = 1.0
"""By how much the clocks of a client's nodes may be wrong."""

LONGER_S = 60.0
"""By how much a lease may be longer than was asked for: four requests that are answered at last."""

SHORT_S = 1.0
"""In so short a time no bucket is filled, drained and dropped, as it rests for two seconds."""


def judged(history: list[Entry]) -> list[Anomaly]:
    """Return what is wrong by any of these rules."""
    return [one for judge in JUDGES for one in judge(history)]


def hidden(history: list[Entry]) -> list[Anomaly]:
    """Return the gets that found nothing though a message was visible all the time (I10).

    Such a message was stored before the get began, without a delay or an end, and was given to
    nobody before the get had ended: not even to a client that was killed before it could say so.
    Nor was any claim given back uncounted meanwhile, as one whose answer came too late, nor was
    anything paused.
    """
    pauses = _pauses(history)
    uncounted = [entry["at"] for entry in history if entry["what"] == "uncounted"]
    book = read(history)
    stored_at: dict[str, float] = {}
    first: dict[str, float] = {}
    for entry in history:
        if entry["what"] == "put":
            stored_at |= dict.fromkeys(entry["stored"], entry["at"])
        elif entry["what"] == "got" and entry["queue"] == MAIN:
            for key, _, count in entry["named"]:
                first.setdefault(key, entry["begun"] if count == 1 else -math.inf)
    plain = [
        (at, key)
        for key, at in stored_at.items()
        if key in first and not book.put[key][1] and key not in book.lives
    ]
    found = []
    for entry in history:
        if entry["what"] == "nothing" and entry["queue"] == MAIN:
            begun, ended = entry["begun"], entry["at"]
            if any(one.begun < ended and begun < one.over for one in pauses):
                continue
            seen = [
                key
                for at, key in plain
                if at < begun
                and first[key] > ended
                and not any(begun < back < first[key] for back in uncounted)
            ]
            if seen:
                what = f"{entry['who']} got nothing from {begun:.3f} to {ended:.3f}: {seen[:3]}"
                found.append(Anomaly(kind="hidden", what=what))
    return found


@dataclass(frozen=True, kw_only=True)
class Pause:
    """A pause of some priorities.

    Attributes:
        begun, answered: When it was asked for, and when that was answered; infinite: never.
        resumes, over: When somebody may have resumed one of them, and since when all are resumed
            for sure: a call at the same time as the pause may have come before it.
    """

    priorities: frozenset[int]
    begun: float
    answered: float
    resumes: float
    over: float


def _pauses(history: list[Entry]) -> list[Pause]:
    answered = {one["op"]: one["at"] for one in history if one["what"] in {"paused", "resumed"}}
    resumes = [
        ({*one["priorities"]}, one["at"], answered.get(one["op"], math.inf))
        for one in history
        if one["what"] == "resumes"
    ]
    found = []
    for entry in history:
        if entry["what"] == "pauses":
            paused, begun = frozenset(entry["priorities"]), entry["at"]
            is_paused = answered.get(entry["op"], math.inf)
            ends = [at for some, at, over in resumes if over > begun and some & paused]
            overs = [over for some, at, over in resumes if at > is_paused and some >= paused]
            found.append(
                Pause(
                    priorities=paused,
                    begun=begun,
                    answered=is_paused,
                    resumes=min(ends, default=math.inf),
                    over=min(overs, default=math.inf),
                )
            )
    return found


def unpaused(history: list[Entry]) -> list[Anomaly]:
    """Return the gets that began in a pause, and handed out what was paused."""
    pauses = _pauses(history)
    return [
        Anomaly(kind="unpaused", what=f"{one['who']} got {one['named'][0]} in {pause}")
        for one in history
        if one["what"] == "got" and one["queue"] == MAIN
        for pause in pauses
        if pause.answered < one["begun"]
        and one["at"] < pause.resumes
        and pause.priorities & {*one["priorities"]}
    ]


def ended(history: list[Entry]) -> list[Anomaly]:
    """Return the gets that handed out a lease which was over [P18, T17]."""
    return [
        Anomaly(kind="ended", what=f"{one['who']} got {one['named'][0]}, over by {-one['left']} s")
        for one in history
        if one["what"] == "got" and one["left"] < -LATE_S
    ]


def _is_doubtful(entry: Entry) -> bool:
    """Whether somebody may have been given something, and did not say so.

    Whose lease is over before the claim is answered does not say so, either.
    """
    is_put = entry["who"].startswith(("producer", "repair"))
    return entry["what"] in {"died", "leased", "slept"} or (
        entry["what"] == "failed" and not is_put
    )


def late(history: list[Entry]) -> list[Anomaly]:
    """Return the acks that were too late though nobody had claimed the message again [R20].

    Whoever was killed, or was not answered, may have claimed it.
    """
    if any(_is_doubtful(entry) or entry["what"] == "uncounted" for entry in history):
        return []
    book = read(history)
    begun = {entry["op"]: entry for entry in history if entry["what"] == "acks"}
    found = []
    for entry in history:
        if entry["what"] != "acked":
            continue
        acks = begun[entry["op"]]
        for (key, message, count), verdict in zip(acks["named"], entry["verdicts"], strict=True):
            counts = book.handed.get((acks["queue"], message), {})
            later = [one for n, some in counts.items() if n > count for one in some]
            given = any(
                one["what"] == "gives" and [key, message, count] in map(list, one["named"])
                for one in history
            )
            if (
                verdict == "lease_expired"
                and not given
                and not any(one.begun < entry["at"] for one in later)
            ):
                what = f"{key}: an ack of delivery {count} by {entry['at']:.3f} came late"
                found.append(Anomaly(kind="late", what=what))
    return found


def skipped(history: list[Entry]) -> list[Anomaly]:
    """Return the deliveries of which the one before was given to nobody [P18].

    Whoever was killed, or was not answered, may have been given that, and so may a batch that was
    never planned. What was claimed before another gave its claim back is counted with that.
    """
    if any(_is_doubtful(entry) for entry in history):
        return []
    book = read(history)
    last = max((one["at"] for one in history if one["what"] == "uncounted"), default=-math.inf)
    return [
        Anomaly(kind="skipped", what=f"{place}: delivery {count}, and nobody got {count - 1}")
        for place, counts in sorted(book.handed.items())
        for count, handings in sorted(counts.items())
        if count > 1 and count - 1 not in counts and min(one.begun for one in handings) > last
    ]


def reverted(history: list[Entry]) -> list[Anomaly]:
    """Return the deliveries with an older body than an update had given the message [P26]."""
    newest: dict[tuple[str, str], tuple[int, int]] = {}
    found = []
    for entry in history:
        if entry["what"] == "updated":
            ((_, message, count),) = entry["named"]
            newest[entry["queue"], message] = (count, entry["again"])
        elif entry["what"] == "got":
            for (key, message, count), again in zip(entry["named"], entry["again"], strict=True):
                since, wanted = newest.get((entry["queue"], message), (count, again))
                if count > since and again < wanted:
                    what = f"{key}: delivery {count} has an older body than {wanted}"
                    found.append(Anomaly(kind="reverted", what=what))
    return found


def renewed(history: list[Entry]) -> list[Anomaly]:
    """Return the deliveries that somebody had while a source had renewed the one before (I2).

    A renewal that began at b, for n seconds, and was answered, lasts until b + n at least. Nor was
    any claim given back uncounted meanwhile: the next one has the same count, and may end sooner.
    """
    uncounted = [entry["at"] for entry in history if entry["what"] == "uncounted"]
    book = read(history)
    found = []
    for entry in history:
        if entry["what"] != "renewed":
            continue
        free = entry["begun"] + entry["hold"]
        for message, count in entry["named"]:
            counts = book.handed.get((entry["queue"], message), {})
            found += [
                f"{one.key}: {entry['who']} has renewed delivery {count} until {free:.3f}, "
                f"{one.holder} had delivery {later} by {one.returned:.3f}"
                for later, handings in sorted(counts.items())
                for one in handings
                if later > count
                and one.returned < free
                and not any(entry["begun"] < back < one.returned for back in uncounted)
            ]
    return [Anomaly(kind="two_leases", what=what) for what in found]


def doubtful(history: list[Entry]) -> list[Anomaly]:
    """Return the short puts whose outcome nobody knew, though all they asked was answered [R2]."""
    begun = {entry["op"]: entry for entry in history if entry["what"] == "puts"}
    found = []
    for entry in history:
        if entry["what"] == "put" and entry["unknown"] and entry.get("answered"):
            since = begun[entry["op"]]["at"]
            if entry["at"] - since < SHORT_S:
                what = (
                    f"{entry['who']} put {entry['unknown']} from {since:.3f} to {entry['at']:.3f}"
                )
                found.append(Anomaly(kind="doubtful", what=what))
    return found


def longer(history: list[Entry]) -> list[Anomaly]:
    """Return the leases that last much longer than their get had asked for [T17, R21].

    What is read or written slowly may make them longer, but no process that has slept.
    """
    return [
        Anomaly(kind="longer", what=f"{one['who']} got {one['named'][0]} for {one['most']} s")
        for one in history
        if one["what"] == "got" and one.get("most", 0.0) > one["hold"] + LONGER_S
    ]


def outlived(history: list[Entry]) -> list[Anomaly]:
    """Return the puts and gets in a queue that began when it had been deleted [P13, T14, R25]."""
    ends: dict[bytes, float] = {}
    for entry in history:
        if entry["what"] == "life ended":
            ends.setdefault(entry["life"], entry["at"])
    return [
        Anomaly(kind="outlived", what=f"{one['who']} used {one['life']} from {one['begun']:.3f}")
        for one in history
        if one["what"] == "lived" and one["begun"] > ends.get(one["life"], math.inf)
    ]


def vanished(history: list[Entry]) -> list[Anomaly]:
    """Return the queues that another one of their name has replaced, and nobody deleted [P13]."""
    lives: dict[bytes, None] = {}
    ending: set[bytes] = set()
    found = []
    for entry in history:
        if entry["what"] == "life ends":
            ending.add(entry["life"])
        elif entry["what"] == "life" and entry["life"] not in lives:
            what = f"{entry['who']} found {entry['life']} at {entry['at']:.3f}"
            found += [
                Anomaly(kind="vanished", what=f"{what} in place of {one}")
                for one in lives
                if one not in ending
            ]
            ending |= lives.keys()
            lives[entry["life"]] = None
    return found


def replayed(history: list[Entry]) -> list[Anomaly]:
    """Return the batches that a next run had without some of their rows, while they were leased.

    The run before had died in the middle of the batch: it has acked nothing of it [P25].
    """
    lives = read(history).lives
    done = {(one["batch"], one["run"]) for one in history if one["what"] == "done"}
    until: dict[tuple[int, str], float] = {}
    first: dict[int, Entry] = {}
    found = []
    for entry in history:
        if entry["what"] == "leased":
            until.setdefault((entry["seq"], entry["run"]), entry["begun"] + entry["hold"])
        elif entry["what"] == "rows":
            before = first.setdefault(entry["batch"], entry)
            who = before["batch"], before["run"]
            is_leased = entry["at"] < until.get((before["seq"], before["run"]), 0.0)
            keys = {key for key, _, _ in entry["named"]} | lives.keys()
            missing = [key for key, _, _ in before["named"] if key not in keys]
            if missing and is_leased and who not in done:
                what = f"batch {who[0]}: run {entry['run']} has not {missing[:3]} of {who[1]}"
                found.append(Anomaly(kind="replayed", what=what))
    return found


JUDGES: Final = (
    hidden,
    ended,
    late,
    skipped,
    reverted,
    renewed,
    doubtful,
    longer,
    outlived,
    vanished,
    replayed,
    unpaused,
)
