"""`Visit` is a request of the page; `Shown` and `GoTo` are its answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.server import door
from cassieq_spark.server.measured import UI
from cassieq_spark.server.rest.fields import Strict

if TYPE_CHECKING:
    from cassieq_spark.server.rates import Rates
    from cassieq_spark.server.repairing import RepairLog
    from cassieq_spark.server.ui.counted import Counts

HOME: Final = f"{UI}/"
LOGIN: Final = f"{UI}/login"


class Form(Strict):
    """A form of ours: it shows that the page that it was on is ours."""

    csrf: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """A page.

    Attributes:
        values: What the template shows.
    """

    template: str
    values: dict[str, Any]
    status: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class GoTo:
    """The visitor is sent to another page.

    Attributes:
        session: The session that begins; empty: the visitor's session ends; None: neither.
    """

    path: str
    session: str | None = None


@dataclass(slots=True, kw_only=True)
class Visit(door.Call):
    """One request.

    Attributes:
        given: An instance of the page's parameters.
    """

    repairs: RepairLog
    rates: Rates
    counts: Counts
    given: Any

    @property
    def queue_name(self) -> str:
        """The queue as the visitor knows it."""
        return self.principal.own_name(self.queue) or self.queue

    def shown(self, template: str, *, status: int = 200, **values: Any) -> Shown:
        """A page about this queue."""
        about = {"queue": self.queue_name, "path": self.path_of()}
        return Shown(template, {**about, **values}, status)

    def path_of(self, what: str = "") -> str:
        """The address of this queue, or of a page of it."""
        path = f"{UI}/queues/{self.queue_name}"
        return f"{path}/{what}" if what else path
