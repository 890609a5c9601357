"""Let Spark prepare the first rows of a task while the task is admitted (design 8)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa


class Ahead:
    """The record batches of an input partition, the first of which is on its way already.

    Spark makes rows when a task asks for them: by then it has opened its files, and made the first
    10,000 rows of them, for as long as an admission takes.

    The thread is a daemon. A task that is refused ends its worker, and must not wait for a row that
    may take hours.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Ask for the first batch."""
        self._batches = batches
        self._first: pa.RecordBatch | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._pull, name="cassieq-ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """All batches in their order, in the caller's thread.

        Raises:
            Exception: What the input raised instead of its first batch.
        """
        self.wait()
        if self._error is not None:
            raise self._error
        first, self._first = self._first, None
        if first is not None:
            yield first
            del first  # it may be 64 MB, and all others are to come
            yield from self._batches

    def wait(self) -> None:
        """Return once nothing reads the input any more: Spark's worker is about to, itself."""
        self._thread.join()

    def _pull(self) -> None:
        try:
            self._first = next(self._batches, None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the rows are read
            self._error = error
