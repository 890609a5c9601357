"""Operations of the gateway, each with the right that it needs: one table for each door.

Routes, checks of rights, labels of metrics and the OpenAPI document are made of these tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from pydantic import BaseModel

from cassieq_spark.model.rights import Right
from cassieq_spark.server.door import AtAddress
from cassieq_spark.server.rest import admin, answers, messages, models, schedules
from cassieq_spark.server.rest.call import Nothing
from cassieq_spark.server.sqs import messages as sqs_messages
from cassieq_spark.server.sqs import moves
from cassieq_spark.server.sqs import queues as sqs_queues
from cassieq_spark.server.sqs.call import SqsOperation
from cassieq_spark.server.sqs.messages import SEND, each, one
from cassieq_spark.server.sqs.protocol import Kind, Parameters, batch_of, parameters
from cassieq_spark.server.ui import messages as ui_messages
from cassieq_spark.server.ui import queues as ui_queues
from cassieq_spark.server.ui import schedules as ui_schedules
from cassieq_spark.server.ui import session
from cassieq_spark.server.ui.page import Form


@dataclass(frozen=True, slots=True)
class Action(SqsOperation):
    """An action of SQS."""

    parameters: Parameters


@dataclass(frozen=True, slots=True)
class RestOperation(AtAddress):
    """An operation of REST.

    Attributes:
        answers: The model of each good status, the usual one first; None: it has no body.
        body: The model of a body of JSON; a text says what the bytes of another body are, which may
            be unsigned. None: there is no body.
        errors: The statuses of its problems, besides those that every operation has.
    """

    right: Right
    answers: dict[int, type[BaseModel] | None]
    query: type[BaseModel] = Nothing
    body: type[BaseModel] | str | None = None
    errors: tuple[int, ...] = (404,)

    @property
    def is_body_needed(self) -> bool:
        """Whether an empty body is wrong: it lacks a field, or says nothing."""
        return isinstance(self.body, type) and (
            getattr(self.body, "is_needed", False)
            or any(field.is_required() for field in self.body.model_fields.values())
        )


@dataclass(frozen=True, slots=True)
class Page(AtAddress):
    """A page for people, or a form of one.

    Attributes:
        parameters: The model of the query of a GET, or of the form of a POST.
        is_open: Whether one needs no login.
    """

    parameters: type[BaseModel] = Nothing
    is_open: bool = False


QUEUE: Final = "/queues/{queue}"
MESSAGES: Final = f"{QUEUE}/messages"
RECEIPT: Final = f"{MESSAGES}/{{receipt}}"
SCHEDULES: Final = f"{QUEUE}/schedules"
SCHEDULE: Final = f"{SCHEDULES}/{{schedule}}"

# fmt: off
OPERATIONS: Final = (
    RestOperation("listQueues", Right.INFO, admin.list_queues, "GET", "/queues",
                  {200: answers.QueueNames}, query=models.Page, errors=()),
    RestOperation("createQueue", Right.CREATE, admin.create_queue, "PUT", QUEUE,
                  {201: answers.Queue, 200: answers.Queue}, body=models.NewQueue,
                  errors=(404, 409)),
    RestOperation("getQueue", Right.INFO, admin.show_queue, "GET", QUEUE, {200: answers.Queue}),
    RestOperation("alterQueue", Right.CREATE, admin.alter_queue, "PATCH", QUEUE,
                  {200: answers.Queue}, body=models.QueueChange),
    RestOperation("deleteQueue", Right.DELETE, admin.delete_queue, "DELETE", QUEUE, {204: None},
                  query=models.Deletion, errors=(404, 409)),
    RestOperation("getStatistics", Right.INFO, admin.statistics, "GET", f"{QUEUE}/statistics",
                  {200: answers.Statistics}),
    RestOperation("purgeQueue", Right.PURGE, admin.purge_queue, "POST", f"{QUEUE}/purge",
                  {200: answers.Purged}),
    RestOperation("pauseQueue", Right.CREATE, admin.pause_queue, "POST", f"{QUEUE}/pause",
                  {204: None}, body=models.Pause),
    RestOperation("resumeQueue", Right.CREATE, admin.resume_queue, "POST", f"{QUEUE}/resume",
                  {204: None}, body=models.Pause),

    RestOperation("putMessage", Right.PUT, messages.put, "POST", MESSAGES,
                  {201: answers.Put, 200: answers.Put}, query=models.PutOne, body=messages.BODY),
    RestOperation("putMessages", Right.PUT, messages.put_many, "POST", f"{MESSAGES}/batch",
                  {200: answers.PutResults}, body=models.PutMany),
    RestOperation("nextMessages", Right.READ, messages.next_messages, "POST", f"{MESSAGES}/next",
                  {200: answers.Messages, 204: None}, query=models.Next, leases=True),
    RestOperation("peekMessages", Right.READ, messages.peek, "GET", MESSAGES,
                  {200: answers.Messages}, query=models.Peek),
    RestOperation("ackMessage", Right.ACK, messages.ack_one, "DELETE", RECEIPT, {204: None},
                  errors=(404, 409)),
    RestOperation("updateMessage", Right.UPDATE, messages.update_one, "PUT", RECEIPT,
                  {200: answers.NewReceipt}, query=models.Update,
                  body="The bytes of the message.", errors=(404, 409)),
    RestOperation("ackMessages", Right.ACK, messages.ack, "POST", f"{QUEUE}/ack",
                  {200: answers.Verdicts}, body=models.Ack),
    RestOperation("extendMessages", Right.ACK, messages.extend, "POST", f"{QUEUE}/extend",
                  {200: answers.Verdicts}, body=models.Extend),
    RestOperation("releaseMessages", Right.ACK, messages.release, "POST", f"{QUEUE}/release",
                  {200: answers.Verdicts}, body=models.Release),
    RestOperation("rejectMessages", Right.ACK, messages.reject, "POST", f"{QUEUE}/reject",
                  {200: answers.Verdicts}, body=models.Reject),
    RestOperation("updateMessages", Right.UPDATE, messages.update, "POST", f"{QUEUE}/update",
                  {200: answers.Verdicts}, body=models.UpdateMany),
    RestOperation("listDeadLetters", Right.READ, messages.show_letters, "GET",
                  f"{QUEUE}/dead-letters", {200: answers.LettersShown}, query=models.Letters),
    RestOperation("redriveMessages", Right.REDRIVE, messages.redrive, "POST", f"{QUEUE}/redrive",
                  {200: answers.Redriven}, body=models.Redrive),

    RestOperation("listSchedules", Right.INFO, schedules.list_schedules, "GET", SCHEDULES,
                  {200: answers.Schedules}, query=models.SchedulePage),
    RestOperation("createSchedule", Right.CREATE, schedules.create, "PUT", SCHEDULE,
                  {201: answers.Schedule, 200: answers.Schedule}, body=models.NewSchedule,
                  errors=(404, 409), puts=True),
    RestOperation("getSchedule", Right.INFO, schedules.show, "GET", SCHEDULE,
                  {200: answers.Schedule}),
    RestOperation("alterSchedule", Right.CREATE, schedules.alter, "PATCH", SCHEDULE,
                  {200: answers.Schedule}, body=models.ScheduleChange, puts=True),
    RestOperation("deleteSchedule", Right.CREATE, schedules.delete, "DELETE", SCHEDULE,
                  {204: None}, puts=True),
    RestOperation("pauseSchedule", Right.CREATE, schedules.pause, "POST", f"{SCHEDULE}/pause",
                  {200: answers.Schedule}, puts=True),
    RestOperation("resumeSchedule", Right.CREATE, schedules.resume, "POST", f"{SCHEDULE}/resume",
                  {200: answers.Schedule}, puts=True),
    RestOperation("runSchedule", Right.CREATE, schedules.run, "POST", f"{SCHEDULE}/run",
                  {200: answers.Ran}, puts=True),
    RestOperation("backfillSchedule", Right.CREATE, schedules.backfill, "POST",
                  f"{SCHEDULE}/backfill", {200: answers.Backfilled}, body=models.Backfill,
                  puts=True),
    RestOperation("nextTimes", Right.INFO, schedules.next_times, "GET", f"{SCHEDULE}/times",
                  {200: answers.Times}, query=models.HowMany),

    RestOperation("listKeys", Right.ADMIN, admin.list_keys, "GET", "/keys", {200: answers.Keys}),
    RestOperation("createKey", Right.ADMIN, admin.create_key, "POST", "/keys",
                  {201: answers.MadeKey}, body=models.Grants, errors=(404, 409)),
    RestOperation("rotateKey", Right.ADMIN, admin.rotate_key, "POST", "/keys/{key}/rotate",
                  {201: answers.MadeKey}, errors=(404, 409)),
    RestOperation("changeKey", Right.ADMIN, admin.change_key, "PATCH", "/keys/{key}", {204: None},
                  body=models.KeyChange),
    RestOperation("deleteKey", Right.ADMIN, admin.delete_key, "DELETE", "/keys/{key}", {204: None}),
    RestOperation("signToken", Right.ADMIN, admin.sign_token, "POST", "/tokens",
                  {200: answers.SignedToken}, body=models.NewToken),
)

_PAGE: Final = {"NextToken": Kind.TEXT, "MaxResults": Kind.WHOLE}
_ACTIONS: Final = (
    Action("SendMessage", Right.PUT, one(sqs_messages.send),
           parameters("QueueUrl", "MessageBody", **SEND)),
    Action("SendMessageBatch", Right.PUT, each(sqs_messages.send_batch),
           batch_of("MessageBody", **SEND)),
    Action("ReceiveMessage", Right.READ, sqs_messages.receive, parameters(
        "QueueUrl", AttributeNames=Kind.TEXTS, MessageSystemAttributeNames=Kind.TEXTS,
        MessageAttributeNames=Kind.TEXTS, MaxNumberOfMessages=Kind.WHOLE,
        VisibilityTimeout=Kind.WHOLE, WaitTimeSeconds=Kind.WHOLE,
        ReceiveRequestAttemptId=Kind.TEXT), leases=True),
    Action("DeleteMessage", Right.ACK, one(sqs_messages.delete),
           parameters("QueueUrl", "ReceiptHandle")),
    Action("DeleteMessageBatch", Right.ACK, each(sqs_messages.delete), batch_of("ReceiptHandle")),
    Action("ChangeMessageVisibility", Right.ACK, one(sqs_messages.change_visibility), parameters(
        "QueueUrl", "ReceiptHandle", "VisibilityTimeout", VisibilityTimeout=Kind.WHOLE)),
    Action("ChangeMessageVisibilityBatch", Right.ACK, each(sqs_messages.change_visibility),
           batch_of("ReceiptHandle", VisibilityTimeout=Kind.WHOLE)),

    Action("CreateQueue", Right.CREATE, sqs_queues.create,
           parameters("QueueName", Attributes=Kind.MAP, tags=Kind.MAP)),
    Action("GetQueueUrl", Right.INFO, sqs_queues.get_url,
           parameters("QueueName", QueueOwnerAWSAccountId=Kind.TEXT)),
    Action("ListQueues", Right.INFO, sqs_queues.list_queues,
           parameters(QueueNamePrefix=Kind.TEXT, **_PAGE)),
    Action("ListDeadLetterSourceQueues", Right.INFO, sqs_queues.list_sources,
           parameters("QueueUrl", **_PAGE)),
    Action("DeleteQueue", Right.DELETE, sqs_queues.delete, parameters("QueueUrl")),
    Action("PurgeQueue", Right.PURGE, sqs_queues.purge, parameters("QueueUrl")),
    Action("GetQueueAttributes", Right.INFO, sqs_queues.get_attributes,
           parameters("QueueUrl", AttributeNames=Kind.TEXTS)),
    Action("SetQueueAttributes", Right.CREATE, sqs_queues.set_attributes,
           parameters("QueueUrl", "Attributes", Attributes=Kind.MAP)),
    Action("TagQueue", Right.CREATE, sqs_queues.tag,
           parameters("QueueUrl", "Tags", Tags=Kind.MAP)),
    Action("UntagQueue", Right.CREATE, sqs_queues.untag,
           parameters("QueueUrl", "TagKeys", TagKeys=Kind.TEXTS)),
    Action("ListQueueTags", Right.INFO, sqs_queues.list_tags, parameters("QueueUrl")),
    Action("AddPermission", Right.ADMIN, sqs_queues.no_permissions, parameters(
        "QueueUrl", "Label", "AWSAccountIds", "Actions",
        AWSAccountIds=Kind.TEXTS, Actions=Kind.TEXTS)),
    Action("RemovePermission", Right.ADMIN, sqs_queues.no_permissions,
           parameters("QueueUrl", "Label")),

    Action("StartMessageMoveTask", Right.REDRIVE, moves.start, parameters(
        "SourceArn", DestinationArn=Kind.TEXT, MaxNumberOfMessagesPerSecond=Kind.WHOLE)),
    Action("ListMessageMoveTasks", Right.INFO, moves.list_tasks,
           parameters("SourceArn", MaxResults=Kind.WHOLE)),
    Action("CancelMessageMoveTask", Right.REDRIVE, moves.cancel, parameters("TaskHandle")),
)
ACTIONS: Final = {action.name: action for action in _ACTIONS}

PAGES: Final = (
    Page("overview", Right.INFO, ui_queues.overview, "GET", "/", ui_queues.Listing),
    Page("login", None, session.ask, "GET", "/login", session.Login, is_open=True),
    Page("logIn", None, session.log_in, "POST", "/login", session.LoginForm, is_open=True),
    Page("logOut", None, session.log_out, "POST", "/logout", Form, is_open=True),
    Page("queue", Right.INFO, ui_queues.show, "GET", QUEUE, ui_queues.Look),
    Page("messages", Right.READ, ui_messages.show, "GET", f"{QUEUE}/messages", ui_messages.Peek),
    Page("deadLetters", Right.READ, ui_messages.show_dead, "GET", f"{QUEUE}/dead-letters",
         ui_messages.Letters),
    Page("redrive", Right.REDRIVE, ui_messages.redrive, "POST", f"{QUEUE}/redrive",
         ui_messages.RedriveForm),
    Page("pause", Right.INFO, partial(ui_queues.change_pause, pauses=True),
         "POST", f"{QUEUE}/pause", Form),
    Page("resume", Right.INFO, partial(ui_queues.change_pause, pauses=False),
         "POST", f"{QUEUE}/resume", Form),
    Page("askPurge", Right.PURGE, partial(ui_queues.ask, what="purge"), "GET", f"{QUEUE}/purge"),
    Page("purge", Right.PURGE, ui_queues.purge, "POST", f"{QUEUE}/purge", ui_queues.Sure),
    Page("askDelete", Right.DELETE, partial(ui_queues.ask, what="delete"),
         "GET", f"{QUEUE}/delete"),
    Page("delete", Right.DELETE, ui_queues.delete, "POST", f"{QUEUE}/delete", ui_queues.Sure),
    Page("schedules", Right.INFO, ui_schedules.overview, "GET", "/schedules",
         ui_schedules.Listing),
    *(
        Page(f"{what}Schedule", Right.INFO, partial(ui_schedules.act, what=what), "POST",
             f"{SCHEDULE}/{what}", Form)
        for what in ("pause", "resume", "run")
    ),
    Page("repair", Right.INFO, ui_queues.repairs, "GET", "/repair"),
)
# fmt: on
