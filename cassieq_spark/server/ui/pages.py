"""`PAGES` lists what there is below `/ui`, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cassieq_spark.server.ui import messages, queues, repairs, session

if TYPE_CHECKING:
    from cassieq_spark.server.ui.page import Page

PAGES: Final[tuple[Page, ...]] = (
    queues.overview, session.ask, session.log_in, session.log_out, queues.show, messages.show,
    messages.show_dead, messages.redrive, queues.ask_purge, queues.purge, queues.ask_delete,
    queues.delete, repairs.show,
)  # fmt: skip
