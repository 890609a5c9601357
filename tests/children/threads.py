"""Several threads of a child, which live and die together."""

from __future__ import annotations

import os
import threading
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def together(works: Iterable[Callable[[], None]]) -> None:
    """Run each in a thread of its own; the first that ends ends the process, and says by what."""
    threads = [threading.Thread(target=_to_its_end, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _to_its_end(work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException:  # noqa: BLE001 - the runner must hear of any
        traceback.print_exc()
    os._exit(1)
