"""PostgreSQL as a queue: a table, ``FOR UPDATE SKIP LOCKED``, and the statements of pgmq.

The statements are those that pgmq's functions ``create``, ``send``, ``send_batch``, ``read`` and
``delete`` run (https://github.com/pgmq/pgmq), written here again. They are prepared and sent by the
client itself, which is cheaper than a call of a PL/pgSQL function that plans them each time. A body
is ``bytea``, not ``jsonb``: these are bytes.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bench.peers.peer import ADDRESS, Got, PeerMissing, as_user, folder_of, free_port, running
from cassieq_spark.clock import SystemClock

try:
    import psycopg
    from psycopg import sql
except ImportError:  # told by `server`
    psycopg = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

USER = "postgres"
POLL_S = 0.1
"""The pause of pgmq's ``read_with_poll``."""

VISIBILITY_S = 30
_INSTALLED = Path("/usr/lib/postgresql")  # as Debian has it, a folder for each release

_SETTINGS = {
    "shared_buffers": "512MB",  # half of Cassandra's heap; the default is 128 MB
    "max_wal_size": "4GB",
    "max_connections": "100",
}

_CREATE = (
    """CREATE TABLE {queue} (
        msg_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
        read_ct int DEFAULT 0 NOT NULL,
        enqueued_at timestamp with time zone DEFAULT now() NOT NULL,
        vt timestamp with time zone NOT NULL,
        message bytea,
        headers jsonb)""",
    "CREATE INDEX ON {queue} (vt ASC)",
)
_SEND = (
    "INSERT INTO {queue} (vt, message, headers) VALUES (clock_timestamp(), %b, NULL) "
    "RETURNING msg_id"
)
_SEND_BATCH = (
    "INSERT INTO {queue} (vt, message, headers) "
    "SELECT clock_timestamp(), unnest(%b::bytea[]), NULL RETURNING msg_id"
)
_READ = """WITH cte AS (
        SELECT msg_id FROM {queue} WHERE vt <= clock_timestamp()
        ORDER BY msg_id ASC LIMIT %s FOR UPDATE SKIP LOCKED)
    UPDATE {queue} m SET vt = clock_timestamp() + %s * interval '1 second', read_ct = read_ct + 1
    FROM cte WHERE m.msg_id = cte.msg_id
    RETURNING m.msg_id, m.read_ct, m.enqueued_at, m.vt, m.message, m.headers"""
_DELETE = "DELETE FROM {queue} WHERE msg_id = %s RETURNING msg_id"
_DELETE_BATCH = "DELETE FROM {queue} WHERE msg_id = ANY(%s) RETURNING msg_id"

# What pgmq.enable_notify_insert adds, without its limit to a notification each 250 ms.
_NOTIFY = (
    """CREATE OR REPLACE FUNCTION tell_listeners() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_notify('pgmq.' || TG_TABLE_NAME || '.' || TG_OP, NULL); RETURN NEW; END $$""",
    """CREATE CONSTRAINT TRIGGER tell_listeners AFTER INSERT ON {queue} DEFERRABLE
    FOR EACH ROW EXECUTE PROCEDURE tell_listeners()""",
)


