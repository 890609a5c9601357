"""Dead letters and message move tasks of the SQS door, as AWS has them."""

from __future__ import annotations

import asyncio
import base64
import json
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

import cassieq_spark as cassieq
from cassieq_spark.aio.client import for_tasks
from cassieq_spark.repair.report import Redriven
from cassieq_spark.server.backend import Backend
from cassieq_spark.server.sqs.moves import LABEL, LATE, SILENT_MS, UNTIL, step
from cassieq_spark.testing import wait_until
from tests.fixtures.sqs import get, new_queue, policy_of, refusal

if TYPE_CHECKING:
    from tests.fixtures.sqs import NewQueue

__all__ = ["new_queue"]  # a fixture


def test_a_dead_letter_keeps_its_time_and_its_count_until_it_is_redriven(
    sqs: Any, new_queue: NewQueue, client: cassieq.Client
) -> None:
    _, last, last_arn = new_queue("last")
    middle_name, middle, middle_arn = new_queue("middle", RedrivePolicy=policy_of(last_arn))
    first_name, first, first_arn = new_queue("first", RedrivePolicy=policy_of(middle_arn, 2))
    sqs.send_message(QueueUrl=first, MessageBody="bad")

    alive = [get(sqs, first, VisibilityTimeout=0)["Attributes"] for _ in range(2)]
    client.repair(first_name)
    dead = get(sqs, middle, VisibilityTimeout=0)["Attributes"]
    client.repair(middle_name)
    twice_dead = get(sqs, last, VisibilityTimeout=0)["Attributes"]

    sent = alive[0]["SentTimestamp"]
    each = [*alive, dead, twice_dead]
    assert ["1", "2", "3", "4"] == [one["ApproximateReceiveCount"] for one in each]
    assert {sent} == {one["SentTimestamp"] for one in each}
    assert all(sent <= one["ApproximateFirstReceiveTimestamp"] for one in each)
    assert [None, None, first_arn, middle_arn] == [
        one.get("DeadLetterQueueSourceArn") for one in each
    ]
    _, other, other_arn = new_queue("other")
    sqs.start_message_move_task(SourceArn=last_arn, DestinationArn=other_arn)
    moved = get(sqs, other, WaitTimeSeconds=20)["Attributes"]
    assert ("1", True) == (moved["ApproximateReceiveCount"], moved["SentTimestamp"] > sent)
    assert "DeadLetterQueueSourceArn" not in moved


ODD_HISTORIES = (
    "[]",
    "{",
    "[1]",
    '[{"first-time": 1, "deliveries": "2"}]',
    '[{"deliveries": "2"}]',
)


@pytest.mark.parametrize("history", ODD_HISTORIES)
def test_a_history_that_a_program_wrote_is_shown_as_none(
    sqs: Any, new_queue: NewQueue, client: cassieq.Client, history: str
) -> None:
    own, url, _ = new_queue()
    client.queue(own).put(
        b"x", headers={"cassieq-source-queue": "q", "cassieq-history": history}
    )  # fmt: skip
    assert "1" == get(sqs, url)["Attributes"]["ApproximateReceiveCount"]


@pytest.fixture
def dead_letters(new_queue: NewQueue, client: cassieq.Client) -> tuple[str, str, str]:
    """Name, URL and ARN of a dead-letter queue with five messages; its source is their target."""
    own, url, arn = new_queue("dead")
    source, _, _ = new_queue("a", RedrivePolicy=policy_of(arn))
    client.queue(source).put_many([b"x"] * 5)
    client.queue(source).reject(client.queue(source).get(5, wait=5))
    client.repair(source)
    wait_until(lambda: client.queue(own).stats().visible == 5, deadline_s=20)
    return own, url, arn


def tasks(sqs: Any, arn: str, **more: Any) -> list[dict[str, Any]]:
    return list(sqs.list_message_move_tasks(SourceArn=arn, **more)["Results"])


