"""What the programs share: a connection that comes up some time, and threads that die together."""

from __future__ import annotations

import os
import threading
import traceback
from typing import TYPE_CHECKING

import cassieq_spark as cassieq
from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import StoreError
from tests.storm import dials
from tests.storm.history import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


RETRY_S = 0.8


def recorder(
    directory: str, who: str, seed: int, *, dials_file: str | None, loses: bool
) -> Recorder:
    """Of a program; its sessions obey these dials from now on."""
    record = Recorder(directory, who)
    if dials_file is not None:
        dials.install(dials_file, seed, loses=loses, record=record)
    return record


def opened(contact_points: str, keyspace: str, names: Iterable[str]) -> list[cassieq.Queue]:
    """Open these queues. A node may be away just now."""
    while True:
        try:
            client = cassieq.connect(contact_points, keyspace=keyspace)
            return [client.queue(name) for name in names]
        except StoreError:
            SystemClock().wait(RETRY_S)


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
