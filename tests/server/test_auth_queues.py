"""The SQS door with accounts: which right each action needs, and that accounts are apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

import cassieq_spark as cassieq
from cassieq_spark.server.operations import ACTIONS
from cassieq_spark.server.sqs.call import number_of
from cassieq_spark.testing import wait_until
from tests.fixtures.accounts import Account, all_but, arn_of, pair, refusal
from tests.server.conftest import Gateway, sqs_at

ZEROS = "0" * 12


@pytest.fixture
def url(acme: Any) -> str:
    found: str = acme.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "60"})[
        "QueueUrl"
    ]
    return found


def parameters(action: str, url: str, arn: str) -> dict[str, Any]:
    """What boto3 needs for each action."""
    entry = {"Id": "1", "ReceiptHandle": "x", "VisibilityTimeout": 1}
    own: dict[str, dict[str, Any]] = {
        "AddPermission": {"Label": "x", "AWSAccountIds": ["1" * 12], "Actions": ["*"]},
        "CancelMessageMoveTask": {"TaskHandle": "x"},
        "ChangeMessageVisibility": {"ReceiptHandle": "x", "VisibilityTimeout": 1},
        "ChangeMessageVisibilityBatch": {"Entries": [entry]},
        "CreateQueue": {"QueueName": "new"},
        "DeleteMessage": {"ReceiptHandle": "x"},
        "DeleteMessageBatch": {"Entries": [{"Id": "1", "ReceiptHandle": "x"}]},
        "GetQueueUrl": {"QueueName": "orders"},
        "ListMessageMoveTasks": {"SourceArn": arn},
        "ListQueues": {},
        "RemovePermission": {"Label": "x"},
        "SendMessage": {"MessageBody": "x"},
        "SendMessageBatch": {"Entries": [{"Id": "1", "MessageBody": "x"}]},
        "SetQueueAttributes": {"Attributes": {"DelaySeconds": "1"}},
        "StartMessageMoveTask": {"SourceArn": arn},
        "TagQueue": {"Tags": {"a": "b"}},
        "UntagQueue": {"TagKeys": ["a"]},
    }
    without_url = {
        "CancelMessageMoveTask", "CreateQueue", "GetQueueUrl", "ListMessageMoveTasks",
        "ListQueues", "StartMessageMoveTask",
    }  # fmt: skip
    named = {} if action in without_url else {"QueueUrl": url}
    return {**named, **own.get(action, {})}


def method_of(sqs: Any, action: str) -> Callable[..., Any]:
    names = {wire: name for name, wire in sqs.meta.method_to_api_mapping.items()}
    found: Callable[..., Any] = getattr(sqs, names[action])
    return found


def test_each_action_asks_for_its_right_and_says_which_is_missing(
    guarded: Gateway, account: Account, acme: Any, url: str
) -> None:
    arn = arn_of(acme, url)
    rights = {action: one.right for action, one in ACTIONS.items()}
    lacking = {one: pair(account.new_key(*all_but(one))) for one in set(rights.values())}
    for action, right in rights.items():
        without = sqs_at(guarded.url, key=lacking[right])
        status, code, text = refusal(method_of(without, action), **parameters(action, url, arn))
        assert (action, 403, "AccessDenied") == (action, status, code)
        assert f"lacks the right {right.value!r}" in text, action
        assert lacking[right][0] in text, action
        without.close()


def test_each_action_needs_no_other_right(
    guarded: Gateway, account: Account, acme: Any, url: str
) -> None:
    arn = arn_of(acme, url)
    clients = {
        right: sqs_at(guarded.url, key=account.key_for(right.value))
        for right in {one.right for one in ACTIONS.values()}
    }
    last = ["PurgeQueue", "DeleteQueue"]
    for action in [*sorted(set(ACTIONS) - {*last}), *last]:
        try:
            method_of(clients[ACTIONS[action].right], action)(**parameters(action, url, arn))
        except ClientError as error:
            assert "AccessDenied" != error.response["Error"]["Code"], action  # noqa: PT017 - any other will do
    for one in clients.values():
        one.close()


def test_rights_are_for_the_queues_that_their_patterns_name(
    guarded: Gateway, account: Account, acme: Any, url: str
) -> None:
    other = acme.create_queue(QueueName="in-1")["QueueUrl"]
    limited = sqs_at(guarded.url, key=account.key_for("put,info", "in-*"))
    limited.send_message(QueueUrl=other, MessageBody="x")
    assert [other] == limited.list_queues()["QueueUrls"]
    status, code, text = refusal(limited.send_message, QueueUrl=url, MessageBody="x")
    assert (403, "AccessDenied") == (status, code)
    assert f"'put' on queue '{account.name}/orders'" in text


def test_nothing_of_another_account_is_reached_or_listed(
    guarded: Gateway,
    new_account: Callable[[], Account],
    client: cassieq.Client,
    acme: Any,
    url: str,
) -> None:
    theirs = new_account()
    other = sqs_at(guarded.url, key=theirs.key)
    their_url = other.create_queue(QueueName="orders")["QueueUrl"]
    only_theirs = other.create_queue(QueueName="only-theirs")["QueueUrl"]
    acme.send_message(QueueUrl=url, MessageBody="mine")
    (message,) = acme.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]

    assert "Messages" not in other.receive_message(QueueUrl=their_url)
    assert [url] == acme.list_queues()["QueueUrls"]
    assert {their_url, only_theirs} == set(other.list_queues()["QueueUrls"])
    for their in (
        their_url,
        only_theirs,
        f"{guarded.url}/{ZEROS}/orders",
        f"{guarded.url}/{theirs.name}/orders",
        f"{guarded.url}/{number_of(theirs.name)}%2Forders",
    ):
        _, code, _ = refusal(acme.send_message, QueueUrl=their, MessageBody="x")
        assert "AWS.SimpleQueueService.NonExistentQueue" == code
    _, code, _ = refusal(acme.get_queue_url, QueueName="only-theirs")
    assert "AWS.SimpleQueueService.NonExistentQueue" == code
    _, code, _ = refusal(acme.get_queue_url, QueueName=f"{theirs.name}/only-theirs")
    assert "AWS.SimpleQueueService.NonExistentQueue" == code
    _, code, _ = refusal(
        acme.get_queue_url,
        QueueName="only-theirs",
        QueueOwnerAWSAccountId=number_of(theirs.name),
    )
    assert "AWS.SimpleQueueService.NonExistentQueue" == code

    # A receipt is worth nothing with another queue, and harms nothing.
    _, code, _ = refusal(
        other.delete_message, QueueUrl=their_url, ReceiptHandle=message["ReceiptHandle"]
    )
    assert "ReceiptHandleIsInvalid" == code
    _, code, _ = refusal(
        other.change_message_visibility,
        QueueUrl=their_url,
        ReceiptHandle=message["ReceiptHandle"],
        VisibilityTimeout=0,
    )
    assert "ReceiptHandleIsInvalid" == code
    acme.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    other.close()
    assert 0 == client.queue(f"{theirs.name}/orders").stats().visible


def test_dead_letters_and_moves_stay_in_the_account(
    guarded: Gateway, new_account: Callable[[], Account], account: Account, acme: Any, url: str
) -> None:
    theirs = new_account()
    other = sqs_at(guarded.url, key=theirs.key)
    their_arn = arn_of(other, other.create_queue(QueueName="dead")["QueueUrl"])
    dead = acme.create_queue(QueueName="dead")["QueueUrl"]

    def policy(arn: str) -> dict[str, str]:
        return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})}

    _, code, text = refusal(acme.set_queue_attributes, QueueUrl=url, Attributes=policy(their_arn))
    assert "InvalidParameterValue" == code
    assert "owner should be same as the source" in text
    _, code, _ = refusal(acme.create_queue, QueueName="more", Attributes=policy(their_arn))
    assert "InvalidParameterValue" == code
    acme.set_queue_attributes(QueueUrl=url, Attributes=policy(arn_of(acme, dead)))
    assert [url] == acme.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"]
    shown = acme.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])
    assert policy(arn_of(acme, dead)) == shown["Attributes"]
    assert (
        url
        == acme.create_queue(QueueName="orders", Attributes=policy(arn_of(acme, dead)))["QueueUrl"]
    )

    for arguments in (
        {"SourceArn": their_arn},
        {"SourceArn": arn_of(acme, dead), "DestinationArn": their_arn},
    ):
        _, code, _ = refusal(acme.start_message_move_task, **arguments)
        assert "ResourceNotFoundException" == code
    acme.start_message_move_task(SourceArn=arn_of(acme, dead))
    task = wait_until(
        lambda: [
            one
            for one in acme.list_message_move_tasks(SourceArn=arn_of(acme, dead))["Results"]
            if one["Status"] != "RUNNING"
        ],
        deadline_s=30,
    )
    assert "COMPLETED" == task[0]["Status"]

    # Messages would go there, so it needs the right to put there.
    limited = sqs_at(guarded.url, key=account.key_for("create,redrive,info"))
    status, code, text = refusal(
        limited.set_queue_attributes, QueueUrl=url, Attributes=policy(arn_of(acme, dead))
    )
    assert (403, "AccessDenied") == (status, code)
    assert f"'put' on queue '{account.name}/dead'" in text
    limited.close()
    other.close()
