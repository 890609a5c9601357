"""Metrics of a gateway: its requests, what it counts in all queues, and who may see them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError

import cassieq_spark as cassieq
from cassieq_spark.entropy import new_uuid
from cassieq_spark.exporter.collector import registry_of
from cassieq_spark.exporter.scan import Scanner
from cassieq_spark.options import queue_name
from cassieq_spark.queue.find import open_lane
from cassieq_spark.repair.lead import leading
from cassieq_spark.store import portal
from cassieq_spark.testing import EmbeddedCassandra, wait_until
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.commands import CommandLine, end
from tests.fixtures.faults import Away, FaultyStore
from tests.fixtures.metrics import scrape, scrape_until, scraped
from tests.server.conftest import Gateway
from tests.server.test_serve import raw

MESSAGES = "cassieq_queue_messages"
COUNT = "cassieq_http_request_duration_seconds_count"
ERRORS = "cassieq_http_errors_total"
ENTRIES = "cassieq_http_entry_errors_total"
METRICS_AT = re.compile(r"Metrics are at (?P<url>\S+)")


@pytest.fixture
def own_client(cassandra: EmbeddedCassandra) -> Iterator[cassieq.Client]:
    """A keyspace of the test's own: nobody else leads there, and it has no other queues."""
    keyspace = f"watched_{new_uuid().hex[:12]}"
    with cassieq.connect(cassandra.contact_points, keyspace=keyspace) as client:
        client.bootstrap()
        yield client


def exporter(
    cassandra: EmbeddedCassandra, started: list[Any], *arguments: str, keyspace: str = KEYSPACE
) -> str:
    """Start one; returns where its metrics are."""
    command = CommandLine(cassandra.contact_points, keyspace=keyspace)
    process = command.start("exporter", "--port", "0", *arguments)
    started.append(process)
    assert process.stderr is not None
    while line := process.stderr.readline().decode():
        if found := METRICS_AT.search(line):
            return found["url"]
    pytest.fail(f"the exporter ended with {process.wait(30)}")


@pytest.fixture
def started() -> Iterator[list[Any]]:
    """The processes of a test, which end with it."""
    found: list[Any] = []
    yield found
    for process in found:
        if process.poll() is None:
            process.kill()
        end(process)


def test_requests_are_timed_by_door_and_operation(
    gateway: Gateway, sqs: Any, rest: httpx.Client, queue: str
) -> None:
    url, name = f"{gateway.url}/metrics", queue.rpartition("/")[2]
    before = scrape(url)

    queue_url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    sqs.send_message(QueueUrl=queue_url, MessageBody="one")
    sqs.send_message(QueueUrl=queue_url, MessageBody="two")
    assert 201 == rest.post(f"{queue}/messages", content=b"three").status_code
    assert 200 == gateway.status("/ui/?prefix=none")
    assert 200 == gateway.status("/ui/style.css")

    after = scrape(url)
    for door, operation, more in (
        ("sqs", "SendMessage", 2),
        ("sqs", "GetQueueUrl", 1),
        ("ui", "overview", 1),
        ("ui", "file", 1),
        ("rest", "putMessage", 1),
    ):
        labels = {"api": door, "operation": operation}
        assert (before.value(COUNT, **labels) or 0) + more == after.value(COUNT, **labels)
    put = "cassieq_messages_put_total"
    assert (before.value(put, queue=name) or 0) + 3 == after.value(put, queue=name)
    assert after.value("cassieq_http_request_duration_seconds_sum", **labels)


def test_errors_are_counted_by_door_code_and_status(
    gateway: Gateway, sqs: Any, rest: httpx.Client
) -> None:
    url = f"{gateway.url}/metrics"
    before = scrape(url)

    with pytest.raises(ClientError):
        sqs.get_queue_url(QueueName="no-such-queue")
    assert 404 == rest.get("/queues/no-such-queue").status_code
    assert 405 == rest.post("/queues/no-such-queue").status_code
    assert (
        413
        == raw(gateway, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n")[
            0
        ]
    )
    assert 404 == gateway.status("/ui/queues/no-such-queue")
    assert 400 == gateway.ask("POST", "/", headers={"X-Amz-Target": "AmazonSQS.NoSuchAction"})[0]

    after = scrape(url)
    for door, code, status in (
        ("sqs", "QueueDoesNotExist", "400"),
        ("rest", "queue_not_found", "404"),
        ("rest", "method_not_allowed", "405"),
        ("ui", "queue_not_found", "404"),
        ("sqs", "RequestEntityTooLarge", "413"),
        ("sqs", "UnknownOperationException", "400"),
    ):
        labels = {"api": door, "code": code, "status": status}
        assert (before.value(ERRORS, **labels) or 0) + 1 == after.value(ERRORS, **labels), code


