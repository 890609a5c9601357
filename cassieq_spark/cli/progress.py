"""Show on a terminal how far the work is: what is being done, how much of it, for how long."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Shown
from rich.table import Column

from cassieq_spark.cli.output import show_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import TaskID

    from cassieq_spark.repair.progress import Progress


class Work:
    """What is shown of one piece of work; its methods are the callbacks of the library."""

    def __init__(self, shown: Shown, task: TaskID, what: str) -> None:
        self._shown = shown
        self._task = task
        self._what = show_text(what)
        self._at = ""

    def begin(self, step: str) -> None:
        """Show the next step; it is not known how long it takes."""
        # A new task: rich has no way to make a total unknown again.
        self._shown.remove_task(self._task)
        self._task = self._shown.add_task(show_text(step), total=None, at="")

    def on_progress(self, now: Progress) -> None:
        """Show how far a pass over queues is."""
        what = self._what
        if now.queue:
            self._at = f"{now.buckets_done:,} of {now.buckets:,} buckets"
        if now.queue and now.queues > 1:
            of_many = f"{now.queues_done + 1:,} of {now.queues:,} queues"
            what = show_text(f"{what}: {now.queue} ({of_many})")
        self._shown.update(
            self._task, description=what, completed=now.share, total=1.0, at=self._at
        )

    def on_bytes(self, done: int, total: int) -> None:
        """Show how much of a download is there."""
        at = f"{decimal(done)} of {decimal(total)}"
        self._shown.update(self._task, completed=done, total=total, at=at)


@contextmanager
def working(what: str) -> Iterator[Work]:
    """Show ``what`` with the time that has passed, on a terminal only; then nothing is left of it.

    Until the block tells how far it is, the bar only shows that work goes on. Ask no questions
    within the block.
    """
    shown = Shown(
        SpinnerColumn(),
        # Only this may be cut: a name is long, and how far it is must be seen.
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[at]}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        expand=True,
        disable=not sys.stderr.isatty(),
    )
    with shown:
        yield Work(shown, shown.add_task(show_text(what), total=None, at=""), what)
