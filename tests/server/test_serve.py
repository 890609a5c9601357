"""``cassieq serve``: where it listens, its health, its limits, and how it ends."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

import cassieq_spark as cassieq
from cassieq_spark.testing import EmbeddedCassandra, wait_until
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.commands import CommandLine
from tests.server.conftest import Gateway


def test_it_says_where_it_listens_and_whom_it_serves(gateway: Gateway) -> None:
    (line,) = gateway.said
    assert f"Listening on {gateway.url}. No accounts are checked: everybody on this machine" in line
    assert (200, 200) == (gateway.status("/healthz"), gateway.status("/readyz"))


def test_it_refuses_to_let_other_machines_in_without_being_told(
    cassandra: EmbeddedCassandra,
) -> None:
    ended = CommandLine(cassandra.contact_points)("serve", "--host", "0.0.0.0")  # noqa: S104 - refused

    assert 2 == ended.code
    assert "--insecure" in ended.err


def test_a_body_above_the_limit_is_refused_before_it_is_read(gateway: Gateway) -> None:
    long = b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n"
    says = b"The body of a request has at most 4,194,304 bytes here. Send less at once"

    form = raw(gateway, b"POST /" + long + b"\r\n")
    as_json = raw(gateway, b"POST /" + long + b"X-Amz-Target: AmazonSQS.SendMessage\r\n\r\n")
    page = raw(gateway, b"POST /ui/login" + long + b"\r\n")

    assert [413, 413, 413] == [status for status, _, _ in (form, as_json, page)]
    assert b"<Code>RequestEntityTooLarge</Code><Message>" + says in form[2]
    assert "RequestEntityTooLarge" in json.loads(as_json[2])["__type"]
    assert all(says in body for _, _, body in (form, as_json, page))


def test_a_body_of_unknown_length_is_cut_off_at_the_limit(start: Callable[..., Gateway]) -> None:
    gateway = start("--no-repair", "--max-body", "2048")
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"

    status, _, _ = raw(
        gateway,
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + 4 * chunk,
    )

    assert 413 == status


def test_headers_above_the_limit_are_refused(gateway: Gateway) -> None:
    status, _, _ = raw(gateway, b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000)

    assert 431 == status
    assert 200 == gateway.status("/healthz")


def test_a_request_that_arrives_too_slowly_is_ended(start: Callable[..., Gateway]) -> None:
    gateway = start("--no-repair", "--request-timeout", "0.5")

    status, _, _ = raw(gateway, b"GET /healthz HTTP/1.1\r\nHos")
    assert 408 == status
    rest = raw(gateway, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc")
    assert (0, {}, b"") == rest
    assert 200 == gateway.status("/healthz")


def test_connections_above_the_limit_are_told_to_come_again(start: Callable[..., Gateway]) -> None:
    gateway = start("--no-repair", "--max-connections", "10")
    held = [connect(gateway) for _ in range(10)]
    try:
        for _ in range(50):
            status, headers, _ = raw(gateway, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (503, "1") == (status, headers["retry-after"])
    finally:
        for one in held:
            one.close()
    wait_until(lambda: gateway.status("/healthz") == 200, deadline_s=10)


def test_garbage_is_answered_and_harms_nobody(gateway: Gateway) -> None:
    assert 400 == raw(gateway, b"\x16\x03\x01\x02\x00garbage\r\n\r\n")[0]
    assert 404 == gateway.status("/a/b/c")
    assert 200 == gateway.status("/healthz")


def test_sigterm_ends_it_with_success(start: Callable[..., Gateway]) -> None:
    gateway = start()
    gateway.wait_until_ready()

    assert 0 == gateway.terminate()


@pytest.mark.fault
@pytest.mark.long
def test_it_serves_when_cassandra_comes_and_again_when_it_comes_back(
    own_cassandra: EmbeddedCassandra, start: Callable[..., Gateway]
) -> None:
    (node,) = own_cassandra.nodes
    with cassieq.connect(own_cassandra.contact_points, keyspace=KEYSPACE) as client:
        client.bootstrap()
        client.create_queue("outage")
    node.kill()
    gateway = start("--no-repair", contact_points=own_cassandra.contact_points)
    assert (200, 503) == (gateway.status("/healthz"), gateway.status("/readyz"))
    status, headers, body = gateway.ask("POST", "/", b"Action=ListQueues")
    assert (503, "1") == (status, headers["retry-after"])
    assert b"ServiceUnavailable" in body
    status, headers, body = gateway.ask("POST", "/v1/queues/outage/messages", b"x")
    assert (503, "1") == (status, headers["retry-after"])
    assert b'"code": "store_unavailable"' in body

    node.start()
    gateway.wait_until_ready()
    send(gateway)

    node.kill()
    wait_until(lambda: gateway.status("/readyz") == 503, deadline_s=60)
    node.start()
    gateway.wait_until_ready()
    send(gateway)


def send(gateway: Gateway) -> Any:
    sqs = gateway.sqs()
    try:
        url = sqs.get_queue_url(QueueName="outage")["QueueUrl"]
        return sqs.send_message(QueueUrl=url, MessageBody="x")
    finally:
        sqs.close()


def connect(gateway: Gateway) -> socket.socket:
    address = urlsplit(gateway.url)
    return socket.create_connection((address.hostname, address.port), timeout=30)


def is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    return bool(end) and (length is None or len(body) >= int(length[1]))


def raw(gateway: Gateway, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes; the status (0: the connection was closed), the headers and the body."""
    with connect(gateway) as connection:
        connection.sendall(request)
        got = b""
        try:
            while not is_whole(got):
                part = connection.recv(65_536)
                if not part:
                    break
                got += part
        except ConnectionResetError:
            pass
    head, _, body = got.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    if not lines[0]:
        return 0, {}, b""
    headers = {
        key.lower(): value.strip() for key, _, value in (one.partition(":") for one in lines[1:])
    }
    return int(lines[0].split()[1]), headers, body