def test_entries_that_fail_in_a_batch_that_is_answered_200_are_counted(
    gateway: Gateway, sqs: Any, rest: httpx.Client, queue: str
) -> None:
    url = f"{gateway.url}/metrics"
    queue_url = sqs.get_queue_url(QueueName=queue.rpartition("/")[2])["QueueUrl"]
    rest.post(f"{queue}/messages", content=b"one")
    (given,) = rest.post(f"{queue}/messages/next").json()["messages"]
    stale, forged = given["receipt"], "no receipt"
    rest.post(f"{queue}/release", json={"receipts": [stale]})
    before = scrape(url)

    sent = sqs.send_message_batch(
        QueueUrl=queue_url,
        Entries=[
            {"Id": "good", "MessageBody": "two"},
            {"Id": "bad", "MessageBody": "three", "DelaySeconds": 901},
        ],
    )
    assert ["bad"] == [one["Id"] for one in sent["Failed"]]
    both = [{"Id": "stale", "ReceiptHandle": stale}, {"Id": "forged", "ReceiptHandle": forged}]
    assert 2 == len(sqs.delete_message_batch(QueueUrl=queue_url, Entries=both)["Failed"])
    later = [{**one, "VisibilityTimeout": 60} for one in both]
    changed = sqs.change_message_visibility_batch(QueueUrl=queue_url, Entries=later)
    assert 2 == len(changed["Failed"])
    for verb in ("ack", "release"):
        assert 200 == rest.post(f"{queue}/{verb}", json={"receipts": [stale, forged]}).status_code

    after = scrape(url)
    for door, code, status, more in (
        ("sqs", "InvalidParameterValue", "400", 2),  # the delay, and an expired receipt
        ("sqs", "ReceiptHandleIsInvalid", "400", 2),
        ("sqs", "MessageNotInflight", "400", 1),
        ("rest", "receipt_expired", "409", 2),
        ("rest", "receipt_invalid", "400", 2),
    ):
        labels = {"api": door, "code": code, "status": status}
        assert (before.value(ENTRIES, **labels) or 0) + more == after.value(ENTRIES, **labels), code
    assert before.samples(ERRORS) == after.samples(ERRORS), "the requests have succeeded"


def test_no_label_of_a_request_is_what_a_caller_wrote(gateway: Gateway) -> None:
    """Else whoever makes up names makes the gateway and Prometheus grow for ever."""
    made_up = f"made-up-{new_uuid().hex}"

    gateway.status(f"/{made_up}/{made_up}")
    gateway.status(f"/{made_up}")
    gateway.status(f"/v1/{made_up}")
    gateway.status(f"/ui/{made_up}")
    gateway.status(f"/ui/queues/{made_up}")
    gateway.ask("GET", f"/v1/queues/{made_up}")
    gateway.ask("POST", f"/?Action={made_up}")
    gateway.ask("POST", "/", b"{}", {"X-Amz-Target": f"AmazonSQS.{made_up}"})

    answer = gateway.ask("GET", "/metrics")[2].decode()
    assert COUNT in answer
    assert made_up not in answer


def test_who_waits_is_shown_while_waiting(gateway: Gateway, sqs: Any, queue: str) -> None:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    url = f"{gateway.url}/metrics"
    queue_url = sqs.get_queue_url(QueueName=queue.rpartition("/")[2])["QueueUrl"]
    with ThreadPoolExecutor(2) as pool:
        polls = [
            pool.submit(sqs.receive_message, QueueUrl=queue_url, WaitTimeSeconds=20)
            for _ in range(2)
        ]
        shown = scrape_until(url, "cassieq_long_polls_waiting", 2)
        assert 2 == shown.value("cassieq_http_requests_in_flight", api="sqs")
        for _ in polls:
            sqs.send_message(QueueUrl=queue_url, MessageBody="end")
        wait_until(lambda: all(one.done() for one in polls), deadline_s=30)
    scrape_until(url, "cassieq_long_polls_waiting", 0)
    scrape_until(url, "cassieq_http_requests_in_flight", 0, api="sqs")