def test_a_task_moves_at_its_rate_until_it_is_cancelled(
    sqs: Any, dead_letters: tuple[str, str, str], client: cassieq.Client
) -> None:
    own, _, arn = dead_letters
    handle = sqs.start_message_move_task(SourceArn=arn, MaxNumberOfMessagesPerSecond=1)[
        "TaskHandle"
    ]

    def moved() -> int:
        return int(tasks(sqs, arn)[0]["ApproximateNumberOfMessagesMoved"])

    wait_until(lambda: moved() >= 1, deadline_s=20)
    running = tasks(sqs, arn)[0]
    assert (handle, "RUNNING", 1, 5) == (
        running["TaskHandle"], running["Status"], running["MaxNumberOfMessagesPerSecond"],
        running["ApproximateNumberOfMessagesToMove"],
    )  # fmt: skip
    text = (
        "There is already a task running. Only one active task is allowed for a source queue arn "
        "at a given time."
    )
    assert ("InvalidParameterValue", text, 400) == refusal(
        sqs.start_message_move_task, SourceArn=arn
    )

    answer = sqs.cancel_message_move_task(TaskHandle=handle)

    assert 1 <= answer["ApproximateNumberOfMessagesMoved"] < 5
    wait_until(lambda: tasks(sqs, arn)[0]["Status"] == "CANCELLED", deadline_s=20)
    ended = tasks(sqs, arn)[0]
    assert "TaskHandle" not in ended
    assert ended["ApproximateNumberOfMessagesMoved"] < 5
    left = 5 - int(ended["ApproximateNumberOfMessagesMoved"])
    assert left == client.queue(own).stats().visible
    assert (
        "AWS.SimpleQueueService.UnsupportedOperation"
        == (refusal(sqs.cancel_message_move_task, TaskHandle=handle)[0])
    )

    sqs.start_message_move_task(SourceArn=arn)
    wait_until(lambda: tasks(sqs, arn)[0]["Status"] == "COMPLETED", deadline_s=20)
    assert ["COMPLETED", "CANCELLED"] == [one["Status"] for one in tasks(sqs, arn, MaxResults=10)]
    assert 0 == client.queue(own).stats().visible


def test_what_is_no_task_cannot_be_cancelled_and_what_is_no_queue_not_moved(
    sqs: Any, dead_letters: tuple[str, str, str]
) -> None:
    _, _, arn = dead_letters

    def cancel(**told: str) -> tuple[str, str, int]:
        handle = base64.b64encode(json.dumps(told).encode()).decode()
        return refusal(sqs.cancel_message_move_task, TaskHandle=handle)

    missing = "ResourceNotFoundException"
    none = "The resource that you specified for the {} parameter doesn't exist."
    assert ("InvalidParameterValue", "Value for parameter TaskHandle is invalid.", 400) == refusal(
        sqs.cancel_message_move_task, TaskHandle="foobared"
    )
    assert (missing, none.format("SourceArn"), 404) == cancel(taskId="1", sourceArn=arn + "-none")
    assert (missing, "Task does not exist.", 404) == cancel(taskId="1", sourceArn=arn)
    assert (missing, none.format("SourceArn"), 404) == refusal(
        sqs.start_message_move_task, SourceArn=arn + "-none"
    )
    assert (missing, none.format("DestinationArn"), 404) == refusal(
        sqs.start_message_move_task, SourceArn=arn, DestinationArn=arn + "-none"
    )
    for rate in (0, 501):
        code, text, _ = refusal(
            sqs.start_message_move_task, SourceArn=arn, MaxNumberOfMessagesPerSecond=rate
        )
        assert ("InvalidParameterValue", True) == (code, f"Value {rate} for" in text)
    assert "InvalidParameterValue" == refusal(
        sqs.list_message_move_tasks, SourceArn=arn, MaxResults=11
    )[0]  # fmt: skip
    assert [] == tasks(sqs, arn)


def test_the_last_ten_tasks_are_listed_with_those_of_an_older_release(
    sqs: Any, dead_letters: tuple[str, str, str], client: cassieq.Client
) -> None:
    own, _, arn = dead_letters
    of_older = {
        "TaskHandle": "6c2ed0a2-5ec5-4f29-a1a3-65a4cc5ed5ad",
        "Status": "COMPLETED",
        "SourceArn": arn,
        "ApproximateNumberOfMessagesMoved": 3,
        "ApproximateNumberOfMessagesToMove": 3,
        "StartedTimestamp": 1_700_000_000_000,
    }
    client.label_queue(own, {"sqs.move": json.dumps(of_older)})
    shown = {key: one for key, one in of_older.items() if key != "TaskHandle"}
    assert [shown] == tasks(sqs, arn)

    started = []
    for _ in range(10):
        sqs.start_message_move_task(SourceArn=arn)
        wait_until(lambda: tasks(sqs, arn)[0]["Status"] == "COMPLETED", deadline_s=20)
        started.append(tasks(sqs, arn)[0]["StartedTimestamp"])
        if len(started) == 9:
            assert shown == tasks(sqs, arn, MaxResults=10)[-1]

    assert started[::-1] == [one["StartedTimestamp"] for one in tasks(sqs, arn, MaxResults=10)]
    assert 1 == len(tasks(sqs, arn))


