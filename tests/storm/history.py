"""The history of a storm: who did what and when, written by each process for itself.

A line of JSON each, by one write that SIGKILL cannot take back: what is about to be done is written
before it, what came of it after. An operation without an end may have happened or not. Times are
seconds of the machine's monotonic clock, which is the same in all of its processes and is nobody's
to set; clocks that a storm sets wrong are not used.

    connected   {}                             a program begins its work
    puts        {op, keys, delay, ttl, shared, far}
                                               before; ``put`` {op, stored, unknown} after it; what
                                               is shared, others put too, by its deduplication key;
                                               what is far, waits in a due lane
    cancels     {op, key}                      before; ``cancelled`` {op, key, done} after it
    got         {begun, queue, hold, named}    after a get; named: [key, id, delivery count] each
    acks        {op, queue, named}             before; ``acked`` {op, verdicts} after it
    extends     {op, queue, named, hold}       before; ``extended`` {op} if it was said to be done
    gives       {queue, named}                 before a release or a rejection
    leased      {begun, stream, seq, hold, run}
                                               the source has claimed what this offset names, or
                                               taken it over; without run: any run
    rows        {stream, batch, seq, run, queue, named}   what foreachBatch was given, and its
                                               batch's offset
    done        {stream, batch, run}           that call of foreachBatch returned
    settled     {stream, seq}                  the source has acked up to this offset
    late        {stream, queue, lane, bucket, size}
                                               but here it had lost a lease before; without lane:
                                               the queue has but one; without size: `BUCKET_SIZE`
    redrives    {}                             before dead letters are sent back
    committed   {sink, batches, rows}          in Spark's commit log at the end; rows in each
    unanswered  {statement, how}               a CAS whose answer the storm has taken away
    failed      {error}                        an operation or a query that ended by an error
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any, Final

from cassieq_spark.clock import SystemClock

Entry = dict[str, Any]
"""One line; its keys above, and ``at``, ``who``, ``what``."""

SUFFIX: Final = ".history"

BUCKET_SIZE: Final = 60
"""Of a storm's queues: small, so that many buckets are sealed, drained and dropped."""


class Recorder:
    """One process's side. Thread-safe: each entry is one write to a file opened for appending."""

    def __init__(self, directory: str | Path, who: str) -> None:
        """A file of its own: a process that was started anew goes on in the same one."""
        self.who = who
        self._file = os.open(
            Path(directory) / f"{who}{SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        self._ops = itertools.count()
        self.now = SystemClock().monotonic

    def say(self, what: str, **fields: Any) -> None:
        """One entry, now."""
        entry = {"at": self.now(), "who": self.who, "what": what, **fields}
        os.write(self._file, f"{json.dumps(entry)}\n".encode())

    def begin(self, what: str, **fields: Any) -> str:
        """An entry before an operation; its name, for the entry after it."""
        op = f"{self.who}.{os.getpid()}.{next(self._ops)}"
        self.say(what, op=op, **fields)
        return op

    def close(self) -> None:
        """The file."""
        os.close(self._file)


def read(directory: Path, who: str = "*") -> list[Entry]:
    """All entries of all processes, or of one of them, in order of time.

    Of each file the last line may be cut.
    """
    entries: list[Entry] = []
    for file in sorted(directory.glob(f"{who}{SUFFIX}")):
        text = file.read_text("utf-8", errors="replace")
        entries += [json.loads(line) for line in text.splitlines()[: text.count("\n")]]
    return sorted(entries, key=lambda entry: entry["at"])
