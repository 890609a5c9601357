"""A node with logins, grants and TLS: who gets in, what each part may do, what is told of it."""

from __future__ import annotations

import logging
import re
import socket
import ssl
import threading
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from cassandra import Unauthorized

import cassieq_spark as cassieq
from cassieq_spark.accounts.admin import AccountAdmin
from cassieq_spark.accounts.authenticator import Authenticator
from cassieq_spark.accounts.keys import MasterKey, write_new
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import CassandraLoginFailed, PutAmbiguous, TlsFailed, UsageError
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.dedup import Entry
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.lanes import DueLane
from cassieq_spark.queue import schedule
from cassieq_spark.queue.put.dedup import happened
from cassieq_spark.queue.sink import transaction
from cassieq_spark.repair.lead import leading
from cassieq_spark.store import portal, statements
from cassieq_spark.store.statements import Kind
from cassieq_spark.store.tables import sinks
from cassieq_spark.testing import ManualClock
from tests.fixtures.certificates import RUN_OUT, Authority, Signed
from tests.fixtures.queues import Door, Put, door_of
from tests.fixtures.security import (
    KEY_PASSWORD,
    KEYSPACE,
    PARTS,
    Secured,
    documented_cql,
    password_of,
    secured,
)
from tests.fixtures.transports import driver_of, prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cassieq_spark.store.session import CqlSession
    from cassieq_spark.testing import EmbeddedCassandra

__all__ = ["secured"]

GRANT = re.compile(r"GRANT (?P<permission>[A-Z]+) ON (?P<resource>.+) TO cassieq_(?P<part>\w+)")

GRANTS = [
    found
    for statements_of_part in documented_cql().values()
    for cql in statements_of_part
    if (found := GRANT.fullmatch(cql)) is not None and found["part"] != "repair"
]

SECRETS = (KEY_PASSWORD, *(password_of(login) for login in PARTS))


@pytest.fixture(autouse=True)
def _lists_beside_their_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of large batches are, which need grants of their own."""
    monkeypatch.setattr(sinks, "LIST_IN_ROW_BYTES", 1)


@pytest.fixture
def named(secured: Secured, queue_name: str) -> str:
    """A queue that the operator made."""
    with secured.connect("ops") as client:
        client.create_queue(queue_name, bucket_size=10, dedup_window=60)
    return queue_name


# --- what each part does


def produce(door: Door) -> None:
    """Two transactions, a put, one that is scheduled, one too late for its period, and a put that
    finds its bucket being sealed. A key that is put twice, and one whose bucket was dropped.
    """
    assert door.queue.put(b"c", dedup_key="c") == door.queue.put(b"c", dedup_key="c")
    door.queue.put(b"far", delay=2 * 86_400)
    long_ago = DueLane(1, 0)
    ended = door.lane.due_lane(long_ago)
    assert not portal.run(schedule.ensure(ended, long_ago))
    entry = Entry(lane=ended.lane_id, bucket=BucketNo(0), offset=0, message_id=new_uuid(), put_us=0)
    assert not portal.run(happened(door.lane, entry))
    portal.run(door.store.heartbeats.beat(door.queue.name, ttl_s=60))
    door.put_batch(0, b"a")
    door.put_batch(1, b"b")
    bucket = door.reserve()
    door.write(bucket, 0, b"late", delay_s=3_600)
    portal.run(door.lane.buckets.insert(bucket, rules.sealing(now_us=door.lane.clock.now_us())))
    assert Put.OK is door.prove(bucket, Runs.span(0, 0))


def consume(door: Door) -> list[bytes]:
    """All there is, the first of it with another body."""
    door.queue.peek()
    (first,) = door.queue.get(1)
    door.queue.extend(first, 60)
    door.queue.release(door.queue.update(first, body=b"new"))
    found = []
    while messages := door.queue.get(100):
        door.queue.ack(messages)
        found += [one.body for one in messages]
    return sorted(found)


def test_each_part_does_its_work_with_the_documented_grants_alone(
    secured: Secured, named: str
) -> None:
    with secured.connect("shop") as client:
        produce(door_of(client, named, dedup_window=60))
    with secured.connect("billing") as client:
        door = door_of(client, named, dedup_window=60)
        found = consume(door)
        stats = door.queue.stats()
    assert 3 == len(found)
    assert 1 == len({b"a", b"b", b"c"} - set(found))
    assert b"new" in found
    assert (0, 0, 1, 1) == (stats.visible, stats.in_flight, stats.delayed, stats.scheduled)


def _operate(secured: Secured, _: str) -> None:
    with secured.connect("ops", keyspace=f"k{new_uuid().hex}") as client:
        client.bootstrap()


def _produce(secured: Secured, name: str) -> None:
    with secured.connect("shop") as client:
        produce(door_of(client, name, dedup_window=60))


def _consume(secured: Secured, name: str) -> None:
    """Of a batch that is committed and not rolled forward: the consumer reads the sink's rows."""

    async def dies(*_: object, **__: object) -> None:
        """Nothing is done any more."""

    with secured.connect("shop") as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction, "roll_forward", dies)
        door_of(client, name, dedup_window=60).put_batch(0, b"a")
    with secured.connect("billing") as client:
        assert [b"new"] == consume(door_of(client, name, dedup_window=60))


