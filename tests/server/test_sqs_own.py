"""The SQS door where moto cannot be asked: the older protocol, other clients' messages, moves."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree as Xml

import httpx
import pytest
from botocore.exceptions import ClientError

import cassieq_spark as cassieq
from cassieq_spark.server.sqs.protocol import NAMESPACE
from tests.server.conftest import Gateway
from tests.server.test_rest_receipts import never_handed_out


@pytest.fixture
def url(sqs: Any, name: str) -> Iterator[str]:
    found = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "60"})["QueueUrl"]
    yield found
    sqs.delete_queue(QueueUrl=found)


def form(gateway: Gateway, path: str = "/", **fields: str) -> tuple[int, Xml.Element]:
    """A request of the older protocol."""
    status, headers, body = gateway.ask(
        "POST",
        path,
        urlencode(fields).encode(),
        {"Content-Type": "application/x-www-form-urlencoded"},
    )
    assert "text/xml" in headers["content-type"]
    return status, Xml.fromstring(body)  # noqa: S314 - the gateway's own


def texts(answer: Xml.Element, *path: str) -> list[str | None]:
    found = answer.findall("/".join(f"{{{NAMESPACE}}}{part}" for part in path))
    return [one.text for one in found]


def test_the_query_protocol_sends_receives_and_deletes(gateway: Gateway, url: str) -> None:
    status, sent = form(
        gateway,
        urlsplit(url).path,
        **{
            "Action": "SendMessage",
            "QueueUrl": url,
            "MessageBody": "<&> é",
            "MessageAttribute.1.Name": "n",
            "MessageAttribute.1.Value.DataType": "Number",
            "MessageAttribute.1.Value.StringValue": "7",
        },
    )
    assert 200 == status
    (md5,) = texts(sent, "SendMessageResult", "MD5OfMessageBody")
    assert hashlib.md5("<&> é".encode(), usedforsecurity=False).hexdigest() == md5

    _, got = form(
        gateway,
        **{
            "Action": "ReceiveMessage",
            "QueueUrl": url,
            "WaitTimeSeconds": "2",
            "AttributeName.1": "ApproximateReceiveCount",
            "MessageAttributeName.1": "All",
        },
    )
    message = ("ReceiveMessageResult", "Message")
    assert ["<&> é"] == texts(got, *message, "Body")
    assert ["1"] == texts(got, *message, "Attribute", "Value")
    assert ["7"] == texts(got, *message, "MessageAttribute", "Value", "StringValue")
    (receipt,) = texts(got, *message, "ReceiptHandle")

    status, done = form(
        gateway,
        **{
            "Action": "DeleteMessageBatch",
            "QueueUrl": url,
            "DeleteMessageBatchRequestEntry.1.Id": "a",
            "DeleteMessageBatchRequestEntry.1.ReceiptHandle": receipt or "",
            "DeleteMessageBatchRequestEntry.2.Id": "b",
            "DeleteMessageBatchRequestEntry.2.ReceiptHandle": "garbage",
        },
    )
    result = "DeleteMessageBatchResult"
    assert ["a"] == texts(done, result, "DeleteMessageBatchResultEntry", "Id")
    assert ["ReceiptHandleIsInvalid"] == texts(done, result, "BatchResultErrorEntry", "Code")


def test_an_entry_of_a_form_whose_number_is_none_fails_alone(gateway: Gateway, url: str) -> None:
    entry = "SendMessageBatchRequestEntry"
    status, sent = form(
        gateway,
        **{
            "Action": "SendMessageBatch", "QueueUrl": url,
            f"{entry}.1.Id": "a", f"{entry}.1.MessageBody": "x", f"{entry}.1.DelaySeconds": "soon",
            f"{entry}.2.Id": "b", f"{entry}.2.MessageBody": "y", f"{entry}.2.DelaySeconds": "0",
        },
    )  # fmt: skip
    result = "SendMessageBatchResult"
    assert (200, ["b"]) == (status, texts(sent, result, "SendMessageBatchResultEntry", "Id"))
    (failed,) = sent.iter(f"{{{NAMESPACE}}}BatchResultErrorEntry")
    assert ["a", "InvalidParameterValue", "DelaySeconds must be a whole number.", "true"] == [
        failed.findtext(f"{{{NAMESPACE}}}{name}")
        for name in ("Id", "Code", "Message", "SenderFault")
    ]
    one = {"Action": "SendMessage", "QueueUrl": url, "MessageBody": "x", "DelaySeconds": "soon"}
    status, answer = form(gateway, **one)
    assert (400, ["InvalidParameterValue"]) == (status, texts(answer, "Error", "Code"))


def test_a_member_of_a_list_that_has_parts_and_no_value_is_left_out(
    gateway: Gateway, url: str
) -> None:
    asked = {"Action": "GetQueueAttributes", "QueueUrl": url, "AttributeName.1": "QueueArn"}

    status, answer = form(gateway, **asked, **{"AttributeName.2.Name": "All"})

    found = ("GetQueueAttributesResult", "Attribute", "Name")
    assert (200, ["QueueArn"]) == (status, texts(answer, *found))


def test_a_form_has_a_group_and_it_comes_back(gateway: Gateway, url: str) -> None:
    path = urlsplit(url).path
    more = {"MessageBody": "x", "MessageGroupId": "a!~"}
    assert 200 == form(gateway, path, Action="SendMessage", **more)[0]
    batch = {
        f"SendMessageBatchRequestEntry.{at}.{name}": text
        for at, group in enumerate(("b", "two words", ""), 1)
        for name, text in (("Id", f"id{at}"), ("MessageBody", "y"), ("MessageGroupId", group))
    }
    _, sent = form(gateway, path, Action="SendMessageBatch", **batch)
    result = "SendMessageBatchResult"
    assert ["id1"] == texts(sent, result, "SendMessageBatchResultEntry", "Id")
    assert ["id2", "id3"] == texts(sent, result, "BatchResultErrorEntry", "Id")
    assert ["InvalidParameterValue"] * 2 == texts(sent, result, "BatchResultErrorEntry", "Code")

    wanted = {"MaxNumberOfMessages": "10", "AttributeName.1": "MessageGroupId"}
    _, got = form(gateway, path, Action="ReceiveMessage", WaitTimeSeconds="5", **wanted)

    attribute = ("ReceiveMessageResult", "Message", "Attribute")
    assert ["MessageGroupId"] * 2 == texts(got, *attribute, "Name")
    assert ["a!~", "b"] == sorted(filter(None, texts(got, *attribute, "Value")))


def test_a_form_that_names_no_queue_is_for_the_one_of_its_path(
    gateway: Gateway, sqs: Any, url: str
) -> None:
    path = urlsplit(url).path
    status, _ = form(gateway, path, Action="SendMessage", MessageBody="x")
    assert 200 == status
    status, got = form(gateway, path, Action="ReceiveMessage", WaitTimeSeconds="5")
    assert (200, ["x"]) == (status, texts(got, "ReceiveMessageResult", "Message", "Body"))
    other = sqs.create_queue(QueueName=f"{url.rpartition('/')[2][-70:]}-2")["QueueUrl"]
    form(gateway, path, Action="DeleteQueue", QueueUrl=other)
    assert 200 == form(gateway, path, Action="GetQueueAttributes")[0]
    status, answer = form(gateway, f"{path}-none", Action="PurgeQueue")
    code = "AWS.SimpleQueueService.NonExistentQueue"
    assert (400, [code]) == (status, texts(answer, "Error", "Code"))
    status, answer = form(gateway, Action="PurgeQueue")
    assert (400, ["MissingParameter"]) == (status, texts(answer, "Error", "Code"))


def test_a_receipt_that_was_never_handed_out_is_invalid(sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    never = never_handed_out(message["ReceiptHandle"])

    with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=never)
    entries = [
        {"Id": "a", "ReceiptHandle": message["ReceiptHandle"]},
        {"Id": "b", "ReceiptHandle": never},
    ]
    answer = sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    assert ["a"] == [one["Id"] for one in answer["Successful"]]
    assert [("b", "ReceiptHandleIsInvalid", True)] == [
        (one["Id"], one["Code"], one["SenderFault"]) for one in answer["Failed"]
    ]


def test_errors_of_the_query_protocol_are_xml_with_their_codes(gateway: Gateway) -> None:
    status, answer = form(gateway, Action="GetQueueUrl", QueueName="there-is-none")
    assert 400 == status
    assert ["AWS.SimpleQueueService.NonExistentQueue"] == texts(answer, "Error", "Code")

    for fields, code in (
        ({"Action": "Nonsense"}, "InvalidAction"),
        ({}, "InvalidAction"),
        ({"Action": "SendMessage"}, "MissingParameter"),
    ):
        status, answer = form(gateway, **fields)
        assert (400, [code]) == (status, texts(answer, "Error", "Code"))


@pytest.mark.parametrize(
    ("target", "body", "name"),
    [
        ("AmazonSQS.Nonsense", b"{}", "UnknownOperationException"),
        ("AmazonSQS.SendMessage", b"{", "SerializationException"),
        ("AmazonSQS.SendMessage", b"[]", "SerializationException"),
        ("AmazonSQS.SendMessage", b'{"QueueUrl": 1, "MessageBody": "x"}', "SerializationException"),
        ("AmazonSQS.SendMessage", b'{"QueueUrl": "x"}', "MissingParameter"),
        ("AmazonSQS.PurgeQueue", b'{"QueueUrl": "http://["}', "InvalidAddress"),
        ("AmazonSQS.ListQueues", b'{"NextToken": "*"}', "InvalidParameterValue"),
        ("AmazonSQS.CreateQueue", b'{"QueueName": "a.fifo"}', "InvalidParameterValue"),
        ("AmazonSQS.CreateQueue", b'{"QueueName": "a/b"}', "InvalidParameterValue"),
    ],
)
def test_broken_requests_are_the_senders_mistakes(
    gateway: Gateway, target: str, body: bytes, name: str
) -> None:
    status, headers, answer = gateway.ask("POST", "/", body, {"X-Amz-Target": target})

    assert (400, f"com.amazonaws.sqs#{name}") == (status, json.loads(answer)["__type"])
    assert headers["x-amzn-query-error"].endswith(";Sender")


def test_a_receipt_of_an_ended_delivery_deletes_nothing(sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (first,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2)["Messages"]
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0
    )
    (second,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2)["Messages"]

    with pytest.raises(ClientError, match="receipt handle has expired"):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    with pytest.raises(sqs.exceptions.MessageNotInflight):
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=5
        )
    sqs.delete_message(QueueUrl=url, ReceiptHandle=second["ReceiptHandle"])


def test_messages_of_programs_come_with_their_headers_and_bytes(
    sqs: Any, url: str, name: str, client: cassieq.Client
) -> None:
    client.queue(name).put(b"\xff\x00", headers={"kind": "raw"})

    (got,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2, MessageAttributeNames=["All"])[
        "Messages"
    ]

    assert b"\xff\x00" == base64.b64decode(got["Body"])
    assert {"kind": "raw", "cassieq-body-encoding": "base64"} == {
        key: one["StringValue"] for key, one in got["MessageAttributes"].items()
    }


def test_programs_get_what_was_sent_here_with_its_attributes(
    sqs: Any, url: str, name: str, client: cassieq.Client
) -> None:
    sqs.send_message(
        QueueUrl=url,
        MessageBody="{}",
        MessageAttributes={"n": {"DataType": "Number", "StringValue": "1"}},
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}},
    )

    (got,) = client.queue(name).get(1, wait=2)

    assert (b"{}", "1") == (got.body, got.headers["n"])
    got_id = got.message_id
    client.queue(name).release(got)
    (again,) = sqs.receive_message(
        QueueUrl=url, WaitTimeSeconds=2, AttributeNames=["AWSTraceHeader"]
    )["Messages"]
    assert (got_id, {"AWSTraceHeader": "Root=1"}) == (again["MessageId"], again["Attributes"])


def test_a_queue_that_no_other_names_has_no_dead_letters_to_move(
    sqs: Any, url: str, name: str, client: cassieq.Client
) -> None:
    """Nor does a message show a source there, though an older release has redriven it."""
    older = {"cassieq-source-queue": name, "cassieq-reason": "redrive"}
    client.queue(name).put(b"by an older release", headers=older)
    (got,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5, AttributeNames=["All"])[
        "Messages"
    ]
    assert "DeadLetterQueueSourceArn" not in got["Attributes"]

    shown = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
    for more in ({}, {"DestinationArn": shown["QueueArn"]}):
        with pytest.raises(ClientError, match="must be configured as a Dead Letter Queue"):
            sqs.start_message_move_task(SourceArn=shown["QueueArn"], **more)


def test_policies_of_queues_are_not_supported(sqs: Any, url: str) -> None:
    with pytest.raises(sqs.exceptions.UnsupportedOperation):
        sqs.add_permission(QueueUrl=url, Label="l", AWSAccountIds=["1"], Actions=["*"])


def test_a_retention_period_is_the_queues_retention_if_somebody_has_set_it(
    sqs: Any, name: str, client: cassieq.Client
) -> None:
    url = sqs.create_queue(QueueName=name)["QueueUrl"]

    def shown() -> str | None:
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        period: str | None = found.get("MessageRetentionPeriod")
        return period

    def kept_for() -> float | None:
        return client.queue(name).settings.retention_s

    assert ("345600", None) == (shown(), kept_for())
    for period in (86_400, 345_600):
        given = {"MessageRetentionPeriod": str(period)}
        sqs.set_queue_attributes(QueueUrl=url, Attributes=given)
        assert (str(period), period) == (shown(), kept_for())
    for wrong in ("59", "1209601", "a day"):
        with pytest.raises(ClientError, match="MessageRetentionPeriod"):
            sqs.set_queue_attributes(QueueUrl=url, Attributes={"MessageRetentionPeriod": wrong})
    sqs.delete_queue(QueueUrl=url)


HUGE = "9" * 5_000


@pytest.mark.parametrize(
    "text",
    [
        *("", "-1", "soon", "99999999", HUGE, f"0{HUGE}", "\N{SUPERSCRIPT TWO}", "[" * 5_000),
        *("null", "[]", '{"Status": 1}', '{"Status": "RUNNING", "TaskHandle": [], "x": {}}'),
    ],
)
def test_labels_that_another_door_has_set_do_no_harm_here(
    gateway: Gateway, rest: httpx.Client, sqs: Any, url: str, text: str
) -> None:
    """Attributes are kept as labels, and whoever may create queues may set any label over REST."""
    name = url.rpartition("/")[2]
    labels = [*("DelaySeconds", "MaximumMessageSize", "ReceiveMessageWaitTimeSeconds"), "move"]
    labels += ["LastModifiedTimestamp", "RedriveAllowPolicy", "moves", "tag.", "Policy"]
    changed = rest.patch(f"/queues/{name}", json={"labels": {f"sqs.{one}": text for one in labels}})
    assert changed.is_success, changed.text
    # The gateway's handle has the labels now: `PATCH` keeps the newest one.
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (got,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    assert "Messages" not in sqs.receive_message(QueueUrl=url)

    shown = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert ("0", "1048576", "0") == tuple(
        shown[one]
        for one in ("DelaySeconds", "MaximumMessageSize", "ReceiveMessageWaitTimeSeconds")
    )
    assert sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "0"})["QueueUrl"] == url
    arn = shown["QueueArn"]
    tasks = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
    assert all(isinstance(one["Status"], str) for one in tasks)
    for action in ("GetQueueAttributes", "ListQueueTags", "ListMessageMoveTasks"):
        given = {"AttributeName.1": "All", "SourceArn": arn, "QueueUrl": url}
        wanted = {
            "GetQueueAttributes": ("AttributeName.1", "QueueUrl"),
            "ListQueueTags": ("QueueUrl",),
            "ListMessageMoveTasks": ("SourceArn",),
        }[action]
        assert 200 == form(gateway, Action=action, **{one: given[one] for one in wanted})[0]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "1"})
