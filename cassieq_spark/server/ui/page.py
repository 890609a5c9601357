"""`Page` is one address of the page; `Visit` is a request for it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.server import door
from cassieq_spark.server.rest.fields import Nothing, Strict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pydantic import BaseModel

    from cassieq_spark.model.rights import Right
    from cassieq_spark.server.rates import Rates
    from cassieq_spark.server.repairing import RepairLog
    from cassieq_spark.server.ui.counted import Counts

PREFIX: Final = "/ui"
HOME: Final = f"{PREFIX}/"
LOGIN: Final = f"{PREFIX}/login"
QUEUE: Final = "/queues/{queue}"


class Form(Strict):
    """A form of ours: it shows that the page that it was on is ours."""

    csrf: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A page.

    Attributes:
        values: What the template shows.
    """

    template: str
    values: dict[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class GoTo:
    """The visitor is sent to another page.

    Attributes:
        session: The session that begins; empty: the visitor's session ends; None: neither.
    """

    path: str
    session: str | None = None


async def _nothing(_: Visit) -> Shown:
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Page:
    """One address: it decorates the function that shows it.

    Attributes:
        path: Below ``/ui``. ``{queue}`` is a parameter.
        right: What the visitor must be allowed on the queue, or on some queue.
        parameters: The model of the query of a GET, or of the form of a POST.
        is_open: Whether one needs no login.
    """

    name: str
    method: str
    path: str
    right: Right | None
    parameters: type[BaseModel] = Nothing
    _: KW_ONLY
    is_open: bool = False
    run: Callable[[Visit], Awaitable[Shown | GoTo]] = _nothing

    def __call__(self, run: Callable[[Visit], Awaitable[Shown | GoTo]]) -> Page:
        """The page that a function shows."""
        return replace(self, run=run)


@dataclass(slots=True, kw_only=True)
class Visit(door.Call):
    """One request.

    Attributes:
        queue: The queue of the path, as the client knows it; empty if the path has none.
        given: An instance of the page's parameters.
    """

    repairs: RepairLog
    rates: Rates
    counts: Counts
    queue: str
    given: Any

    @property
    def queue_name(self) -> str:
        """The queue as the visitor knows it."""
        return self.principal.own_name(self.queue) or self.queue

    def path_of(self, what: str = "") -> str:
        """The address of this queue, or of a page of it."""
        path = f"{PREFIX}/queues/{self.queue_name}"
        return f"{path}/{what}" if what else path