@pytest.mark.parametrize("label", ["", "{", "[]", "1", '{"Status": 1}', '{"Status": "RUNNING"}'])
def test_labels_that_are_no_notes_are_no_tasks(
    sqs: Any, new_queue: NewQueue, client: cassieq.Client, label: str
) -> None:
    own, _, arn = new_queue()
    client.label_queue(own, {"sqs.move": label, "sqs.moves": label})
    assert [] == tasks(sqs, arn, MaxResults=10)


def test_a_note_is_good_for_a_minute_or_until_it_says_but_not_for_long(
    sqs: Any, dead_letters: tuple[str, str, str], client: cassieq.Client
) -> None:
    """That of an older release says when its task was heard of; a program may have forged one."""
    own, _, arn = dead_letters
    for field, seconds, status in (
        ("HeardTimestamp", -59, "RUNNING"),
        ("HeardTimestamp", -61, "FAILED"),
        (UNTIL, 60, "RUNNING"),
        (UNTIL, 600, "FAILED"),
    ):
        at_ms = client.now_us() // 1_000 + 1_000 * seconds
        note = {"TaskHandle": "x", "Status": "RUNNING", field: at_ms}
        client.label_queue(own, {LABEL: json.dumps(note)})
        assert status == tasks(sqs, arn)[0]["Status"]


def test_a_task_that_is_late_ends_and_leaves_alone_the_note_of_the_next_one(
    sqs: Any, dead_letters: tuple[str, str, str], client: cassieq.Client
) -> None:
    """Its gateway stood still in a step. By then it was listed as failed, and others went on."""
    own, _, arn = dead_letters
    backend = cast("Backend", SimpleNamespace(client=for_tasks(client)))
    mine: dict[str, Any] = {
        "TaskHandle": "mine", "Status": "RUNNING", UNTIL: client.now_us() // 1_000,
        "ApproximateNumberOfMessagesMoved": 0, "ApproximateNumberOfMessagesToMove": 2,
    }  # fmt: skip
    others = {"TaskHandle": "others", "Status": "RUNNING", UNTIL: mine[UNTIL] + 60_000}
    client.label_queue(own, {LABEL: json.dumps(mine)})

    async def slowly(*, max_messages: int) -> Redriven:
        await for_tasks(client).label_queue(own, {LABEL: json.dumps(others)})
        return await for_tasks(client).redrive(own, max_messages=max_messages - 1)

    asyncio.run(step(backend, own, slowly, mine))

    assert ("FAILED", LATE) == (mine["Status"], mine["FailureReason"])
    assert others == json.loads(client.queue(own).labels[LABEL])
    mine |= {"Status": "RUNNING", UNTIL: client.now_us() // 1_000}
    client.label_queue(own, {LABEL: json.dumps(mine)})
    asyncio.run(step(backend, own, partial(for_tasks(client).redrive, own), mine))
    assert ("FAILED", LATE) == tuple(tasks(sqs, arn)[0][key] for key in ("Status", "FailureReason"))


def test_a_task_whose_gateway_has_ended_is_listed_as_failed(
    sqs: Any, dead_letters: tuple[str, str, str], client: cassieq.Client
) -> None:
    own, _, arn = dead_letters
    sqs.start_message_move_task(SourceArn=arn)
    wait_until(lambda: tasks(sqs, arn)[0]["Status"] == "COMPLETED", deadline_s=20)
    note = json.loads(client.queue(own).labels["sqs.move"])
    silent = {**note, "Status": "RUNNING", UNTIL: note[UNTIL] - SILENT_MS}
    client.label_queue(own, {"sqs.move": json.dumps(silent)})

    (task,) = tasks(sqs, arn)

    reason = "The gateway that ran the task has ended."
    assert ("FAILED", reason) == (task["Status"], task["FailureReason"])
    sqs.start_message_move_task(SourceArn=arn)
    wait_until(lambda: tasks(sqs, arn)[0]["Status"] == "COMPLETED", deadline_s=20)