def _check_a_key(secured: Secured, name: str) -> None:
    """What a gateway asks of accounts: it reads a key, and notes its use."""
    master_key = MasterKey.load(secured.directory / "master.key")
    account = re.sub(r"[^a-z0-9]", "-", name.lower())[-50:].strip("-")
    with secured.connect("ops") as client:
        admin = AccountAdmin(client.store)
        made = portal.run(admin.create(account, master_key))
    try:
        with secured.connect("door") as client:
            checker = Authenticator(client.store, master_key)
            key = portal.run(checker.key(made.key_id))
            assert key is not None
            assert account == key.account
            portal.run(client.store.key_uses.record(made.key_id, client.store.clock.now_us()))
    finally:
        with secured.connect("ops") as client:
            portal.run(AccountAdmin(client.store).delete(account, with_queues=True))


WORK: dict[str, Callable[[Secured, str], None]] = {
    "operator": _operate,
    "producer": _produce,
    "consumer": _consume,
    "gateway": _check_a_key,
}


@pytest.fixture(autouse=True, scope="module")
def _master_key(secured: Secured) -> None:
    write_new(secured.directory / "master.key")


def _case(grant: re.Match[str]) -> Any:
    """As pytest takes it."""
    name = f"{grant['part']}-{grant['permission']}-{grant['resource'].removeprefix('TABLE ')}"
    return pytest.param(grant, id=name)


@pytest.mark.parametrize("grant", [_case(grant) for grant in GRANTS])
def test_each_documented_grant_is_needed_and_named_when_it_is_missing(
    secured: Secured, named: str, grant: re.Match[str]
) -> None:
    resource = grant["resource"].removeprefix("TABLE ").lower()
    lacks = rf"lacks {grant['permission']} on (table )?{resource} "
    secured.run(grant[0].replace("GRANT", "REVOKE", 1).replace(" TO ", " FROM "))
    try:
        # What is refused when messages are written already does not take them back.
        with pytest.raises((UsageError, PutAmbiguous), match=lacks) as refused:
            WORK[grant["part"]](secured, named)
    finally:
        secured.run(grant[0])

    assert grant[0].partition(" ON ")[0] in str(refused.value)


def test_a_gateway_passes_messages_on_and_checks_keys_with_its_grants_alone(
    secured: Secured, named: str
) -> None:
    _check_a_key(secured, named)
    with secured.connect("door") as client:
        queue = client.queue(named)
        queue.put(b"one")
        queue.ack(queue.get(1))
        with pytest.raises(UsageError, match=r"lacks MODIFY on (table )?cassieq\.queue "):
            client.create_queue(f"{named}.more")


def test_a_gateway_with_the_part_of_repair_does_all_that_is_asked_of_one(
    secured: Secured, queue_name: str
) -> None:
    with secured.connect("front") as client:
        client.create_queue(f"{queue_name}.dead")
        client.create_queue(queue_name, dead_letter_queue=f"{queue_name}.dead")
        client.alter_queue(queue_name, visibility_timeout=60)
        client.label_queue(queue_name, {"owner": "shop"})
        queue = client.queue(queue_name)
        queue.put_many([b"1", b"2", b"3"])
        first, second = queue.get(2)
        queue.ack(first)
        queue.extend(second, 120)
        queue.release(queue.update(second, body=b"new"))
        assert 2 == len(queue.peek())
        (dead,) = queue.get(1)
        queue.reject(dead, reason="no")
        assert [] == client.repair(queue_name).problems
        assert 1 == client.redrive(f"{queue_name}.dead").moved
        assert 2 == queue.purge()
        with portal.entered(leading(client.store, f"scan {queue_name}")) as lead:
            assert lead is not None
        client.delete_queue(queue_name)
        client.delete_queue(f"{queue_name}.dead")