def test_connections_that_are_refused_are_counted(start: Callable[..., Gateway]) -> None:
    gateway = start("--no-repair", "--metrics-port", "0")
    assert 431 == raw(gateway, b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000)[0]

    found = scrape(f"{gateway.url}/metrics")

    assert 1 == found.value("cassieq_http_refused_total", status="431")


def test_with_accounts_metrics_are_at_the_port_for_operators_only(
    start: Callable[..., Gateway], master_key_file: Any
) -> None:
    """They name the queues of all accounts, so no caller of the doors may see them."""
    gateway = start(
        "--no-repair", "--auth", "--master-key-file", str(master_key_file), "--metrics-port", "0"
    )
    found = METRICS_AT.search(gateway.said[0])
    assert found is not None
    gateway.wait_until_ready()

    assert 404 == gateway.status("/metrics")
    assert 401 == gateway.ask("GET", "/v1/queues")[0]
    errors = {"api": "rest", "code": "authentication_failed", "status": "401"}
    assert 1 == scrape(found["url"]).value(ERRORS, **errors)
    assert 0 == gateway.terminate()


def test_the_queues_are_counted_by_state(
    cassandra: EmbeddedCassandra, own_client: cassieq.Client, started: list[Any]
) -> None:
    own_client.create_queue("dead-letters")
    queue = own_client.create_queue(
        "orders", dead_letter_queue="dead-letters", max_deliveries=5, priorities=2, fairness=0
    )
    queue.put_many([b"urgent"] * 3, priority=1)
    queue.put_many([b"normal"] * 4)
    queue.put(b"later", delay=60)
    queue.put(b"much later", delay=86_400)
    queue.reject(queue.get(1))
    held = queue.get(2)
    assert 2 == len(held)

    queue.pause(1)

    url = exporter(cassandra, started, keyspace=own_client.keyspace)
    found = scrape_until(url, MESSAGES, 4, queue="orders", state="visible")

    states = {"visible": 4, "in_flight": 2, "delayed": 1, "scheduled": 1, "dead": 1}
    assert states == {
        dict(key)["state"]: n for key, n in found.samples(MESSAGES, queue="orders").items()
    }
    by_priority = found.samples("cassieq_queue_visible_messages", queue="orders")
    assert {"0": 4, "1": 0} == {dict(key)["priority"]: n for key, n in by_priority.items()}
    paused = found.samples("cassieq_queue_paused", queue="orders")
    assert {"0": 0, "1": 1} == {dict(key)["priority"]: n for key, n in paused.items()}
    assert 1 == found.value("cassieq_queue_info", queue="orders", dead_letter_queue="dead-letters")
    assert 0 < (found.value("cassieq_queue_oldest_message_age_seconds", queue="orders") or 0) < 300
    assert 0 == found.value("cassieq_queue_oldest_message_age_seconds", queue="dead-letters")
    assert 2 == found.value("cassieq_scan_queues", outcome="counted")
    assert 0 == found.value("cassieq_scan_queues", outcome="unanswered")
    assert found.value("cassieq_scan_duration_seconds")
    assert 1 == found.value("cassieq_scan_leader")


def test_the_figures_of_a_deleted_queue_go_with_it(
    cassandra: EmbeddedCassandra, own_client: cassieq.Client, started: list[Any]
) -> None:
    own_client.create_queue("gone")
    own_client.create_queue("stays")
    url = exporter(cassandra, started, "--scan-interval", "1s", keyspace=own_client.keyspace)
    scrape_until(url, MESSAGES, 0, queue="gone", state="visible")

    own_client.delete_queue("gone")

    found = scrape_until(url, "cassieq_scan_queues", 1, outcome="counted")
    assert "gone" not in str(found)
    assert 0 == found.value(MESSAGES, queue="stays", state="visible")


