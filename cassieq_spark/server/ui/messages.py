"""Look at messages, which stay in their queue; show dead letters, and send them back."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import Field

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.dead_letter import headers_of, history_of
from cassieq_spark.model.ids import LaneId
from cassieq_spark.model.rights import Principal, Right
from cassieq_spark.queue.find import sources_of
from cassieq_spark.queue.inspect.facts import Spot, page
from cassieq_spark.queue.inspect.letters import conditions
from cassieq_spark.queue.message import Message
from cassieq_spark.server.rest.call import Strict
from cassieq_spark.server.ui import bodies
from cassieq_spark.server.ui.page import Form, Shown, Visit
from cassieq_spark.server.ui.session import itself

TOGETHER: Final = 20
"""The messages of one page: all their bodies are in memory while it is made."""

READ_TOGETHER: Final = 50
LOOKED_AT: Final = 2_000
"""The messages that one page looks at, to find those that match; the next page goes on there."""

AT_ONCE: Final = 1_000
"""The most messages that one form redrives, unless they were chosen one by one."""

MOVES: Final = 50
"""The moves of a history that are shown, the last ones."""

ANOTHER: Final = "a queue of another account"

_SPOT: Final = re.compile(
    r"(?P<lane>[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}):(?P<id>[0-9]{1,19})"
)


class Peek(Strict):
    """The messages to show, and how.

    Attributes:
        show: What bodies are shown as.
        after: The spot of the last message of the page before.
    """

    show: bodies.How = "auto"
    after: str = ""


async def show(visit: Visit) -> Shown:
    """A page of visible messages."""
    given: Peek = visit.given
    after = None if not given.after else spot_of(given.after)

    async def work() -> list[Message]:
        return await page(await visit.lane(), TOGETHER + 1, after=after)

    found = await visit.backend.reading(lambda: visit.backend.asked(work))
    shown = found[:TOGETHER]
    return visit.shown(
        "messages.html",
        messages=[(one, bodies.shown(one.body, given.show)) for one in shown],
        show=given.show,
        after=given.after,
        next=_spot(shown[-1]) if len(found) > TOGETHER else None,
    )


def spot_of(text: str) -> Spot:
    """Read what a page has written: the lane and the id of a message.

    Raises:
        OptionInvalid: It is something else.
    """
    found = _SPOT.fullmatch(text)
    if found is None:
        raise OptionInvalid(f"{text[:80]!r} is not the place of a message. Begin at the first page")
    return Spot(LaneId(UUID(found["lane"])), int(found["id"]))


def _spot(of: Message | Spot) -> str:
    return f"{of.lane}:{of.id}"


# --- dead letters ---------------------------------------------------------------------------------


class Filter(Strict):
    """The dead letters that are meant; empty: all.

    Attributes:
        died_before, died_after: Times in ISO 8601, UTC if they name no zone.
    """

    reason: str = ""
    source: str = ""
    tag: str = ""
    group: str = ""
    died_before: str = ""
    died_after: str = ""

    @property
    def given(self) -> dict[str, str]:
        """The conditions that were given, by field."""
        texts = {name: getattr(self, name) for name in Filter.model_fields}
        return {name: text for name, text in texts.items() if text}

    def condition(self, principal: Principal) -> Callable[[Message], bool]:
        """Return the filter as a function.

        Raises:
            OptionInvalid: A time is malformed.
        """
        where = [f"reason={self.reason}"] if self.reason else []
        where += [f"tag={self.tag}"] if self.tag else []
        where += [f"group={self.group}"] if self.group else []
        where += [f"source-queue={principal.full_name(self.source)}"] if self.source else []
        return conditions(where, self.died_before or None, self.died_after or None, mark="died ")


class Letters(Filter):
    """The dead letters to show, and how.

    Attributes:
        after: The spot of the last message that the page before has looked at.
    """

    show: bodies.How = "auto"
    after: str = ""


class RedriveForm(Filter, Form):
    """The dead letters to redrive.

    Attributes:
        spot: Those that were chosen.
        all: Whether all that match are meant instead.
        sure: Whether the visitor has seen how many they are.
    """

    spot: Annotated[list[str], Field(max_length=TOGETHER, default_factory=list)]
    all: bool = False
    sure: bool = False


async def show_dead(visit: Visit) -> Shown:
    """A page of letters."""
    given: Letters = visit.given
    is_wanted = given.condition(visit.principal)
    after = None if not given.after else spot_of(given.after)

    may_redrive = visit.principal.may(Right.REDRIVE, visit.queue)

    async def has_sources() -> bool:
        return bool(await sources_of(visit.backend.store, visit.queue))

    async def work() -> tuple[list[Message], Spot | None]:
        lane = await visit.lane()
        found: list[Message] = []
        at, looked_at = after, 0
        while looked_at < LOOKED_AT:
            some = await page(lane, READ_TOGETHER, after=at)
            for one in some:
                if is_wanted(one):
                    if len(found) == TOGETHER:
                        return found, at
                    found.append(one)
                at = Spot(one.lane, one.id)
            looked_at += len(some)
            if len(some) < READ_TOGETHER:
                return found, None
        return found, at

    backend = visit.backend
    found, at = await backend.reading(lambda: backend.asked(work))
    is_for_dead = may_redrive and await backend.asked(has_sources)
    return visit.shown(
        "dead.html",
        letters=[_letter(visit.principal, one, given.show) for one in found],
        show=given.show,
        filter={name: getattr(given, name) for name in Filter.model_fields},
        given=given.given,
        after=given.after,
        next=None if at is None else _spot(at),
        together=TOGETHER,
        at_once=AT_ONCE,
        may_redrive=is_for_dead,
        is_alive=may_redrive and not is_for_dead,
    )


async def redrive(visit: Visit) -> Shown:
    """Ask first, with what would become of them; then send them."""
    given: RedriveForm = visit.given
    if not given.all and not given.spot:
        raise OptionInvalid("no message is chosen. Go back, and choose at least one")
    chosen = None if given.all else [spot_of(one) for one in given.spot]
    is_wanted = given.condition(visit.principal) if given.all and given.given else None

    done = await visit.backend.run(
        lambda: visit.backend.client.redrive(
            visit.queue,
            chosen,
            where=is_wanted,
            max_messages=AT_ONCE if given.all else None,
            may=itself(visit.principal).may_put,
            dry_run=not given.sure,
        )
    )
    targets = {
        visit.principal.own_name(name) or ANOTHER: count for name, count in done.by_target.items()
    }
    return visit.shown(
        "redrive.html",
        is_done=given.sure,
        done=done,
        targets=targets,
        count=sum(targets.values()),
        given=given.given,
        spots=given.spot,
        all=given.all,
        at_once=AT_ONCE,
    )


def _letter(principal: Principal, message: Message, how: bodies.How) -> dict[str, Any]:
    """A dead letter: each of its moves with what its entry says, oldest first."""
    last, moves = headers_of(message.headers), _moves(principal, message)
    return {
        "message": message,
        "body": bodies.shown(message.body, how),
        "reason": last.reason,
        "source": last.source_queue and _source_of(principal, last.source_queue),
        "moves": moves[-MOVES:],
        "left_out": max(0, len(moves) - MOVES),
    }


def _moves(principal: Principal, message: Message) -> list[dict[str, str]]:
    """The history that repair wrote; a producer may have written anything there."""
    moves = []
    for one in history_of(message.headers):
        if not isinstance(one, dict):
            continue
        texts = {key: str(value) for key, value in one.items() if isinstance(value, str | int)}
        if "source-queue" in texts:
            texts["source-queue"] = _source_of(principal, texts["source-queue"])
        moves.append({key.replace("-", " "): text for key, text in texts.items()})
    return moves


def _source_of(principal: Principal, name: str) -> str:
    own = principal.own_name(name)
    return ANOTHER if own is None else own