def test_repair_moves_the_dead_and_drops_the_done_with_its_grants_alone(
    secured: Secured, queue_name: str
) -> None:
    with secured.connect("ops") as client:
        client.create_queue(f"{queue_name}.dead")
        client.create_queue(queue_name, max_deliveries=1, dead_letter_queue=f"{queue_name}.dead")
    with secured.connect("shop") as client:
        client.queue(queue_name).put_many([b"1", b"2"])
    with secured.connect("billing") as client:
        assert 2 == len(client.queue(queue_name).get())
    with secured.connect("fixer") as client:
        clock = client._store.clock = ManualClock(client._store.clock)
        clock.advance(3_600)
        moved = client.repair(queue_name)
        clock.advance(3_600)
        dropped = client.repair(queue_name)
    assert [] == moved.problems + dropped.problems
    assert 2 == sum(one.moved_dead for one in moved.queues)
    assert 1 <= sum(one.dropped for one in moved.queues + dropped.queues)


def test_repair_may_run_every_statement_but_of_accounts_keys_and_the_schemas_version(
    secured: Secured,
) -> None:
    with secured.connect("fixer") as client:
        refused = {
            statement.name
            for statement in statements.every_statement()
            if not _may_run(client._session, statement)
        }

    # Accounts are the operator's and the gateway's.
    of_accounts = {
        statement.name
        for statement in statements.every_statement()
        if re.search(r"\.(account|account_key|key_use)\b", statement.cql)
        and not statement.cql.startswith("SELECT")
    }
    of_bootstrap = {"write_meta", "probe_timestamp", "read_paxos_variant"}
    assert {*of_bootstrap, "take_key", *of_accounts} == refused


def _may_run(session: CqlSession, statement: statements.Statement) -> bool:
    """On a lane that nobody has."""
    values: dict[str, object] = {
        "uuid": new_uuid(),
        "text": "nobody",
        "varchar": "nobody",
        "blob": b"",
        "boolean": False,
        "list<uuid>": [],
        "list<bigint>": [1],
        "list<text>": [],
        "list<varchar>": [],
    }
    is_prepared = statement.kind is not Kind.SYSTEM
    columns = prepared(session, statement).column_metadata if is_prepared else []
    params = [values.get(one.type.cql_parameterized_type(), 1) for one in columns]
    try:
        if statement.kind is Kind.CAS:
            portal.run(session.run_once(statement, params))
        else:
            portal.run(session.run(statement, params))
    except (UsageError, Unauthorized):  # of a CAS the driver's own error comes out
        return False
    return True


# --- logins