def test_one_process_counts_for_all_and_another_goes_on_when_it_ends(
    cassandra: EmbeddedCassandra, own_client: cassieq.Client, started: list[Any]
) -> None:
    own_client.create_queue("orders").put(b"one")
    where = {"keyspace": own_client.keyspace}
    first = exporter(cassandra, started, "--scan-interval", "1s", **where)
    scrape_until(first, MESSAGES, 1, queue="orders", state="visible")
    second = exporter(cassandra, started, "--scan-interval", "1s", **where)

    # It is scraped, so it asks for the lead again and again, and does not get it: it reads who has
    # it, and would try to take it only if that process had been silent.
    asked = "cassieq_statements_total"
    wait_until(lambda: (scrape(second).value(asked, statement="read_lead") or 0) > 2, deadline_s=60)
    assert 0 == scrape(second).value("cassieq_scan_leader")
    assert {} == scrape(second).samples(MESSAGES)
    assert {} == scrape(second).samples("cassieq_scan_age_seconds")
    assert 1 == scrape(first).value("cassieq_scan_leader")

    started[0].terminate()
    assert 0 == started[0].wait(30)
    found = scrape_until(second, MESSAGES, 1, queue="orders", state="visible")
    assert 1 == found.value("cassieq_scan_leader")


def test_a_gateway_that_nobody_scrapes_does_not_lead(own_client: cassieq.Client) -> None:
    scanner = Scanner(1)
    scanner.start(own_client.store)
    try:
        with portal.entered(leading(own_client.store, f"scan {own_client.datacenter}")) as lead:
            assert lead is not None, "nobody has asked for the figures"
        scanner.note_scrape()
        wait_until(lambda: scanner.last is not None, deadline_s=60)
        with portal.entered(leading(own_client.store, f"scan {own_client.datacenter}")) as lead:
            assert lead is None
    finally:
        scanner.close(30)
    assert scanner.last is None
    with portal.entered(leading(own_client.store, f"scan {own_client.datacenter}")) as lead:
        assert lead is not None, "it was given up"


def test_a_queue_that_does_not_answer_is_told_and_holds_up_no_other(
    own_client: cassieq.Client,
) -> None:
    """It has no figures: those of before may be wrong by now, and an alert says so."""
    own_client.create_queue("away").put(b"one")
    own_client.create_queue("there").put(b"one")
    away = portal.run(open_lane(own_client.store, queue_name("away")))
    scanner = Scanner(1)
    registry = registry_of(scanner)
    with FaultyStore().on(own_client.store.session) as faults:
        faults.unreachable(0, lane=away.lane_id, how=Away.UNAVAILABLE)
        scanner.note_scrape()
        scanner.start(own_client.store)
        try:
            wait_until(lambda: scanner.last is not None, deadline_s=90)
            found = scraped(registry)
            assert 1 == found.value("cassieq_scan_queues", outcome="unanswered")
            assert 1 == found.value(MESSAGES, queue="there", state="visible")
            assert {} == found.samples(MESSAGES, queue="away")

            faults.reachable()
            wait_until(
                lambda: scraped(registry).value(MESSAGES, queue="away", state="visible") == 1,
                deadline_s=90,
            )
            assert 0 == scraped(registry).value("cassieq_scan_queues", outcome="unanswered")
        finally:
            scanner.close(30)


def test_a_leader_whose_lease_ran_out_shows_no_figures(
    own_client: cassieq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped for a while: another process may count by now, and nothing counts twice."""
    scanner = Scanner(60)
    scanner.note_scrape()
    scanner.start(own_client.store)
    try:
        wait_until(lambda: scanner.last is not None, deadline_s=60)
        clock = own_client.store.clock
        monotonic = clock.monotonic
        monkeypatch.setattr(clock, "monotonic", lambda: monotonic() + 40)

        assert (scanner.last, scanner.is_leader) == (None, False)
    finally:
        monkeypatch.undo()
        scanner.close(30)


def test_an_exporter_may_begin_before_cassandra_and_ends_with_0(started: list[Any]) -> None:
    command = CommandLine("127.0.0.1:1", keyspace=KEYSPACE)
    process = command.start("exporter", "--port", "0")
    started.append(process)
    assert process.stderr is not None
    said = process.stderr.readline().decode()
    found = METRICS_AT.search(said)
    assert found is not None, said

    assert 0 == scrape(found["url"]).value("cassieq_scan_leader")
    assert b"exporter_waits" in process.stderr.readline()
    process.terminate()
    assert 0 == process.wait(60)
