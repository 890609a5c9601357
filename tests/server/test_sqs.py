"""The SQS door by boto3, as AWS documents it; moto's server and ElasticMQ have the same tests.

So they test SQS, and not us. What differs by intention is in `test_sqs_own.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

from cassieq_spark.server.sqs.call import QUERY_CODES
from tests.fixtures.elasticmq import ElasticMq, elasticmq
from tests.server.conftest import Gateway, sqs_at

__all__ = ["elasticmq"]  # a fixture

ELASTICMQ_DIFFERS = {
    "test_a_message_is_sent_received_and_deleted": "a second delete of a message is an error",
    "test_only_attributes_that_are_asked_for_come": "no prefix of names may be asked for",
    "test_batches_are_refused_as_a_whole_for_their_shape[none]": "an empty batch is accepted",
    "test_batches_are_refused_as_a_whole_for_their_shape[bad-id]": "an id may have any characters",
    "test_a_batch_of_more_than_a_mebibyte_is_too_long": "another code: InvalidAttributeValue",
    "test_attributes_are_set_and_read_back": "there is no MaximumMessageSize",
    "test_queues_are_listed_by_prefix_in_pages": "MaxResults is ignored: there is one page",
    "test_a_change_of_no_tag_or_of_too_many_is_refused": "a change of no tag is accepted",
    "test_values_out_of_range_are_refused": "another code: InvalidAttributeValue",
}
"""How ElasticMQ 1.6.12 differs from what AWS documents, by the test that shows it."""


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["ours", "moto", "elasticmq"])
def sqs(
    request: pytest.FixtureRequest, gateway: Gateway, moto: str, elasticmq: ElasticMq
) -> Iterator[Any]:
    """A client of boto3 on each server."""
    if request.param == "elasticmq":
        if elasticmq.missing:
            pytest.skip(elasticmq.missing)
        name = re.sub(r"elasticmq-|\[elasticmq\]", "", request.node.name)
        if name in ELASTICMQ_DIFFERS:
            # Strict: a difference that is gone must go from the table, too.
            request.applymarker(pytest.mark.xfail(reason=ELASTICMQ_DIFFERS[name], strict=True))
    urls = {"ours": gateway.url, "moto": moto, "elasticmq": elasticmq.url}
    client = sqs_at(urls[request.param])
    yield client
    client.close()


@pytest.fixture
def url(sqs: Any, name: str) -> Iterator[str]:
    found = sqs.create_queue(QueueName=name)["QueueUrl"]
    yield found
    sqs.delete_queue(QueueUrl=found)


def code_of(call: Callable[..., Any], **arguments: Any) -> str:
    with pytest.raises(ClientError) as raised:
        call(**arguments)
    return code_in(raised.value)


def code_in(error: ClientError) -> str:
    """The code that SDKs show. ElasticMQ leaves out the header with it, so it is looked up."""
    found: str = error.response["Error"]["Code"]
    is_elasticmq = "pekko" in error.response["ResponseMetadata"]["HTTPHeaders"].get("server", "")
    return QUERY_CODES.get(found, found) if is_elasticmq else found


def receive(sqs: Any, url: str, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sqs.receive_message(
        QueueUrl=url, **{"MaxNumberOfMessages": 10, "WaitTimeSeconds": 2, **more}
    ).get("Messages", [])
    return found


def test_a_message_is_sent_received_and_deleted(sqs: Any, url: str) -> None:
    sent = sqs.send_message(QueueUrl=url, MessageBody="Grüße, 世界 🎈")
    (got,) = receive(sqs, url, AttributeNames=["All"])

    assert "Grüße, 世界 🎈" == got["Body"]
    assert sent["MessageId"] == got["MessageId"]
    md5 = hashlib.md5("Grüße, 世界 🎈".encode(), usedforsecurity=False).hexdigest()
    assert md5 == sent["MD5OfMessageBody"] == got["MD5OfBody"]
    attributes = got["Attributes"]
    assert "1" == attributes["ApproximateReceiveCount"]
    assert int(attributes["SentTimestamp"]) <= int(attributes["ApproximateFirstReceiveTimestamp"])
    assert [] == receive(sqs, url, WaitTimeSeconds=0)

    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])


def test_message_attributes_come_back_with_their_types_and_the_same_md5(sqs: Any, url: str) -> None:
    given = {
        "city": {"DataType": "String", "StringValue": "Zürich"},
        "n": {"DataType": "Number", "StringValue": "-12.5"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        "x.own": {"DataType": "String.own", "StringValue": "v"},
    }
    sent = sqs.send_message(QueueUrl=url, MessageBody="b", MessageAttributes=given)
    (got,) = receive(sqs, url, MessageAttributeNames=["All"])

    assert given == got["MessageAttributes"]
    assert sent["MD5OfMessageAttributes"] == got["MD5OfMessageAttributes"]


def test_only_attributes_that_are_asked_for_come(sqs: Any, url: str) -> None:
    one = {"DataType": "String", "StringValue": "1"}
    for _ in range(2):
        sqs.send_message(
            QueueUrl=url, MessageBody="b", MessageAttributes={"a": one, "p.x": one, "p.y": one}
        )

    (none,) = receive(sqs, url, MaxNumberOfMessages=1)
    (some,) = receive(sqs, url, MaxNumberOfMessages=1, MessageAttributeNames=["p.*"])

    assert "MessageAttributes" not in none
    assert "Attributes" not in none
    assert {"p.x", "p.y"} == set(some["MessageAttributes"])


def test_a_batch_is_sent_received_and_deleted_together(sqs: Any, url: str) -> None:
    entries = [{"Id": f"e{n}", "MessageBody": f"body {n}"} for n in range(10)]
    sent = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [f"e{n}" for n in range(10)] == [one["Id"] for one in sent["Successful"]]
    assert [] == sent.get("Failed", [])

    got: list[dict[str, Any]] = []
    while len(got) < 10:
        got += receive(sqs, url)
    assert {f"body {n}" for n in range(10)} == {one["Body"] for one in got}
    done = sqs.delete_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate(got)
        ],
    )
    assert 10 == len(done["Successful"])


BATCHES: dict[str, tuple[list[dict[str, str]], str]] = {
    "twice": ([{"Id": "a"}, {"Id": "a"}], "BatchEntryIdsNotDistinct"),
    "many": ([{"Id": str(n)} for n in range(11)], "TooManyEntriesInBatchRequest"),
    "none": ([], "EmptyBatchRequest"),
    "bad-id": ([{"Id": "a b"}], "InvalidBatchEntryId"),
}


@pytest.mark.parametrize("case", BATCHES)
def test_batches_are_refused_as_a_whole_for_their_shape(sqs: Any, url: str, case: str) -> None:
    entries, code = BATCHES[case]

    found = code_of(
        sqs.send_message_batch,
        QueueUrl=url,
        Entries=[{**one, "MessageBody": "x"} for one in entries],
    )

    assert f"AWS.SimpleQueueService.{code}" == found
    assert [] == receive(sqs, url, WaitTimeSeconds=0)


def test_a_batch_of_more_than_a_mebibyte_is_too_long(sqs: Any, url: str) -> None:
    entries = [{"Id": str(n), "MessageBody": "x" * 200_000} for n in range(6)]

    found = code_of(sqs.send_message_batch, QueueUrl=url, Entries=entries)

    assert "AWS.SimpleQueueService.BatchRequestTooLong" == found


def test_a_changed_visibility_gives_a_message_back(sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="again")
    (first,) = receive(sqs, url)

    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0
    )

    (second,) = receive(sqs, url, AttributeNames=["ApproximateReceiveCount"])
    assert {"ApproximateReceiveCount": "2"} == second["Attributes"]
    done = sqs.change_message_visibility_batch(
        QueueUrl=url,
        Entries=[{"Id": "a", "ReceiptHandle": second["ReceiptHandle"], "VisibilityTimeout": 60}],
    )
    assert [{"Id": "a"}] == done["Successful"]


def test_a_delayed_message_is_counted_and_not_received(sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=600)
    sqs.send_message(QueueUrl=url, MessageBody="now")

    assert ["now"] == [one["Body"] for one in receive(sqs, url)]
    counts = sqs.get_queue_attributes(
        QueueUrl=url,
        AttributeNames=[
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesDelayed",
            "ApproximateNumberOfMessagesNotVisible",
        ],
    )["Attributes"]
    assert {
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesDelayed": "1",
        "ApproximateNumberOfMessagesNotVisible": "1",
    } == counts


def test_attributes_are_set_and_read_back(sqs: Any, url: str) -> None:
    before = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    expected = {
        "DelaySeconds": "0",
        "MaximumMessageSize": before["MaximumMessageSize"],
        "ReceiveMessageWaitTimeSeconds": "0",
        "VisibilityTimeout": "30",
    }
    assert expected == {key: before[key] for key in expected}
    assert before["QueueArn"].endswith(":" + url.rpartition("/")[2])

    changes = {
        "DelaySeconds": "1",
        "MaximumMessageSize": "2048",
        "MessageRetentionPeriod": "60",
        "ReceiveMessageWaitTimeSeconds": "3",
        "VisibilityTimeout": "7",
    }
    sqs.set_queue_attributes(QueueUrl=url, Attributes=changes)

    after = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(changes))["Attributes"]
    assert changes == after
    assert "InvalidParameterValue" == code_of(
        sqs.send_message, QueueUrl=url, MessageBody="x" * 2049
    )


def test_creating_a_queue_again_compares_its_attributes(sqs: Any, name: str) -> None:
    url = sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "5"})["QueueUrl"]
    try:
        again = sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "5"})
        assert url == again["QueueUrl"] == sqs.get_queue_url(QueueName=name)["QueueUrl"]
        assert "QueueAlreadyExists" == code_of(
            sqs.create_queue, QueueName=name, Attributes={"DelaySeconds": "6"}
        )
    finally:
        sqs.delete_queue(QueueUrl=url)


def test_queues_are_listed_by_prefix_in_pages(sqs: Any, name: str) -> None:
    urls = [sqs.create_queue(QueueName=f"{name[-70:]}-{letter}")["QueueUrl"] for letter in "abcde"]
    prefix = name[-70:]
    try:
        pages = list(
            sqs.get_paginator("list_queues").paginate(
                QueueNamePrefix=prefix, PaginationConfig={"PageSize": 2}
            )
        )
        assert [2, 2, 1] == [len(page["QueueUrls"]) for page in pages]
        assert urls == [url for page in pages for url in page["QueueUrls"]]
        assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix="there-is-none-")
    finally:
        for url in urls:
            sqs.delete_queue(QueueUrl=url)


def test_tags_are_set_listed_and_removed(sqs: Any, url: str) -> None:
    assert {} == sqs.list_queue_tags(QueueUrl=url).get("Tags", {})
    sqs.tag_queue(QueueUrl=url, Tags={"team": "a", "tier": "1"})
    sqs.tag_queue(QueueUrl=url, Tags={"team": "b"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["tier"])

    assert {"team": "b"} == sqs.list_queue_tags(QueueUrl=url)["Tags"]


def test_a_change_of_no_tag_or_of_too_many_is_refused(sqs: Any, url: str) -> None:
    sqs.tag_queue(QueueUrl=url, Tags={"team": "a"})
    assert "MissingParameter" == code_of(sqs.tag_queue, QueueUrl=url, Tags={})
    assert "InvalidParameterValue" == code_of(sqs.untag_queue, QueueUrl=url, TagKeys=[])
    many = {f"tag{n}": "x" for n in range(51)}
    assert "InvalidParameterValue" == code_of(sqs.tag_queue, QueueUrl=url, Tags=many)
    assert {"team": "a"} == sqs.list_queue_tags(QueueUrl=url)["Tags"]


def test_a_purge_leaves_nothing(sqs: Any, url: str) -> None:
    for n in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=str(n))

    sqs.purge_queue(QueueUrl=url)

    assert [] == receive(sqs, url, WaitTimeSeconds=0)


def test_a_queue_that_is_not_there_is_named_so_by_every_action(sqs: Any, url: str) -> None:
    none = url + "-none"
    calls: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (sqs.get_queue_attributes, {"AttributeNames": ["All"]}),
        (sqs.send_message, {"MessageBody": "x"}),
        (sqs.receive_message, {}),
        (sqs.purge_queue, {}),
        (sqs.list_queue_tags, {}),
    ]
    for call, more in calls:
        with pytest.raises(sqs.exceptions.QueueDoesNotExist) as raised:
            call(QueueUrl=none, **more)
        assert "AWS.SimpleQueueService.NonExistentQueue" == code_in(raised.value)
    assert "AWS.SimpleQueueService.NonExistentQueue" == code_of(
        sqs.get_queue_url, QueueName="there-is-none"
    )


def test_values_out_of_range_are_refused(sqs: Any, url: str) -> None:
    assert "InvalidParameterValue" == code_of(
        sqs.receive_message, QueueUrl=url, MaxNumberOfMessages=11
    )
    assert "InvalidParameterValue" == code_of(sqs.receive_message, QueueUrl=url, WaitTimeSeconds=21)
    assert "ReceiptHandleIsInvalid" == code_of(
        sqs.delete_message, QueueUrl=url, ReceiptHandle="garbage"
    )
    assert "InvalidAttributeName" == code_of(
        sqs.get_queue_attributes, QueueUrl=url, AttributeNames=["Nonsense"]
    )
    assert "InvalidParameterValue" == code_of(
        sqs.send_message, QueueUrl=url, MessageBody="x", DelaySeconds=901
    )


def test_a_dead_letter_queue_is_named_by_its_sources(sqs: Any, url: str, name: str) -> None:
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"][
        "QueueArn"
    ]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    source = sqs.create_queue(QueueName=f"s-{name[-70:]}", Attributes={"RedrivePolicy": policy})[
        "QueueUrl"
    ]
    try:
        found = sqs.get_queue_attributes(QueueUrl=source, AttributeNames=["RedrivePolicy"])
        assert json.loads(policy) == json.loads(found["Attributes"]["RedrivePolicy"])
        assert [source] == sqs.list_dead_letter_source_queues(QueueUrl=url)["queueUrls"]
    finally:
        sqs.delete_queue(QueueUrl=source)
