"""A client whose connections are refused: it tries for as long as it lives, and says why."""

from __future__ import annotations

import asyncio
import socket
from itertools import islice
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from cassandra import OperationTimedOut
from cassandra.policies import DCAwareRoundRobinPolicy

import cassieq_spark as cassieq
from cassieq_spark.errors import CassandraLoginFailed, CassieqError, StoreUnavailable, TlsFailed
from cassieq_spark.options import ConnectionOptions
from cassieq_spark.options.option import Login
from cassieq_spark.options.values import Secret
from cassieq_spark.server.app import Gateway
from cassieq_spark.server.settings import GatewaySettings
from cassieq_spark.store import driver
from cassieq_spark.store.translate import LoginRefused, why_shut_out
from cassieq_spark.testing import wait_until
from tests.fixtures.certificates import RUN_OUT
from tests.fixtures.security import Secured, secured
from tests.fixtures.transports import driver_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["secured"]

LOGIN = "wanderer"


@pytest.fixture
def may_log_in(secured: Secured) -> Iterator[Callable[[bool], None]]:
    """Refuse the logins of a role that may do everything else, or let them in again."""
    secured.run(
        f"CREATE ROLE {LOGIN} WITH PASSWORD = 'right' AND LOGIN = true AND SUPERUSER = true"
    )
    yield lambda may: secured.run(f"ALTER ROLE {LOGIN} WITH LOGIN = {may}")
    secured.run(f"DROP ROLE {LOGIN}")


def connections_break(client: cassieq.Client) -> None:
    """What a restart of all nodes does to a client."""
    for holder in driver_of(client._session).cluster.get_connection_holders():
        for connection in holder.get_connections():
            connection._socket.shutdown(socket.SHUT_RDWR)


def failure_of(call: Callable[[], object], client: cassieq.Client) -> CassieqError | None:
    try:
        with client._session.within(1.0):
            call()
    except CassieqError as error:
        return error
    return None


def health(gateway: Gateway) -> tuple[int, str]:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=gateway.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as asking:
            return await asking.get("/healthz")

    answer = asyncio.run(ask())
    return answer.status_code, answer.text


def test_a_login_that_was_refused_is_tried_again_and_named_until_it_is_right(
    secured: Secured, may_log_in: Callable[[bool], None], queue_name: str
) -> None:
    client = secured.connect(LOGIN, password="right")  # noqa: S106 - of a test
    gateway = Gateway(GatewaySettings(), lambda: client)
    asyncio.run(gateway.backend.connect())
    with client:
        queue = client.create_queue(queue_name)
        queue.put(b"before")
        assert (200, "alive\n") == health(gateway)

        may_log_in(False)
        connections_break(client)

        def why() -> set[str]:
            calls = (lambda: queue.put(b"x"), lambda: queue.get(1), queue.stats)
            failed = [failure_of(call, client) for call in calls]
            return {"none" if error is None else error.code for error in failed}

        wait_until(lambda: why() == {"cassandra_login_failed"}, deadline_s=60, describe=why)
        refused = failure_of(lambda: queue.put(b"x"), client)
        assert isinstance(refused, StoreUnavailable)  # so it is handled as any other outage
        assert f"refuses the login of '{LOGIN}'" in refused.message
        assert "is not permitted to log in" in refused.message
        assert (503, "cassandra_login_failed\n") == health(gateway)

        may_log_in(True)
        wait_until(lambda: why() == {"none"}, deadline_s=30, describe=why)
        assert (200, "alive\n") == health(gateway)


def test_a_certificate_that_ran_out_is_named_and_its_renewal_needs_no_restart(
    secured: Secured, tmp_path: Path, queue_name: str
) -> None:
    files: dict[str, Any] = {"ssl_key_password": None}

    def shows(**until: Any) -> None:
        signed = secured.authority.sign("client", **until)
        files["ssl_cert_file"], files["ssl_key_file"] = signed.write(tmp_path, "client")

    shows()
    with secured.connect("ops", **files) as client:
        queue = client.create_queue(queue_name)
        shows(until=RUN_OUT)
        connections_break(client)
        found: list[CassieqError | None] = []

        def is_named() -> bool:
            found[:] = [failure_of(queue.stats, client)]
            return isinstance(found[0], TlsFailed)

        wait_until(is_named, deadline_s=60, describe=lambda: found)
        assert "breaks off TLS" in str(found[0])

        shows()
        wait_until(lambda: failure_of(queue.stats, client) is None, deadline_s=30)


def test_a_lost_cas_that_was_never_sent_was_not_applied(
    secured: Secured, may_log_in: Callable[[bool], None], queue_name: str
) -> None:
    with secured.connect(LOGIN, password="right") as client:  # noqa: S106 - of a test
        may_log_in(False)
        connections_break(client)
        wait_until(
            lambda: isinstance(failure_of(client.queues, client), CassandraLoginFailed),
            deadline_s=60,
        )
        failed = failure_of(lambda: client.create_queue(queue_name), client)
        assert isinstance(failed, CassandraLoginFailed), failed


OPTIONS = ConnectionOptions(
    contact_points=(("127.0.0.1", 9042),),
    keyspace="x",
    datacenter=None,
    connect_timeout_s=1,
    login=Login(username=LOGIN, password=Secret("right")),
)


def test_a_node_that_cannot_check_a_login_refuses_nobody() -> None:
    """After a power cut the node that boots first cannot read the roles: it is an outage."""
    cannot, wrong = (
        LoginRefused(f'code=0100 [Bad credentials] message="{words}"')
        for words in (
            "Unable to perform authentication: Cannot achieve consistency level LOCAL_QUORUM",
            f"Provided username {LOGIN} and/or password are incorrect",
        )
    )

    assert why_shut_out({"a": cannot}, OPTIONS) is None
    assert isinstance(why_shut_out({"a": cannot, "b": wrong}, OPTIONS), CassandraLoginFailed)


def test_nodes_are_tried_for_ever_and_after_any_failure() -> None:
    cluster = driver.cluster(OPTIONS, DCAwareRoundRobinPolicy(""), None)
    try:
        pauses = list(islice(cluster.reconnection_policy.new_schedule(), 10_000))
        assert 10_000 == len(pauses)
        assert 5.0 >= max(pauses)
        # Else a node whose first connection times out is left out until somebody reports it.
        assert cluster.conviction_policy_factory(None).add_failure(OperationTimedOut("slow"))
    finally:
        cluster.shutdown()
