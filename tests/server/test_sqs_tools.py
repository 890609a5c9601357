"""The calls of Terraform, of CloudFormation (and with it CDK) and of the AWS CLI, and once more.

A second run finds nothing to change. What Terraform calls is in ``internal/service/sqs/queue.go``,
``attrmap.go`` and ``wait.go`` of its AWS provider: a change is only over when all that was set is
read back, until then it waits for three minutes. CloudFormation sets all attributes with every
change, with their defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fixtures.sqs import attributes_of, policy_of

OF_JSON = ("Policy", "RedrivePolicy", "RedriveAllowPolicy")
TERRAFORM = {
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "VisibilityTimeout": "30",
}
"""What it sends for a queue with nothing but a name."""

CLOUDFORMATION = {
    **TERRAFORM,
    "KmsMasterKeyId": "",
    "KmsDataKeyReusePeriodSeconds": "300",
    "RedrivePolicy": "",
    "RedriveAllowPolicy": "",
}
"""What it sends with every change, if the template does not name it."""


def differences(wanted: dict[str, str], found: dict[str, str]) -> dict[str, tuple[str, str | None]]:
    """What a tool finds otherwise than it has set it: policies by value, the rest by its text."""

    def value(name: str, text: str | None) -> object:
        if name == "KmsDataKeyReusePeriodSeconds" and text == "300":
            return None  # a queue without a key does not show it
        return json.loads(text) if text and name in OF_JSON else text or None

    return {
        name: (text, found.get(name))
        for name, text in wanted.items()
        if value(name, text) != value(name, found.get(name))
    }


@dataclass
class Stack:
    """The queues that one configuration describes, by a tool that knows no attribute but these."""

    sqs: Any
    defaults: dict[str, str]
    sets_all: bool
    urls: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def apply(self, name: str, tags: dict[str, str], **wanted: str) -> None:
        """Bring a queue to what is wanted."""
        wanted = {**self.defaults, **wanted}
        if name not in self.urls:
            given = {key: text for key, text in wanted.items() if text}
            self._call("create_queue", QueueName=name, Attributes=given, tags=tags)
            self.urls[name] = self.sqs.get_queue_url(QueueName=name)["QueueUrl"]
        url = self.urls[name]
        if changed := differences(wanted, attributes_of(self.sqs, url)):
            given = wanted if self.sets_all else {key: wanted[key] for key in changed}
            self._call("set_queue_attributes", QueueUrl=url, Attributes=given)
        there = self.sqs.list_queue_tags(QueueUrl=url).get("Tags", {})
        if gone := sorted(there.keys() - tags.keys()):
            self._call("untag_queue", QueueUrl=url, TagKeys=gone)
        if new := dict(tags.items() - there.items()):
            self._call("tag_queue", QueueUrl=url, Tags=new)
        for _ in range(3):
            assert {} == differences(wanted, attributes_of(self.sqs, url))
        assert tags == self.sqs.list_queue_tags(QueueUrl=url).get("Tags", {})

    def destroy(self) -> None:
        """Delete the queues, and wait until they are gone."""
        for url in self.urls.values():
            self._call("delete_queue", QueueUrl=url)
            missing = self.sqs.exceptions.QueueDoesNotExist
            with pytest.raises(missing):
                attributes_of(self.sqs, url)
        self.urls.clear()

    def changes(self) -> list[str]:
        """The calls since the last time, without those that read."""
        made, self.calls = self.calls, []
        return made

    def _call(self, name: str, **arguments: Any) -> None:
        self.calls.append(name)
        getattr(self.sqs, name)(**arguments)


@pytest.fixture(params=["terraform", "cloudformation"])
def stack(request: pytest.FixtureRequest, sqs: Any) -> Iterator[Stack]:
    is_terraform = request.param == "terraform"
    made = Stack(sqs, TERRAFORM if is_terraform else CLOUDFORMATION, sets_all=not is_terraform)
    yield made
    made.destroy()


def test_a_second_run_finds_nothing_to_change(stack: Stack, name: str) -> None:
    own, dead = f"{name[-70:]}-a", f"{name[-70:]}-dead"
    arn = f"arn:aws:sqs:eu-central-1:000000000000:{own}"
    allowed = {"redrivePermission": "byQueue", "sourceQueueArns": [arn]}
    statement = {"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": arn}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    tags = {"team": "a", "cost-centre": "7"}
    queue: dict[str, str] = {
        "RedrivePolicy": policy_of(arn.replace(own, dead), 4),
        "Policy": policy,
        "SqsManagedSseEnabled": "true",
        "VisibilityTimeout": "0",
    }
    dead_queue = {
        "MessageRetentionPeriod": "1209600",
        "RedriveAllowPolicy": json.dumps(allowed),
        "KmsMasterKeyId": "alias/aws/sqs",
    }

    def run() -> list[str]:
        stack.apply(dead, tags, **dead_queue)
        stack.apply(own, tags, **queue)
        return stack.changes()

    assert ["create_queue", "create_queue"] == run()
    assert [] == run()

    # Each is altered, and some are taken away.
    tags = {"team": "b"}
    queue |= {"Policy": "", "DelaySeconds": "5", "SqsManagedSseEnabled": "false"}
    queue |= {"KmsMasterKeyId": "k", "KmsDataKeyReusePeriodSeconds": "600"}
    dead_queue |= {"KmsMasterKeyId": "", "SqsManagedSseEnabled": "true"}
    dead_queue["RedriveAllowPolicy"] = ""
    changes = ["set_queue_attributes", "untag_queue", "tag_queue"]
    assert changes * 2 == run()
    assert [] == run()

    queue["RedrivePolicy"] = ""
    assert ["set_queue_attributes"] == run()
    assert [] == run()
    stack.destroy()
    stack.changes()
    assert ["create_queue", "create_queue"] == run()


def test_a_create_of_the_cli_goes_through_twice(sqs: Any, name: str) -> None:
    given = {"QueueName": name, "tags": {"a": "1"}, "Attributes": {"SqsManagedSseEnabled": "true"}}
    first = sqs.create_queue(**given)["QueueUrl"]
    assert first == sqs.create_queue(**given)["QueueUrl"]
    sqs.delete_queue(QueueUrl=first)
