"""Look at messages, which stay in their queue; show dead letters, and send them back."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

from pydantic import Field

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.dead_letter import PREFIX, headers_of, history_of
from cassieq_spark.model.ids import LaneId, QueueName
from cassieq_spark.model.rights import Right
from cassieq_spark.queue.find import open_lane, sources_of
from cassieq_spark.queue.inspect.letters import conditions
from cassieq_spark.queue.inspect.visible import Spot, page
from cassieq_spark.server.rest.fields import Strict
from cassieq_spark.server.ui import bodies
from cassieq_spark.server.ui.page import Form, Shown
from cassieq_spark.server.ui.session import GRANTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.model.rights import Principal
    from cassieq_spark.queue.message import Message
    from cassieq_spark.server.ui.page import Visit

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

FIRST_CHARACTERS: Final = 60

_SPOT: Final = re.compile(
    r"(?P<lane>[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}):(?P<id>[0-9]{1,19})"
)


class Peek(Strict):
    """Which messages are shown, and how.

    Attributes:
        show: What bodies are shown as.
        after: The spot of the last message of the page before.
    """

    show: bodies.How = "auto"
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A message on a page.

    Attributes:
        first: How its body begins, in one line.
        spot: Names it, and its place in the order of the pages.
    """

    message: Message
    body: bodies.Shown
    tag: str | None
    group: str | None
    headers: dict[str, str]
    first: str
    spot: str


async def show(visit: Visit) -> Shown:
    """A page of visible messages."""
    given: Peek = visit.given
    after = None if not given.after else spot_of(given.after)

    async def work() -> list[Message]:
        lane = await open_lane(visit.backend.store, QueueName(visit.queue))
        return await page(lane, TOGETHER + 1, after=after)

    found = await visit.backend.reading(lambda: visit.backend.asked(work))
    shown = [seen(one, given.show) for one in found[:TOGETHER]]
    return visit.shown(
        "messages.html",
        messages=shown,
        show=given.show,
        after=given.after,
        next=shown[-1].spot if len(found) > TOGETHER else None,
    )


def seen(message: Message, how: bodies.How) -> Seen:
    """A message as it is shown: what the browser gets is text, and all of it can be seen."""
    body = bodies.shown(message.body, how)
    return Seen(
        message=message,
        body=body,
        tag=None if message.tag is None else bodies.visible(message.tag),
        group=None if message.group is None else bodies.visible(message.group),
        headers={
            bodies.visible(name): bodies.visible(value[: bodies.MOST_TEXT])
            for name, value in sorted(message.headers.items())
        },
        first=" ".join(body.text[: 4 * FIRST_CHARACTERS].split())[:FIRST_CHARACTERS],
        spot=f"{message.lane}:{message.id}",
    )


def spot_of(text: str) -> Spot:
    """Read what `seen` has written.

    Raises:
        OptionInvalid: It is something else.
    """
    found = _SPOT.fullmatch(text)
    if found is None:
        raise OptionInvalid(f"{text[:80]!r} is not the place of a message. Begin at the first page")
    return Spot(LaneId(UUID(found["lane"])), int(found["id"]))


# --- dead letters ---------------------------------------------------------------------------------


class Filter(Strict):
    """Which letters; empty: any.

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
        """What was said."""
        texts = {name: getattr(self, name) for name in Filter.model_fields}
        return {name: text for name, text in texts.items() if text}

    def condition(self, principal: Principal) -> Callable[[Message], bool]:
        """It as a function.

        Raises:
            OptionInvalid: A time is malformed.
        """
        where = [f"reason={self.reason}"] if self.reason else []
        where += [f"tag={self.tag}"] if self.tag else []
        where += [f"group={self.group}"] if self.group else []
        where += [f"source-queue={principal.full_name(self.source)}"] if self.source else []
        return conditions(where, self.died_before or None, self.died_after or None, mark="died ")


class Letters(Filter):
    """Which letters are shown, and how.

    Attributes:
        after: The spot of the last message that the page before has looked at.
    """

    show: bodies.How = "auto"
    after: str = ""


class RedriveForm(Filter, Form):
    """Which letters are redriven.

    Attributes:
        spot: Those that were chosen.
        all: Whether all that match are meant instead.
        sure: Whether the visitor has seen how many they are.
    """

    spot: Annotated[list[str], Field(max_length=TOGETHER, default_factory=list)]
    all: bool = False
    sure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead letter.

    Attributes:
        moves: Each with what its entry says, oldest first.
        left_out: How many older moves there are.
    """

    seen: Seen
    reason: str | None
    source: str | None
    deliveries: int | None
    moves: list[dict[str, str]]
    left_out: int


async def show_dead(visit: Visit) -> Shown:
    """A page of letters."""
    given: Letters = visit.given
    is_wanted = given.condition(visit.principal)
    after = None if not given.after else spot_of(given.after)

    may_redrive = visit.principal.may(Right.REDRIVE, visit.queue)

    async def has_sources() -> bool:
        return bool(await sources_of(visit.backend.store, visit.queue))

    async def work() -> tuple[list[Message], Spot | None]:
        lane = await open_lane(visit.backend.store, QueueName(visit.queue))
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
        next=None if at is None else f"{at.lane}:{at.id}",
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
            at_most=AT_ONCE if given.all else None,
            may=_itself(visit.principal).may_put,
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


def _itself(principal: Principal) -> Principal:
    """The key that has logged in: a session leaves out 'put', so that a stolen one puts nothing."""
    return replace(principal, limits=None) if principal.limits == GRANTS else principal


def _letter(principal: Principal, message: Message, how: bodies.How) -> Letter:
    last = headers_of(message.headers)
    moves = _moves(principal, message)
    one = seen(message, how)
    for name in [name for name in one.headers if name.startswith(PREFIX)]:
        del one.headers[name]
    return Letter(
        seen=one,
        reason=None if last.reason is None else bodies.visible(last.reason),
        source=None if last.source_queue is None else _source_of(principal, last.source_queue),
        deliveries=last.deliveries,
        moves=moves[-MOVES:],
        left_out=max(0, len(moves) - MOVES),
    )


def _moves(principal: Principal, message: Message) -> list[dict[str, str]]:
    """The history that repair wrote; a producer may have written anything there."""
    moves = []
    for one in history_of(message.headers):
        if not isinstance(one, dict):
            continue
        texts = {key: str(value) for key, value in one.items() if isinstance(value, str | int)}
        if "source-queue" in texts:
            texts["source-queue"] = _source_of(principal, texts["source-queue"])
        moves.append(
            {
                bodies.visible(key.replace("-", " ")): bodies.visible(text[: bodies.MOST_TEXT])
                for key, text in texts.items()
            }
        )
    return moves


def _source_of(principal: Principal, name: str) -> str:
    own = principal.own_name(name)
    return ANOTHER if own is None else bodies.visible(own)
