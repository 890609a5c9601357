"""`PAGES` lists what there is below `/ui`, and nowhere else."""

from __future__ import annotations

from typing import Final

from cassieq_spark.model.rights import Right
from cassieq_spark.server.ui import dead, destroy, login, messages, queues, repairs
from cassieq_spark.server.ui.page import Form, Page

_QUEUE: Final = "/queues/{queue}"

PAGES: Final[tuple[Page, ...]] = (
    Page(
        name="overview",
        method="GET",
        path="/",
        right=Right.INFO,
        run=queues.overview,
        parameters=queues.Listing,
    ),
    Page(
        name="login",
        method="GET",
        path="/login",
        right=None,
        run=login.show,
        parameters=login.Login,
        is_open=True,
    ),
    Page(
        name="logIn",
        method="POST",
        path="/login",
        right=None,
        run=login.log_in,
        parameters=login.LoginForm,
        is_open=True,
    ),
    Page(
        name="logOut",
        method="POST",
        path="/logout",
        right=None,
        run=login.log_out,
        parameters=Form,
        is_open=True,
    ),
    Page(
        name="queue",
        method="GET",
        path=_QUEUE,
        right=Right.INFO,
        run=queues.show,
        parameters=queues.Look,
    ),
    Page(
        name="messages",
        method="GET",
        path=f"{_QUEUE}/messages",
        right=Right.READ,
        run=messages.show,
        parameters=messages.Peek,
    ),
    Page(
        name="deadLetters",
        method="GET",
        path=f"{_QUEUE}/dead-letters",
        right=Right.READ,
        run=dead.show,
        parameters=dead.Letters,
    ),
    Page(
        name="redrive",
        method="POST",
        path=f"{_QUEUE}/redrive",
        right=Right.REDRIVE,
        run=dead.redrive,
        parameters=dead.RedriveForm,
    ),
    Page(
        name="askPurge",
        method="GET",
        path=f"{_QUEUE}/purge",
        right=Right.PURGE,
        run=destroy.ask_purge,
    ),
    Page(
        name="purge",
        method="POST",
        path=f"{_QUEUE}/purge",
        right=Right.PURGE,
        run=destroy.purge,
        parameters=destroy.Sure,
    ),
    Page(
        name="askDelete",
        method="GET",
        path=f"{_QUEUE}/delete",
        right=Right.DELETE,
        run=destroy.ask_delete,
    ),
    Page(
        name="delete",
        method="POST",
        path=f"{_QUEUE}/delete",
        right=Right.DELETE,
        run=destroy.delete,
        parameters=destroy.Sure,
    ),
    Page(
        name="repair",
        method="GET",
        path="/repair",
        right=Right.INFO,
        run=repairs.show,
    ),
)