@contextmanager
def server() -> Iterator[str]:
    """A server in a temporary folder; what a client connects to.

    Raises:
        PeerMissing: PostgreSQL or psycopg is not there, or it does not start.
    """
    if psycopg is None:
        raise PeerMissing("psycopg is not installed: pip install 'psycopg[binary]'")
    programs, port = _programs(), free_port()
    dsn = f"host={ADDRESS} port={port} user={USER} dbname=postgres"
    with folder_of(USER) as folder:
        data = folder / "data"
        made = subprocess.run(
            as_user(
                USER,
                [
                    str(programs / "initdb"),
                    *("--pgdata", str(data), "--username", USER, "--auth", "trust"),
                    *("--encoding", "UTF8", "--locale", "C.UTF-8"),
                ],
            ),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise PeerMissing(f"initdb failed: {made.stderr.strip().splitlines()[-1:]}")
        command = [str(programs / "postgres"), "-p", str(port), "-h", ADDRESS, "-k", str(folder)]
        for name, value in _SETTINGS.items():
            command += ["-c", f"{name}={value}"]
        command += ["-D", str(data)]
        # SIGINT is its fast stop.
        with running(
            as_user(USER, command), folder=folder, is_up=lambda: _answers(dsn), stop=signal.SIGINT
        ):
            yield dsn


def version(dsn: str) -> str:
    """As the server says it."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SHOW server_version").fetchone()
        return f"PostgreSQL {row[0]}, psycopg {psycopg.__version__}" if row else ""


class Client:
    """One connection. A context manager.

    Args:
        is_synchronous: Whether a commit waits for its fsync.
        notify: New queues tell their listeners of each insert, and a get waits for that.
    """

    def __init__(self, dsn: str, *, is_synchronous: bool = True, notify: bool = False) -> None:
        commit = "on" if is_synchronous else "off"
        self.connection = psycopg.connect(
            dsn, autocommit=True, options=f"-c synchronous_commit={commit}"
        )
        self._notify = notify

    def create_queue(self, name: str) -> Queue:
        """As pgmq does, without its table of archived messages."""
        queue = self.queue(name)
        for statement in (*_CREATE, *(_NOTIFY if self._notify else ())):
            queue.execute(statement)
        return queue

    def queue(self, name: str) -> Queue:
        """One that is there."""
        return Queue(self.connection, f"q_{name}", notify=self._notify)

    def __enter__(self) -> Self:
        """It is connected already."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Disconnect."""
        self.connection.close()


class Queue:
    """One table."""

    def __init__(self, connection: psycopg.Connection[Any], table: str, *, notify: bool) -> None:
        self._connection = connection
        self._table = table
        self._notify = notify
        if notify:
            connection.execute(f'LISTEN "pgmq.{table}.INSERT"')
        self._statements: dict[str, sql.Composed] = {}

    def execute(self, statement: str, *params: object) -> psycopg.Cursor[Any]:
        """One of the statements above, as a transaction of its own, prepared."""
        composed = self._statements.get(statement)
        if composed is None:
            composed = sql.SQL(statement).format(queue=sql.Identifier(self._table))
            self._statements[statement] = composed
        return self._connection.execute(composed, params, prepare=bool(params), binary=True)

    def put_many(self, bodies: Sequence[bytes]) -> None:
        """``send`` or ``send_batch``."""
        if len(bodies) == 1:
            self.execute(_SEND, bodies[0])
        else:
            self.execute(_SEND_BATCH, list(bodies))

    def get(self, max_messages: int = 10, *, wait: float = 0) -> list[Got]:
        """``read``, and again each `POLL_S` or when the server says that something was put."""
        clock = SystemClock()
        deadline = clock.monotonic() + wait
        while True:
            rows = self.execute(_READ, max_messages, VISIBILITY_S).fetchall()
            left_s = deadline - clock.monotonic()
            if rows or left_s <= 0:
                return [Got(row[4], row[0]) for row in rows]
            if self._notify:
                list(self._connection.notifies(timeout=left_s, stop_after=1))
            else:
                clock.wait(min(POLL_S, left_s))

    def ack(self, messages: Sequence[Got]) -> None:
        """``delete``.

        Raises:
            RuntimeError: One was not there any more.
        """
        if len(messages) == 1:
            deleted = self.execute(_DELETE, messages[0].handle).fetchall()
        else:
            deleted = self.execute(_DELETE_BATCH, [one.handle for one in messages]).fetchall()
        if len(deleted) != len(messages):
            raise RuntimeError(f"{len(messages)} deleted, {len(deleted)} were there")

    def delete(self) -> None:
        """The table, too."""
        self.execute("DROP TABLE {queue}")

    def close(self) -> None:
        """Hear no more of it."""
        if self._notify:
            self._connection.execute("UNLISTEN *")


def _programs() -> Path:
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(_INSTALLED.glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise PeerMissing("no initdb is on PATH or in /usr/lib/postgresql: apt install postgresql")


def _answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
