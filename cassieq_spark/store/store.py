"""`Store` is one session with all its tables; `queue` works on it."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cassieq_spark.model.ids import LaneId
from cassieq_spark.model.sizes import BYTES_IN_FLIGHT
from cassieq_spark.options import ConnectionOptions
from cassieq_spark.recent import Recent
from cassieq_spark.store import portal, schema
from cassieq_spark.store.rows import Rows
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.tables.accounts import AccountKeys, Accounts, KeyUses
from cassieq_spark.store.tables.at_work import Heartbeats, Leaders
from cassieq_spark.store.tables.buckets import Buckets
from cassieq_spark.store.tables.dedup import Dedup, Kept
from cassieq_spark.store.tables.lanes import Everything, Monotons, Schedules
from cassieq_spark.store.tables.messages import ChunkWriter, Messages, Overlays, Unread
from cassieq_spark.store.tables.pointers import Hints, PointerTable, Seen, WrittenHints
from cassieq_spark.store.tables.queues import Queues
from cassieq_spark.store.tables.sinks import Sinks
from cassieq_spark.store.tables.table import Base
from cassieq_spark.store.tables.timetable import Timetable

LANES: Final = 1_000
"""The number of unused lanes that a client remembers."""


class LaneTables:
    """The tables of one lane."""

    def __init__(self, store: Store, lane: LaneId) -> None:
        self.monotons = Monotons(store, lane)
        self.messages = Messages(store, lane, store.unread)
        self.overlays = Overlays(store, lane)
        self.pointers = PointerTable(store, lane, store.seen.get_or_make(lane, Seen))
        self.hints = Hints(store, lane, self.pointers, store.written_hints)
        self.buckets = Buckets(store, lane, store.rows, self.hints)
        self.kept = Kept(store, lane)


class Store(Base):
    """The tables of a session: those of all queues, and by `lane` those of one lane."""

    def __init__(self, session: CqlSession) -> None:
        super().__init__(session)
        self.seen: Recent[LaneId, Seen] = Recent(LANES)
        self.rows = Rows(session, self.sender, lambda: self.clock)
        self.written_hints = WrittenHints()
        self.unread = Unread(clock=lambda: self.clock)
        self.queues = Queues(self)
        self.sinks = Sinks(self)
        self.accounts = Accounts(self)
        self.account_keys = AccountKeys(self)
        self.key_uses = KeyUses(self)
        self.everything = Everything(self)
        self.schedules = Schedules(self)
        self.timetable = Timetable(self)
        self.dedup = Dedup(self)
        self.heartbeats = Heartbeats(self)
        self.leaders = Leaders(self)

    def lane(self, lane: LaneId) -> LaneTables:
        """Return the tables of one lane."""
        return LaneTables(self, lane)

    def chunk_writer(
        self, *, writes_in_flight: int, bytes_in_flight: int = BYTES_IN_FLIGHT
    ) -> ChunkWriter:
        """Make a writer of chunks for any lanes, with one limit on writes in flight."""
        return ChunkWriter(
            self.session, writes_in_flight=writes_in_flight, bytes_in_flight=bytes_in_flight
        )


PATIENCE_S: Final = 100.0
"""The time that Spark's statements are retried longer than others: nobody waits at a prompt.
With `session.DEADLINE_S` this outlasts a node's restart, some two minutes. Otherwise the query
would fail and begin its batch anew."""

# One store per process and cluster: Spark reuses its Python workers, so each connects once.
_shared: dict[ConnectionOptions, Store] = {}
_shared_lock = threading.Lock()


def shared(options: ConnectionOptions) -> Store:
    """Return this process's store for these options; it is kept until the process ends.

    Raises:
        StoreUnavailable: See `store.session.CqlSession`.
        SchemaMissing: See `store.schema.check`.
    """
    with _shared_lock:
        store = _shared.get(options)
        if store is None:
            store = _connect(options)
            store.session.patience_s = PATIENCE_S
            _shared[options] = store
        return store


@contextmanager
def opened(options: ConnectionOptions) -> Iterator[Store]:
    """Open a store of one's own for a block; raises as `shared` does."""
    store = _connect(options)
    try:
        yield store
    finally:
        store.session.close()


def _connect(options: ConnectionOptions) -> Store:
    session = CqlSession(options)
    try:
        portal.run(schema.check(session))
    except BaseException:
        session.close()
        raise
    return Store(session)


def close_shared() -> None:
    """Disconnect this process's shared stores."""
    with _shared_lock:
        stores = list(_shared.values())
        _shared.clear()
    for store in stores:
        store.session.close()


def _forget_after_fork() -> None:
    """Drop shared stores in a forked child: it must not use its parent's sockets and locks."""
    global _shared_lock  # noqa: PLW0603 - the parent may have held the lock when it forked
    _shared_lock = threading.Lock()
    _shared.clear()


atexit.register(close_shared)
os.register_at_fork(after_in_child=_forget_after_fork)
