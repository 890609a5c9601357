"""Long polls of a gateway: what becomes of them when their clients go, and when it ends."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from cassieq_spark.testing import wait_until
from tests.server.conftest import Gateway


def poll(sqs: Any, url: str, wait_s: int) -> list[str]:
    found = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=wait_s).get("Messages", [])
    return [one["Body"] for one in found]


def test_a_client_that_disconnects_leaves_its_message_to_the_next(
    gateway: Gateway, sqs: Any, name: str
) -> None:
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    address = urlsplit(gateway.url)
    for _ in range(5):
        with socket.create_connection((address.hostname, address.port)) as gone:
            gone.sendall(
                b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
    sqs.send_message(QueueUrl=url, MessageBody="x")

    (got,) = sqs.receive_message(
        QueueUrl=url, WaitTimeSeconds=10, AttributeNames=["ApproximateReceiveCount"]
    )["Messages"]
    assert {"ApproximateReceiveCount": "1"} == got["Attributes"]
    sqs.delete_queue(QueueUrl=url)


def test_sigterm_answers_those_who_wait(start: Callable[..., Gateway], name: str) -> None:
    gateway = start("--no-repair")
    gateway.wait_until_ready()
    sqs = gateway.sqs(max_pool_connections=20)
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    with ThreadPoolExecutor(10) as pool:
        polls = [pool.submit(poll, sqs, url, 20) for _ in range(10)]
        wait_until(lambda: not any(one.done() for one in polls), deadline_s=1)
        threading.Event().wait(1)  # they have arrived
        assert 0 == gateway.terminate()
        assert 10 * [[]] == [one.result(10) for one in polls]
    sqs.close()


@pytest.mark.invariant("I1")
def test_a_gateway_that_is_killed_under_load_loses_nothing_it_has_acknowledged(
    start: Callable[..., Gateway], sqs: Any, name: str
) -> None:
    """And what was leased through it comes back."""
    url = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "2"})["QueueUrl"]
    gateway = start("--no-repair")
    gateway.wait_until_ready()
    acknowledged: list[str] = []

    def send(worker: int) -> None:
        doomed = gateway.sqs()
        for batch in range(10_000):
            ids = [f"{worker}-{batch}-{n}" for n in range(10)]
            try:
                done = doomed.send_message_batch(
                    QueueUrl=url, Entries=[{"Id": one, "MessageBody": one} for one in ids]
                )
                doomed.receive_message(QueueUrl=url, MaxNumberOfMessages=5)
            except Exception:  # noqa: BLE001 - whatever a killed server causes
                break
            acknowledged.extend(one["Id"] for one in done["Successful"])
        doomed.close()

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(send, worker) for worker in range(4)]
        wait_until(lambda: len(acknowledged) >= 200, deadline_s=60)
        gateway.kill()
        for one in workers:
            one.result(60)

    seen: set[str] = set()

    def drained() -> bool:
        found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        for one in found.get("Messages", []):
            seen.add(one["Body"])
            sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
        return seen >= set(acknowledged)

    wait_until(drained, deadline_s=120, describe=lambda: str(len(set(acknowledged) - seen)))
    sqs.delete_queue(QueueUrl=url)
