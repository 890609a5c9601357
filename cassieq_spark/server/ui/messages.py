"""Look at messages, which stay in their queue."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.ids import LaneId, QueueName
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.inspect.visible import Spot, page
from cassieq_spark.server.rest.fields import Strict
from cassieq_spark.server.ui import bodies
from cassieq_spark.server.ui.page import Shown

if TYPE_CHECKING:
    from cassieq_spark.queue.message import Message
    from cassieq_spark.server.ui.page import Visit

TOGETHER: Final = 20
"""The messages of one page: all their bodies are in memory while it is made."""

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
    return Shown(
        template="messages.html",
        values={
            "queue": visit.queue_name,
            "path": visit.path_of(),
            "messages": shown,
            "show": given.show,
            "after": given.after,
            "next": shown[-1].spot if len(found) > TOGETHER else None,
        },
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
