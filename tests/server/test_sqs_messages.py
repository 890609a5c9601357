"""Messages of the SQS door where moto answers otherwise than AWS does, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.entropy import system
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.testing import wait_until
from tests.fixtures.sqs import attributes_of, get, new_queue, policy_of, refusal
from tests.server.conftest import Gateway

if TYPE_CHECKING:
    from tests.fixtures.sqs import NewQueue

__all__ = ["new_queue"]  # a fixture


@pytest.mark.parametrize("where", ["in the request", "in the queue"])
def test_a_visibility_timeout_of_zero_hides_a_message_from_nobody(
    sqs: Any, new_queue: NewQueue, where: str
) -> None:
    timeout = "0" if where == "in the queue" else "60"
    more = {} if where == "in the queue" else {"VisibilityTimeout": 0}
    _, url, _ = new_queue("a", VisibilityTimeout=timeout)
    assert timeout == attributes_of(sqs, url, "VisibilityTimeout")["VisibilityTimeout"]
    sqs.send_message(QueueUrl=url, MessageBody="x")

    got = [get(sqs, url, WaitTimeSeconds=0, **more) for _ in range(4)]

    counts = [one["Attributes"]["ApproximateReceiveCount"] for one in got]
    assert ["1", "2", "3", "4"] == counts
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got[-1]["ReceiptHandle"])
    assert "Messages" not in sqs.receive_message(QueueUrl=url, **more)


def test_a_delivery_lasts_twelve_hours_at_most(
    sqs: Any, new_queue: NewQueue, client: cassieq.Client
) -> None:
    _, url, _ = new_queue()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    handle = get(sqs, url)["ReceiptHandle"]
    began_us = client.now_us() - 11 * 3_600_000_000
    old = replace(Receipt.decode(handle), lease_id=system.uuid_at(began_us)).encode()

    def refused(receipt: str, seconds: int) -> bool:
        given = {"QueueUrl": url, "ReceiptHandle": receipt, "VisibilityTimeout": seconds}
        code, text, _ = refusal(sqs.change_message_visibility, **given)
        limit = (
            f"Value {seconds} for parameter VisibilityTimeout is invalid. Reason: Total "
            "VisibilityTimeout for the message is beyond the limit [43200 seconds]"
        )
        return ("InvalidParameterValue", limit) == (code, text)

    assert refused(handle, 43_200)
    assert refused(old, 3_601)
    assert not refused(old, 3_500)  # that delivery is nobody's, which is said then
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=43_100)
    entries = [
        {"Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 43_200},
        {"Id": "b", "ReceiptHandle": handle, "VisibilityTimeout": 60},
    ]
    done = sqs.change_message_visibility_batch(QueueUrl=url, Entries=entries)
    assert (["b"], ["a"]) == ids_of(done)


def ids_of(answer: dict[str, Any]) -> tuple[list[str], list[str]]:
    done, failed = answer.get("Successful", []), answer.get("Failed", [])
    return [one["Id"] for one in done], [one["Id"] for one in failed]


GOOD = {"Id": "good", "MessageBody": "x"}


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"MessageBody": None}, "MissingParameter"),
        ({}, "MissingParameter"),
        ({"MessageBody": ""}, "MissingParameter"),
        ({"MessageBody": 7}, "InvalidParameterValue"),
        ({"MessageBody": "x", "DelaySeconds": "soon"}, "InvalidParameterValue"),
        ({"MessageBody": "x", "MessageAttributes": {"\ud800": {}}}, "InvalidParameterValue"),
        (
            {
                "MessageBody": "x",
                "MessageAttributes": {"b": {"DataType": "Binary", "BinaryValue": "?"}},
            },
            "InvalidParameterValue",
        ),
    ],
)
def test_one_wrong_entry_of_a_batch_fails_alone(
    gateway: Gateway, sqs: Any, new_queue: NewQueue, entry: dict[str, Any], code: str
) -> None:
    _, url, _ = new_queue()
    batch = {"QueueUrl": url, "Entries": [{"Id": "bad", **entry}, GOOD]}

    status, answer = ask(gateway, "SendMessageBatch", batch)

    assert (200, ["good"]) == (status, ids_of(answer)[0])
    assert [("bad", code, True)] == [
        (one["Id"], one["Code"], one["SenderFault"]) for one in answer["Failed"]
    ]
    assert "x" == get(sqs, url)["Body"]


def test_wrong_entries_of_the_other_batches_fail_alone(
    gateway: Gateway, sqs: Any, new_queue: NewQueue
) -> None:
    _, url, _ = new_queue()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    handle = get(sqs, url)["ReceiptHandle"]
    for action, more in (
        ("ChangeMessageVisibilityBatch", {"VisibilityTimeout": 60}),
        ("DeleteMessageBatch", {}),
    ):
        entries = [{"Id": "bad", "ReceiptHandle": 1}, {"Id": "good", "ReceiptHandle": handle}]
        batch = {"QueueUrl": url, "Entries": [{**one, **more} for one in entries]}
        status, answer = ask(gateway, action, batch)
        assert (200, (["good"], ["bad"])) == (status, ids_of(answer))
    status, answer = ask(gateway, "DeleteMessageBatch", {"QueueUrl": url, "Entries": [{}]})
    assert (400, "com.amazonaws.sqs#MissingParameter") == (status, answer["__type"])


def ask(gateway: Gateway, action: str, given: Any) -> tuple[int, dict[str, Any]]:
    """A request that no SDK would send."""
    headers = {"X-Amz-Target": f"AmazonSQS.{action}"}
    status, _, answer = gateway.ask("POST", "/", json.dumps(given).encode(), headers)
    return status, dict(json.loads(answer))


TEXT = {"DataType": "String", "StringValue": "x"}
TRACE = "AWSTraceHeader"


@pytest.mark.parametrize(
    ("attributes", "system"),
    [
        ({"a": {**TEXT, "DataType": "String.\x01"}}, {}),
        ({"a": {**TEXT, "DataType": "String." + "x" * 250}}, {}),
        ({"a": {**TEXT, "DataType": "Text"}}, {}),
        ({"a": {**TEXT, "StringValue": "\x01"}}, {}),
        ({"a": {**TEXT, "BinaryValue": "AA=="}}, {}),
        ({"a": {"DataType": "Number", "StringValue": "1" * 39}}, {}),
        ({"a": {"DataType": "Number", "StringValue": "1e127"}}, {}),
        ({"a": {"DataType": "Number.x", "StringValue": "-1e-129"}}, {}),
        ({"a": {"DataType": "Number", "StringValue": "NaN"}}, {}),
        ({"\ud800": TEXT}, {}),
        ({}, {TRACE: {**TEXT, "StringValue": "Root=\x01"}}),
        ({}, {TRACE: {**TEXT, "StringValue": ""}}),
        ({}, {TRACE: {"DataType": "Binary", "BinaryValue": "AA=="}}),
        ({}, {"Other\x01": TEXT}),
    ],
)
def test_attributes_that_aws_does_not_take_are_refused(
    gateway: Gateway,
    sqs: Any,
    new_queue: NewQueue,
    attributes: dict[str, Any],
    system: dict[str, Any],
) -> None:
    _, url, _ = new_queue()
    more = {"MessageAttributes": attributes, "MessageSystemAttributes": system}

    status, answer = ask(
        gateway, "SendMessage", {"QueueUrl": url, "MessageBody": "x", **more}
    )  # fmt: skip

    assert (400, "com.amazonaws.sqs#InvalidParameterValue") == (status, answer["__type"])
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_attributes_at_the_limits_come_back_as_they_were_sent(
    sqs: Any, new_queue: NewQueue
) -> None:
    _, url, _ = new_queue("a", MaximumMessageSize="1024")
    given = {
        "digits": {"DataType": "Number", "StringValue": "1" * 38 + "000.000"},
        "large": {"DataType": "Number", "StringValue": "-1E126"},
        "small": {"DataType": "Number", "StringValue": "1e-128"},
        "zero": {"DataType": "Number", "StringValue": "0.000"},
        "type": {"DataType": "String. fluffy bunny", "StringValue": "x"},
    }
    # The trace is not counted: the developer guide says so under "Message system attributes".
    trace = {TRACE: {"DataType": "String", "StringValue": "Root=" + "x" * 2_000}}
    sqs.send_message(
        QueueUrl=url, MessageBody="x", MessageAttributes=given, MessageSystemAttributes=trace
    )

    got = get(sqs, url, MessageAttributeNames=["All"])

    assert given == got["MessageAttributes"]
    assert trace[TRACE]["StringValue"] == got["Attributes"][TRACE]


@pytest.mark.parametrize(
    ("action", "given"),
    [
        ("TagQueue", {"Tags": {"a": "\ud800"}}),
        ("SetQueueAttributes", {"Attributes": {"\ud800": "1"}}),
        ("SetQueueAttributes", {"Attributes": {"Policy": '{"a": "\ud800"}'}}),
        ("SetQueueAttributes", {"Attributes": {"DelaySeconds": "9" * 5_000}}),
        ("GetQueueAttributes", {"AttributeNames": ["\ud800"]}),
        ("ReceiveMessage", {"MessageSystemAttributeNames": ["\ud800"]}),
        ("ChangeMessageVisibility", {"ReceiptHandle": "\ud800", "VisibilityTimeout": 1}),
        ("CancelMessageMoveTask", {"TaskHandle": "\ud800"}),
        ("CancelMessageMoveTask", {"TaskHandle": "bnVsbA=="}),
        ("SendMessage", {"MessageBody": "x", "MessageSystemAttributes": {"\ud800": TEXT}}),
    ],
)
def test_half_characters_and_long_numbers_are_the_senders_mistakes(
    gateway: Gateway, new_queue: NewQueue, action: str, given: dict[str, Any]
) -> None:
    _, url, _ = new_queue()
    status, answer = ask(gateway, action, {"QueueUrl": url, **given})
    assert (400, True) == (status, answer["__type"].startswith("com.amazonaws.sqs#"))


def test_a_group_is_taken_and_given_back_to_whom_asks(sqs: Any, new_queue: NewQueue) -> None:
    _, url, _ = new_queue()
    groups = {"one": "customer-7", "two": "~" * 128, "three": None}
    sqs.send_message(QueueUrl=url, MessageBody="one", MessageGroupId="customer-7")
    entries = [
        {"Id": "a", "MessageBody": "two", "MessageGroupId": "~" * 128},
        {"Id": "b", "MessageBody": "three"},
    ]
    assert (["a", "b"], []) == ids_of(sqs.send_message_batch(QueueUrl=url, Entries=entries))

    for asked in (
        {"MessageSystemAttributeNames": ["MessageGroupId"]},
        {"AttributeNames": ["MessageGroupId"]},
        {"MessageSystemAttributeNames": ["All"]},
        {},
    ):
        found: dict[str, Any] = {}
        while len(found) < len(groups):
            more = {"MaxNumberOfMessages": 10, "WaitTimeSeconds": 5, "VisibilityTimeout": 60}
            for one in sqs.receive_message(QueueUrl=url, **more, **asked)["Messages"]:
                found[one["Body"]] = one
        shown = {body: one.get("Attributes", {}) for body, one in found.items()}
        expected = groups if asked else dict.fromkeys(groups)
        assert expected == {body: one.get("MessageGroupId") for body, one in shown.items()}
        assert not any("SequenceNumber" in one for one in shown.values())
        assert not any("MessageAttributes" in one for one in found.values())
        for one in found.values():
            sqs.change_message_visibility(
                QueueUrl=url, ReceiptHandle=one["ReceiptHandle"], VisibilityTimeout=0
            )


GROUP_SAYS = (
    "Reason: MessageGroupId can only include alphanumeric and punctuation characters. 1 to 128 in "
    "length."
)


@pytest.mark.parametrize("bad", ["", "x" * 129, "two words", "\u00e9", "\ud800"])
def test_a_group_that_aws_does_not_take_is_refused_and_its_message_not_stored(
    gateway: Gateway, sqs: Any, new_queue: NewQueue, bad: str
) -> None:
    _, url, _ = new_queue()
    one = {"QueueUrl": url, "MessageBody": "bad", "MessageGroupId": bad}
    status, answer = ask(gateway, "SendMessage", one)
    assert (400, "com.amazonaws.sqs#InvalidParameterValue") == (status, answer["__type"])
    assert answer["message"].endswith(GROUP_SAYS)
    entries = [{"Id": "bad", "MessageBody": "bad", "MessageGroupId": bad}, GOOD]

    status, answer = ask(gateway, "SendMessageBatch", {"QueueUrl": url, "Entries": entries})

    assert (200, (["good"], ["bad"])) == (status, ids_of(answer))
    (failed,) = answer["Failed"]
    assert ("InvalidParameterValue", True) == (failed["Code"], failed["SenderFault"])
    assert "x" == get(sqs, url)["Body"]
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_a_deduplication_id_is_still_for_other_queues(sqs: Any, new_queue: NewQueue) -> None:
    _, url, _ = new_queue()
    given = {"MessageBody": "x", "MessageGroupId": "a", "MessageDeduplicationId": "d"}
    code, text, _ = refusal(sqs.send_message, QueueUrl=url, **given)
    assert "InvalidParameterValue" == code
    assert "MessageDeduplicationId is invalid" in text
    assert "not valid for this queue type" in text
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_a_group_goes_to_the_dead_letter_queue_and_back(
    sqs: Any, new_queue: NewQueue, client: cassieq.Client
) -> None:
    _, dead_url, dead_arn = new_queue("dead")
    name, url, _ = new_queue("a", RedrivePolicy=policy_of(dead_arn))
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g")
    get(sqs, url, VisibilityTimeout=0)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    client.repair(name)

    letter = get(sqs, dead_url, VisibilityTimeout=0)
    assert ("x", "g") == (letter["Body"], letter["Attributes"]["MessageGroupId"])
    sqs.start_message_move_task(SourceArn=dead_arn)

    def back() -> list[Any]:
        wanted = {"MessageSystemAttributeNames": ["MessageGroupId"], "WaitTimeSeconds": 1}
        return list(sqs.receive_message(QueueUrl=url, **wanted).get("Messages", []))

    (found,) = wait_until(back, deadline_s=30)
    assert ("x", {"MessageGroupId": "g"}) == (found["Body"], found["Attributes"])
