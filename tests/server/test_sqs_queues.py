"""Queues of the SQS door where moto answers otherwise than AWS does, or not at all.

What AWS answers is what LocalStack has recorded from it (``tests/aws/services/sqs`` in its
sources), and what the API reference and the developer guide say.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from tests.fixtures.sqs import attributes_of, get, new_queue, policy_of, refusal

if TYPE_CHECKING:
    from tests.fixtures.sqs import NewQueue

__all__ = ["new_queue"]  # a fixture

SSE, KMS, REUSE = "SqsManagedSseEnabled", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds"
ONE_SSE = (
    "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS "
    "SSE or SQS SSE."
)


def test_a_new_queue_shows_every_attribute_with_its_default(sqs: Any, new_queue: NewQueue) -> None:
    _, url, arn = new_queue()
    found = attributes_of(sqs, url)
    times = {key: found.pop(key) for key in ("CreatedTimestamp", "LastModifiedTimestamp")}
    assert all(text.isdigit() for text in times.values())
    assert {
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "QueueArn": arn,
        "ReceiveMessageWaitTimeSeconds": "0",
        SSE: "false",
        "VisibilityTimeout": "30",
    } == found


DEFAULTS = {
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "VisibilityTimeout": "30",
    "Policy": "",
    "RedrivePolicy": "",
    KMS: "",
    REUSE: "300",
    "RedriveAllowPolicy": '{"redrivePermission":"allowAll"}',
}


@pytest.mark.parametrize("sse", ["true", "false", "True"])
def test_creating_a_queue_again_with_the_defaults_changes_nothing(
    sqs: Any, new_queue: NewQueue, sse: str
) -> None:
    own, url, _ = new_queue()
    before = attributes_of(sqs, url)

    again = sqs.create_queue(QueueName=own, Attributes={**DEFAULTS, SSE: sse})

    assert url == again["QueueUrl"]
    assert before == attributes_of(sqs, url)
    code, text, _ = refusal(sqs.create_queue, QueueName=own, Attributes={"DelaySeconds": "1"})
    assert ("QueueAlreadyExists", True) == (
        code, text.endswith("a different value for attribute DelaySeconds")
    )  # fmt: skip


def test_attributes_are_compared_by_their_values(sqs: Any, new_queue: NewQueue) -> None:
    _, _, dead = new_queue("dead")
    allowed = {"redrivePermission": "byQueue", "sourceQueueArns": [dead, dead + "2"]}
    given = {
        "DelaySeconds": "7",
        "Policy": '{"Version":"2012-10-17","Statement":[]}',
        "RedrivePolicy": policy_of(dead, 3),
        "RedriveAllowPolicy": json.dumps(allowed),
        KMS: "alias/aws/sqs",
    }
    own, url, _ = new_queue("a", **given)
    otherwise = {
        "DelaySeconds": " 07 ",
        "Policy": '{ "Statement": [], "Version": "2012-10-17" }',
        "RedrivePolicy": f'{{"maxReceiveCount":"3","deadLetterTargetArn":"{dead}"}}',
        "RedriveAllowPolicy": json.dumps({**allowed, "sourceQueueArns": [dead + "2", dead]}),
        KMS: "alias/aws/sqs",
        SSE: "false",
    }

    assert url == sqs.create_queue(QueueName=own, Attributes=otherwise)["QueueUrl"]

    for name, text in (("Policy", "{}"), (KMS, ""), ("RedrivePolicy", policy_of(dead, 4))):
        code, said, _ = refusal(sqs.create_queue, QueueName=own, Attributes={name: text})
        assert ("QueueAlreadyExists", True) == (code, said.endswith(name))


def test_one_kind_of_encryption_is_kept_and_given_back(sqs: Any, new_queue: NewQueue) -> None:
    _, url, _ = new_queue("a", **{SSE: "true"})

    def shown_after(**change: str) -> dict[str, str]:
        sqs.set_queue_attributes(QueueUrl=url, Attributes=change)
        return attributes_of(sqs, url, SSE, KMS, REUSE)

    assert {SSE: "true"} == attributes_of(sqs, url, SSE, KMS, REUSE)
    both = {SSE: "true", KMS: "k"}
    assert ("InvalidAttributeName", ONE_SSE, 400) == refusal(
        sqs.set_queue_attributes, QueueUrl=url, Attributes=both
    )
    assert {SSE: "false", KMS: "k", REUSE: "300"} == shown_after(**{KMS: "k"})
    assert {SSE: "false", KMS: "k", REUSE: "6000"} == shown_after(**{REUSE: "6000"})
    assert {SSE: "false"} == shown_after(**{KMS: "", REUSE: "300"})
    shown_after(**{KMS: "k"})
    assert {SSE: "true"} == shown_after(**{KMS: "", SSE: "true"})


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        (SSE, "yes"),
        (SSE, ""),
        (REUSE, "59"),
        (KMS, "k" * 2_049),
        ("Policy", "{"),
        ("Policy", "[]"),
        ("Policy", '{"a": "\uffff"}'),
        ("RedriveAllowPolicy", '{"redrivePermission": "some"}'),
        ("RedriveAllowPolicy", '{"redrivePermission": "byQueue", "sourceQueueArns": ["x"]}'),
        ("RedriveAllowPolicy", '{"redrivePermission": "byQueue", "sourceQueueArns": [1]}'),
        ("RedriveAllowPolicy", '{"redrivePermission": "denyAll", "sourceQueueArns": ["x"]}'),
    ],
)
def test_a_value_that_an_attribute_cannot_have_is_refused(
    sqs: Any, new_queue: NewQueue, attribute: str, text: str
) -> None:
    _, url, _ = new_queue()
    before = attributes_of(sqs, url)
    code, said, status = refusal(
        sqs.set_queue_attributes, QueueUrl=url, Attributes={attribute: text}
    )
    assert ("InvalidAttributeValue", True, 400) == (code, attribute in said, status)
    assert before == attributes_of(sqs, url)


@pytest.mark.parametrize("unknown", ["FifoQueue", "Nonsense", "a\x01b"])
def test_an_unknown_attribute_is_refused_wherever_it_is_named(
    sqs: Any, new_queue: NewQueue, unknown: str
) -> None:
    own, url, _ = new_queue()
    named = {"Attributes": {unknown: "false"}}
    calls = [
        (sqs.set_queue_attributes, {"QueueUrl": url, **named}),
        (sqs.create_queue, {"QueueName": f"{own}-2", **named}),
    ]
    if unknown != "FifoQueue":
        wanted = {"QueueUrl": url, "AttributeNames": [unknown]}
        calls += [(sqs.get_queue_attributes, wanted), (sqs.receive_message, wanted)]
        more = {"QueueUrl": url, "MessageSystemAttributeNames": [unknown]}
        calls.append((sqs.receive_message, more))
    text = f"Unknown Attribute {unknown}.".replace("\x01", "\ufffd")
    for call, arguments in calls:
        assert ("InvalidAttributeName", text, 400) == refusal(call, **arguments)
    # Older models listed attributes of queues where those of messages belong.
    answer = sqs.receive_message(QueueUrl=url, AttributeNames=["Policy", "SequenceNumber"])
    assert "Messages" not in answer


def test_dead_letter_queues_in_a_cycle_are_a_wrong_value(sqs: Any, new_queue: NewQueue) -> None:
    _, url, arn = new_queue("a")
    given = {"RedrivePolicy": policy_of(arn)}
    code, said, status = refusal(sqs.set_queue_attributes, QueueUrl=url, Attributes=given)
    assert ("InvalidParameterValue", 400) == (code, status)
    assert said.startswith("[cassieq:dead_letter_cycle] the dead-letter queues ")


def test_a_queue_says_who_may_name_it_as_dead_letter_queue(sqs: Any, new_queue: NewQueue) -> None:
    _, dead_url, dead = new_queue("dead")
    own, url, arn = new_queue("a")

    def allow(**policy: Any) -> None:
        given = {"RedriveAllowPolicy": json.dumps(policy)}
        sqs.set_queue_attributes(QueueUrl=dead_url, Attributes=given)

    wanted = {"RedrivePolicy": policy_of(dead)}
    for policy in (
        {"redrivePermission": "denyAll"},
        {"redrivePermission": "byQueue", "sourceQueueArns": [arn + "-other"]},
        {"redrivePermission": "byQueue"},
    ):
        allow(**policy)
        for call, named in (
            (sqs.set_queue_attributes, {"QueueUrl": url}),
            (sqs.create_queue, {"QueueName": f"{own}-2"}),
        ):
            code, said, _ = refusal(call, **named, Attributes=wanted)
            assert ("InvalidParameterValue", True) == (code, "does not allow queue" in said)
    assert "RedrivePolicy" not in attributes_of(sqs, url)

    allow(redrivePermission="byQueue", sourceQueueArns=[arn])
    sqs.set_queue_attributes(QueueUrl=url, Attributes=wanted)
    assert policy_of(dead) == attributes_of(sqs, url, "RedrivePolicy")["RedrivePolicy"]
    sqs.set_queue_attributes(QueueUrl=dead_url, Attributes={"RedriveAllowPolicy": ""})
    assert url == sqs.create_queue(QueueName=own, Attributes=wanted)["QueueUrl"]


def test_a_purge_within_a_minute_of_another_is_refused(
    sqs: Any, new_queue: NewQueue, client: cassieq.Client
) -> None:
    own, url, _ = new_queue()
    sqs.purge_queue(QueueUrl=url)
    sqs.send_message(QueueUrl=url, MessageBody="stays")

    text = f"Only one PurgeQueue operation on {own} is allowed every 60 seconds."
    code = "AWS.SimpleQueueService.PurgeQueueInProgress"
    assert (code, text, 403) == refusal(sqs.purge_queue, QueueUrl=url)
    assert "stays" == get(sqs, url)["Body"]

    client.label_queue(own, {"sqs.purged": str(client.now_us() // 1_000_000 - 61)})
    sqs.purge_queue(QueueUrl=url)


@pytest.mark.parametrize("tags", [{"aws:x": "1"}, {"AWS:x": "1"}, {"a\x01": "1"}, {"a": "\x01"}])
def test_tags_that_aws_does_not_take_are_refused(
    sqs: Any, new_queue: NewQueue, tags: dict[str, str]
) -> None:
    own, url, _ = new_queue()
    assert "InvalidParameterValue" == refusal(sqs.tag_queue, QueueUrl=url, Tags=tags)[0]
    assert (
        "InvalidParameterValue"
        == refusal(sqs.create_queue, QueueName=f"{own}-2", tags=tags)[0]
    )  # fmt: skip
    assert {} == sqs.list_queue_tags(QueueUrl=url).get("Tags", {})
