"""Several gateways on one keyspace, and clients that would wear one out."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from cassieq_spark.clock import SystemClock
from cassieq_spark.server.entrance import TOLD
from cassieq_spark.testing import wait_until
from tests.server.conftest import Gateway
from tests.server.test_serve import connect

LIMIT = 20
CONNECTIONS = 10_000
AT_ONCE = 250
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\n"
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_two_gateways_serve_one_queue_and_each_message_comes_once(
    gateway: Gateway, start: Callable[..., Gateway], name: str
) -> None:
    """What one has received, the other deletes: a receipt belongs to no gateway."""
    other = start("--no-repair")
    other.wait_until_ready()
    doors = [gateway.sqs(), other.sqs()]
    url = doors[0].create_queue(QueueName=name, Attributes={"VisibilityTimeout": "120"})["QueueUrl"]
    sent = [f"{worker}-{at}" for worker in range(4) for at in range(50)]
    seen: Counter[str] = Counter()

    def send(worker: int) -> None:
        own = [one for one in sent if one.startswith(f"{worker}-")]
        for at in range(0, len(own), 10):
            entries = [{"Id": one, "MessageBody": one} for one in own[at : at + 10]]
            doors[worker % 2].send_message_batch(QueueUrl=url, Entries=entries)

    def receive(worker: int) -> None:
        mine, others = doors[worker % 2], doors[(worker + 1) % 2]
        while seen.total() < len(sent):
            found = mine.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
            for one in found.get("Messages", []):
                seen[one["Body"]] += 1
                others.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])

    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(send, worker) for worker in range(4)]
        work += [pool.submit(receive, worker) for worker in range(4)]
        for one in work:
            one.result(120)

    assert Counter(sent) == seen
    assert {} == {
        key: count
        for key, count in doors[1]
        .get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        .items()
        if key.startswith("ApproximateNumber") and count != "0"
    }
    doors[0].delete_queue(QueueUrl=url)
    for door in doors:
        door.close()


def test_ten_thousand_connections_above_the_limit_harm_nobody(
    start: Callable[..., Gateway],
) -> None:
    gateway = start("--no-repair", "--max-connections", str(LIMIT))
    host, port = gateway.url.removeprefix("http://").split(":")
    held = [connect(gateway) for _ in range(LIMIT)]
    before = psutil.Process(gateway.process.pid).memory_info().rss

    async def one() -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(REQUEST)
            return await reader.readline()
        except ConnectionError:  # it was ended while the request was on its way
            return b""
        finally:
            writer.close()

    async def every() -> Counter[bytes]:
        answers: Counter[bytes] = Counter()
        for _ in range(CONNECTIONS // AT_ONCE):
            answers.update(await asyncio.gather(*(one() for _ in range(AT_ONCE))))
        return answers

    try:
        answers = asyncio.run(every())
        assert CONNECTIONS == answers.total()
        assert answers.keys() <= {REFUSED, b""}
        # Half of those who may be told at once, as they come from one address; the rest is closed.
        assert answers[REFUSED] >= CONNECTIONS // AT_ONCE * TOLD // 2
        # Whoever was there before is served.
        for one_held in held:
            one_held.sendall(REQUEST)
            assert one_held.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        for one_held in held:
            one_held.close()
    wait_until(lambda: gateway.status("/healthz") == 200, deadline_s=10)
    assert psutil.Process(gateway.process.pid).memory_info().rss < before + 100_000_000


def test_clients_that_do_not_read_their_answers_hold_up_no_other(
    gateway: Gateway, sqs: Any, name: str
) -> None:
    url = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "0"})["QueueUrl"]
    for _ in range(5):
        sqs.send_message(QueueUrl=url, MessageBody="x" * 200_000)
    body = json.dumps({"QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 1}).encode()
    request = (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.0\r\n"
        b"X-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    slow: list[socket.socket] = []
    try:
        for _ in range(50):
            slow.append(connect(gateway))
            slow[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            slow[-1].sendall(request * 3)  # they ask for more than the network keeps for them
        began = SystemClock().monotonic()
        for at in range(20):
            sqs.send_message(QueueUrl=url, MessageBody=f"{at}")
        assert SystemClock().monotonic() - began < 60
        assert 200 == gateway.status("/readyz")
    finally:
        for one in slow:
            one.close()
    wait_until(lambda: gateway.status("/healthz") == 200, deadline_s=10)
    sqs.delete_queue(QueueUrl=url)
