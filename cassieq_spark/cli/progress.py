"""Show on a terminal that work goes on: what is being done, and for how long already."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show ``what`` with the time that has passed, on a terminal only; then nothing is left of it.

    The block gets a function that names the next step. Ask no questions within the block.
    """
    shown = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with shown:
        task = shown.add_task(what, total=None)
        yield lambda step: shown.update(task, description=step)