def test_a_wrong_password_is_refused_by_the_users_name_and_shown_nowhere(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "guess-9b1f"

    with pytest.raises(CassandraLoginFailed, match="refuses the login of 'billing'") as refused:
        secured.connect("billing", password=wrong)

    assert "and/or password are incorrect" in str(refused.value)
    told = "".join(traceback.format_exception(refused.value)) + _told(caplog)
    assert "cassandra.connection" in {record.name for record in caplog.records}
    assert [] == [secret for secret in (wrong, *SECRETS) if secret in told]


def test_a_node_that_wants_a_login_is_told_from_one_that_refuses_it(secured: Secured) -> None:
    with pytest.raises(CassandraLoginFailed, match="asks for a login") as refused:
        cassieq.connect(secured.node.contact_points, **secured.files)  # type: ignore[arg-type]  # text all
    assert "Set option 'username' and option 'password'" in str(refused.value)


def test_a_role_that_may_not_log_in_is_refused(secured: Secured) -> None:
    secured.run("CREATE ROLE sleeper WITH PASSWORD = 'x' AND LOGIN = false")
    with pytest.raises(CassandraLoginFailed, match="refuses the login of 'sleeper'"):
        secured.connect("sleeper", password="x")  # noqa: S106 - of a test


def test_work_with_a_login_and_a_key_leaves_no_secret_in_logs_or_reprs(
    secured: Secured, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    with secured.connect("shop") as client:
        door = door_of(client, named, dedup_window=60)
        produce(door)
        session = client._session
        shown = [repr(one) for one in (client, session, session.options, door.queue, door.lane)]
        shown += [repr(vars(session)), repr(vars(driver_of(session).cluster))]

    told = _told(caplog) + "".join(shown)
    assert "cassandra.cluster" in {record.name for record in caplog.records}
    assert [] == [secret for secret in SECRETS if secret in told]


def _told(caplog: pytest.LogCaptureFixture) -> str:
    """Text, arguments and attributes of every record, of the driver's too."""
    return caplog.text + "".join(repr(vars(record)) for record in caplog.records)


# --- TLS


def test_a_client_without_tls_is_told_that_the_node_has_it(secured: Secured) -> None:
    with pytest.raises(TlsFailed, match="speaks only TLS, and this client does not"):
        cassieq.connect(secured.node.contact_points, username="shop", password=password_of("shop"))


def test_large_bodies_come_and_go_whole_by_tls(secured: Secured, named: str) -> None:
    """Connections move more at a time than a TLS record holds."""
    bodies = [bytes([at]) * (at * 700_000 + 1) for at in range(1, 8)]
    with secured.connect("shop") as shop:
        shop.queue(named).put_many(bodies)
    with secured.connect("billing") as billing:
        found = [message.body for message in billing.queue(named).get(10, wait=10)]

    assert bodies == sorted(found, key=len)


def test_a_client_with_tls_is_told_that_the_node_has_none(
    secured: Secured, cassandra: EmbeddedCassandra
) -> None:
    with pytest.raises(TlsFailed, match="does not speak TLS, but 'ssl_ca_file' demands it"):
        cassieq.connect(cassandra.contact_points, **secured.files)  # type: ignore[arg-type]  # text all


def test_a_client_without_a_certificate_is_told_to_show_one(secured: Secured) -> None:
    with pytest.raises(TlsFailed, match="this client shows no certificate"):
        secured.connect("shop", ssl_cert_file=None, ssl_key_file=None, ssl_key_password=None)


@pytest.mark.parametrize("authority", ["another", "the node's own, long ago"])
def test_a_client_whose_certificate_does_not_hold_is_told_to_look_at_it(
    secured: Secured, tmp_path: Path, authority: str
) -> None:
    signed = (
        Authority("another").sign("client")
        if authority == "another"
        else secured.authority.sign("client", until=RUN_OUT)
    )
    certificate, key = signed.write(tmp_path, "client")

    with pytest.raises(TlsFailed, match=r"breaks off TLS .* Has that certificate expired\?"):
        secured.connect("shop", ssl_cert_file=certificate, ssl_key_file=key, ssl_key_password=None)


def test_a_node_of_an_unknown_ca_gets_no_password(secured: Secured, tmp_path: Path) -> None:
    other = Authority("another").write(tmp_path / "ca.pem")

    with pytest.raises(TlsFailed, match="Is 'ssl_ca_file' the CA that signed it"):
        secured.connect("shop", ssl_ca_file=other)


def test_a_name_instead_of_an_address_is_resolved_before_certificates_are_compared(
    secured: Secured,
) -> None:
    port = secured.node.nodes[0].port

    with cassieq.connect(
        f"localhost:{port}", username="ops", password=password_of("ops"), **secured.files
    ) as client:
        assert KEYSPACE == client._session.keyspace


def test_a_nodes_certificate_that_ran_out_is_refused(tmp_path: Path) -> None:
    authority = Authority("own")
    expired = authority.sign("node", address="127.0.0.1", until=RUN_OUT)

    with (
        _showing(expired, tmp_path) as port,
        pytest.raises(TlsFailed, match=r"certificate has expired\). Renew it"),
    ):
        cassieq.connect(f"127.0.0.1:{port}", ssl_ca_file=authority.write(tmp_path / "ca.pem"))


def test_a_nodes_certificate_for_another_address_is_refused(tmp_path: Path) -> None:
    authority = Authority("own")
    other = authority.sign("node", address="127.0.0.9")
    arguments: dict[str, Any] = {
        "ssl_ca_file": authority.write(tmp_path / "ca.pem"),
        "connect_timeout": 1,
    }

    with _showing(other, tmp_path) as port:
        with pytest.raises(TlsFailed, match="certificates that name their addresses"):
            cassieq.connect(f"127.0.0.1:{port}", **arguments)
        with pytest.raises(
            TlsFailed, match="breaks off TLS"
        ):  # believed now: it has no more to say
            cassieq.connect(f"127.0.0.1:{port}", ssl_verify_hostname=False, **arguments)


@contextmanager
def _showing(signed: Signed, directory: Path) -> Iterator[int]:
    """A port that shows this certificate and hangs up: TLS ends before the first byte of CQL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*signed.write(directory, "node"))
    is_over = threading.Event()

    def serve(server: socket.socket) -> None:
        while not is_over.is_set():
            try:
                plain, _ = server.accept()
                with plain, context.wrap_socket(plain, server_side=True):
                    pass
            except OSError:
                continue  # nobody came yet, or whoever came did not like the certificate

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        thread = threading.Thread(target=serve, args=(server,), name="shows-a-certificate")
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            is_over.set()
            thread.join()
