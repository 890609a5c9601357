"""Spans around verbs and requests, and the context that goes along with a message."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

import cassieq_spark as cassieq
from cassieq_spark.errors import CasAmbiguous, QueueDeleted, ReceiptExpired
from cassieq_spark.model.sizes import MAX_EXTRA_BYTES
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.message import proof_of
from cassieq_spark.server.app import Gateway
from cassieq_spark.server.serve import GatewayServer
from cassieq_spark.server.settings import GatewaySettings
from cassieq_spark.testing import EmbeddedCassandra, wait_until
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.faults import Away, FaultyStore
from tests.server.conftest import sqs_at

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Spans:
    """The spans that this process has ended since the test began."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [one for one in self.all if one.name == name]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found


def shown(context: SpanContext) -> str:
    """As a message carries it."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def id_of(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return shown(context)


def linked(span: ReadableSpan) -> set[str]:
    return {shown(link.context) for link in span.links}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    made = Spans()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: made.provider)
    yield made
    made.provider.shutdown()


@pytest.fixture
def orders(client: cassieq.Client, name: str) -> Iterator[Queue]:
    made = client.create_queue(name)
    yield made
    client.delete_queue(name)


def test_a_message_carries_the_context_of_its_put_to_its_get(spans: Spans, orders: Queue) -> None:
    with spans.provider.get_tracer("program").start_as_current_span("program") as program:
        message_id = orders.put(b"one", headers={"own": "header"})
    (message,) = orders.get()
    orders.ack(message)

    put = spans.one(f"put {orders.name}")
    assert {"own": "header", "traceparent": id_of(put)} == message.headers
    assert SpanKind.PRODUCER is put.kind
    assert put.parent is not None
    assert program.get_span_context().span_id == put.parent.span_id
    common = {"messaging.system": "cassieq", "messaging.destination.name": orders.name}
    counted = {**common, "messaging.batch.message_count": 1}
    assert {
        **counted, "messaging.operation.name": "put", "messaging.operation.type": "send",
    } == put.attributes  # fmt: skip
    get = spans.one(f"get {orders.name}")
    assert {id_of(put)} == linked(get)
    assert {
        **counted, "messaging.operation.name": "get", "messaging.operation.type": "receive",
        "messaging.message.id": message_id,
    } == get.attributes  # fmt: skip
    assert get.start_time is not None
    assert get.end_time is not None
    assert get.start_time < get.end_time
    ack = spans.one(f"ack {orders.name}")
    assert (SpanKind.CLIENT, "settle") == (
        ack.kind,
        (ack.attributes or {})["messaging.operation.type"],
    )


def test_a_put_of_many_gives_each_the_context_and_links_to_theirs(
    spans: Spans, orders: Queue
) -> None:
    orders.put_many([b"one", b"two"], headers=[None, {"traceparent": PARENT}])

    put = spans.one(f"put {orders.name}")
    carried = {one.body: one.headers["traceparent"] for one in orders.get()}
    assert {b"one": id_of(put), b"two": PARENT} == carried, "the program's own header stays"
    assert {PARENT} == linked(put)
    assert {id_of(put), PARENT} == linked(spans.one(f"get {orders.name}"))


def test_a_context_that_does_not_fit_is_left_out(spans: Spans, orders: Queue) -> None:
    full = {"x": "y" * (MAX_EXTRA_BYTES - 1)}

    orders.put(b"one", headers=full)

    (message,) = orders.get()
    assert full == message.headers
    assert 1 == len(spans.named(f"put {orders.name}"))


def test_what_is_not_sampled_leaves_no_header(
    monkeypatch: pytest.MonkeyPatch, orders: Queue
) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    orders.put(b"one")

    assert {} == orders.get()[0].headers


def test_without_an_sdk_there_is_no_header(orders: Queue) -> None:
    orders.put(b"one")

    (message,) = orders.get()
    assert {} == message.headers
    orders.ack(message)


def test_a_get_that_finds_nothing_leaves_no_span(spans: Spans, orders: Queue) -> None:
    assert [] == orders.get()
    assert [] == spans.all


def test_a_failure_has_its_code(
    spans: Spans, client: cassieq.Client, orders: Queue, name: str
) -> None:
    orders.put(b"one")
    (message,) = orders.get()
    orders.release(message)
    with pytest.raises(ReceiptExpired):
        orders.extend(message, 10)

    extend = spans.one(f"extend {orders.name}")
    assert "receipt_expired" == (extend.attributes or {})["error.type"]
    assert StatusCode.ERROR is extend.status.status_code

    second = client.create_queue(f"{name}-2")
    second.delete()
    with pytest.raises(QueueDeleted):
        second.get()
    assert "queue_deleted" == (spans.one(f"get {name}-2").attributes or {})["error.type"]


def test_a_consumer_is_traced_too(spans: Spans, orders: Queue) -> None:
    orders.put(b"one")
    with orders.consumer(idle_timeout=30) as consumer:
        message = consumer.get(30)
        assert message is not None
        consumer.ack(message)

    assert {message.headers["traceparent"]} == linked(spans.one(f"get {orders.name}"))


def test_acks_of_a_consumer_are_linked_to_the_spans_that_asked_for_them(
    spans: Spans, orders: Queue
) -> None:
    tracer = spans.provider.get_tracer("program")
    orders.put_many([b"one", b"two", b"three"])
    asked: set[str] = set()
    with orders.consumer(idle_timeout=30) as consumer:
        for message in (consumer.get(30), consumer.get(30)):
            assert message is not None
            with tracer.start_as_current_span("work") as work:
                asked.add(shown(work.get_span_context()))
                consumer.ack(message)

    acks = spans.named(f"ack {orders.name}")
    assert asked == set[str]().union(*map(linked, acks))
    assert 2 == sum((one.attributes or {})["messaging.batch.message_count"] for one in acks)
    for ack in acks:
        assert (SpanKind.CLIENT, None) == (ack.kind, ack.parent)
        assert "error.type" not in (ack.attributes or {})
    release = spans.one(f"release {orders.name}")
    assert {
        "messaging.system": "cassieq", "messaging.destination.name": orders.name,
        "messaging.batch.message_count": 1, "messaging.operation.name": "release",
        "messaging.operation.type": "settle",
    } == release.attributes  # fmt: skip


def test_a_consumers_late_acks_and_failures_have_their_codes(
    spans: Spans, client: cassieq.Client, orders: Queue
) -> None:
    orders.put(b"one")
    with orders.consumer(idle_timeout=30) as consumer:
        message = consumer.get(30)
        assert message is not None
        orders.release(message)
        consumer.ack(message)
        consumer.flush()
        (late,) = spans.named(f"ack {orders.name}")
        assert "receipt_expired" == (late.attributes or {})["error.type"]
        assert StatusCode.ERROR is late.status.status_code

        with FaultyStore().on(client.store.session) as faults:
            again = consumer.get(30)
            assert again is not None
            proof = proof_of(again)
            faults.unreachable(proof.bucket, lane=proof.lane, how=Away.UNAVAILABLE)
            consumer.ack(again)
            # It sends its CAS without a read (ADR 34): what was not answered may have been applied.
            with pytest.raises(CasAmbiguous):
                consumer.flush()
            faults.reachable()
            consumer.flush()
    codes = [(one.attributes or {}).get("error.type") for one in spans.named(f"ack {orders.name}")]
    assert ("receipt_expired", "cas_ambiguous", None) == (codes[0], codes[1], codes[-1])


def test_leases_that_a_consumer_extends_have_a_span(spans: Spans, orders: Queue) -> None:
    orders.put_many([b"one", b"two"])
    with orders.consumer(visibility_timeout=4, idle_timeout=30) as consumer:
        assert consumer.get(30) is not None
        wait_until(lambda: spans.named(f"extend {orders.name}"), deadline_s=60)

    extend = spans.named(f"extend {orders.name}")[0]
    assert 1 == (extend.attributes or {})["messaging.batch.message_count"]
    assert extend.parent is None


@pytest.fixture
def served(cassandra: EmbeddedCassandra, spans: Spans) -> Iterator[str]:  # noqa: ARG001 - before the requests
    """A gateway in this process, so that its spans are seen."""
    gateway = Gateway(
        GatewaySettings(port=0, repairs_every_s=None),
        lambda: cassieq.connect(cassandra.contact_points, keyspace=KEYSPACE),
    )
    addresses: list[str] = []
    server = GatewayServer(gateway, on_start=addresses.append)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        wait_until(lambda: addresses, deadline_s=60)
        wait_until(lambda: httpx.get(f"{addresses[0]}/readyz").status_code == 200, deadline_s=60)
        yield addresses[0]
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()


def test_a_request_goes_on_with_its_callers_trace(spans: Spans, served: str, orders: Queue) -> None:
    with httpx.Client(base_url=f"{served}/v1/queues/{orders.name}") as rest:
        put = rest.post("/messages", content=b"one", headers={"traceparent": PARENT})
        assert 201 == put.status_code
        got = rest.post("/messages/next", params={"max_messages": 1}).json()["messages"]
        assert 404 == httpx.get(f"{served}/v1/queues/no-such-queue").status_code

    request = spans.one("rest putMessage")
    assert request.parent is not None
    assert TRACE == f"{request.parent.trace_id:032x}"
    assert SpanKind.SERVER is request.kind
    assert ("rest", "putMessage", 201) == tuple(
        (request.attributes or {})[name]
        for name in ("cassieq.api", "cassieq.operation", "http.response.status_code")
    )
    inner = spans.one(f"put {orders.name}")
    assert {"traceparent": id_of(inner)} == got[0]["headers"]
    assert inner.parent is not None
    assert request.get_span_context().span_id == inner.parent.span_id
    get = spans.one(f"get {orders.name}")
    assert get.parent is not None
    assert spans.one("rest nextMessages").get_span_context().span_id == get.parent.span_id
    assert {id_of(inner)} == linked(get)
    wait_until(lambda: spans.named("rest getQueue"), deadline_s=30)  # it ends after the answer
    assert "queue_not_found" == (spans.one("rest getQueue").attributes or {})["error.type"]
    told = str([one.attributes for one in spans.all])
    assert got[0]["receipt"] not in told


def test_requests_that_are_put_together_keep_their_own_traces(
    spans: Spans, served: str, orders: Queue
) -> None:
    parents = [f"00-{number:032x}-b7ad6b7169203331-01" for number in range(1, 21)]

    def put(parent: str) -> int:
        url = f"{served}/v1/queues/{orders.name}/messages"
        return httpx.post(url, content=parent.encode(), headers={"traceparent": parent}).status_code

    with ThreadPoolExecutor(len(parents)) as pool:
        assert {201} == set(pool.map(put, parents))

    carried = {one.body.decode(): one.headers["traceparent"] for one in orders.get(50)}
    assert parents == sorted(carried)
    assert {parent: parent[3:35] for parent in parents} == {
        parent: found[3:35] for parent, found in carried.items()
    }
    assert set(carried.values()) == set(map(id_of, spans.named(f"put {orders.name}")))


def test_the_sqs_door_carries_it_too(spans: Spans, served: str, orders: Queue) -> None:
    sqs: Any = sqs_at(served)
    url = sqs.get_queue_url(QueueName=orders.name)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="one")

    (message,) = sqs.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    sqs.close()

    put = id_of(spans.one(f"put {orders.name}"))
    assert put == message["MessageAttributes"]["traceparent"]["StringValue"]
    assert {put} == linked(spans.one(f"get {orders.name}"))
    ack = spans.one(f"ack_each {orders.name}")
    wait_until(lambda: spans.named("sqs DeleteMessage"), deadline_s=30)  # it ends after the answer
    delete = spans.one("sqs DeleteMessage")
    assert ack.parent is not None
    assert delete.get_span_context().span_id == ack.parent.span_id
