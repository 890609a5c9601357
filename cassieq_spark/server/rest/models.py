"""Define the bodies and queries of requests."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from types import NoneType
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    FailFast,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from cassieq_spark.errors import BodyInvalid, OptionInvalid
from cassieq_spark.model import group as groups
from cassieq_spark.model import rights as rules
from cassieq_spark.model.dead_letter import is_own
from cassieq_spark.model.lanes import MAX_KEY_BYTES, MAX_PRIORITIES
from cassieq_spark.options import OPTIONS, Scope, arguments, values
from cassieq_spark.options import schedules as schedule_options
from cassieq_spark.options.option import THIRTY_DAYS_S
from cassieq_spark.queue.inspect.letters import KEYS
from cassieq_spark.server.rest.call import Ranged, Strict, wrong_alone

MOST_IN_BATCH: Final = 1_000
MOST_AT_ONCE: Final = 200
MOST_WAIT_S: Final = 60.0
MOST_SHOWN: Final = 1_000

SETTINGS_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        option.name: {
            "anyOf": [dict(option.values.schema), {"type": "null"}],
            "description": option.doc.replace("`", ""),
            "default": option.default,
        }
        for option in OPTIONS
        if Scope.QUEUE in option.scopes
    },
}
"""The settings of a queue, from the table of options. The client checks them."""

Settings = Annotated[dict[str, Any], WithJsonSchema(SETTINGS_SCHEMA)]

Ttl = Annotated[float, Ranged(arguments.TTL)]
Seconds = Annotated[float, Ranged(values.seconds(0, THIRTY_DAYS_S, from_text=False))]
Delay = Annotated[float, Ranged(arguments.DELAY)]
Moment = Annotated[datetime, Ranged(values.moment())]
Visibility = Annotated[float, Ranged(values.seconds(0.1, THIRTY_DAYS_S, from_text=False))]
Wait = Annotated[float, Ranged(values.seconds(0, MOST_WAIT_S, from_text=False))]
Priority = Annotated[int, Ranged(values.whole(0, MAX_PRIORITIES - 1, from_text=False))]
Shown = Annotated[int, Ranged(values.whole(1, MOST_SHOWN, from_text=False))]
RightName = Annotated[
    str, WithJsonSchema({"type": "string", "enum": [right.value for right in rules.Right]})
]
Pattern = Annotated[str, WithJsonSchema({"type": "string", "pattern": f"^{rules.PATTERN}$"})]
TokenSeconds = Annotated[float, Ranged(values.seconds(0, rules.LONGEST_TOKEN_S, from_text=False))]
Together = Annotated[int, Ranged(values.whole(1, MOST_AT_ONCE, from_text=False))]
Many = Annotated[int, Ranged(values.whole(1, arguments.MOST_MESSAGES, from_text=False))]
Key = Annotated[
    str,
    AfterValidator(lambda text: arguments.key("key", text)),
    Field(min_length=1, max_length=MAX_KEY_BYTES, description="Messages of one key stay in order."),
]
Tag = Annotated[str, Field(description="A text to route the message by.")]
Group = Annotated[
    str,
    AfterValidator(lambda text: arguments.group("group", text)),
    Field(
        min_length=1,
        max_length=groups.MOST_CHARACTERS,
        description="Whom the message belongs to, such as a customer. The consumer gets it "
        "back. It changes neither order nor delivery.",
        json_schema_extra={"pattern": f"^{groups.PATTERN}$"},
    ),
]
MessageId = Annotated[
    str,
    AfterValidator(lambda text: str(arguments.message_id(text))),
    Field(
        description="A UUID. Default: a new one. Several messages may have the same one: consumers "
        "can tell by it that a message was put again.",
        json_schema_extra={"format": "uuid"},
    ),
]
DedupKey = Annotated[
    str,
    AfterValidator(lambda text: arguments.key("dedup_key", text)),
    Field(
        min_length=1,
        max_length=MAX_KEY_BYTES,
        description="Within the queue's dedup_window, a further put of the key stores nothing.",
    ),
]
Encoding = Literal["text", "base64"]
BodyText = Annotated[bytes, WithJsonSchema({"type": "string"})]
Texts = Annotated[dict[str, str], wrong_alone(str)]
Receipts = Annotated[list[str], Field(min_length=1, max_length=MOST_AT_ONCE)]


def decoded(text: object, encoding: object) -> bytes:
    """The bytes of a body in JSON.

    Raises:
        BodyInvalid: It is not text, or not base64.
    """
    if not isinstance(text, str):
        raise BodyInvalid(
            f"a body in JSON is text, not {type(text).__name__}. Other bodies need the encoding "
            "'base64'"
        )
    if encoding != "base64":
        return arguments.body(text.encode())
    try:
        return arguments.body(base64.b64decode(text.encode("ascii"), validate=True))
    except (binascii.Error, ValueError) as error:
        if isinstance(error, BodyInvalid):
            raise
        raise BodyInvalid(
            "a body with the encoding 'base64' is not base64. Use A-Z, a-z, 0-9, '+', '/' and the "
            "padding '='"
        ) from error


def sent_headers(headers: dict[str, str]) -> dict[str, str]:
    """Check the headers of a message that a producer sends.

    Raises:
        OptionInvalid: They are malformed, or one is the queue's own.
    """
    for name in filter(is_own, headers):
        raise OptionInvalid(
            f"header {name[:200]!r} is one that only the queue writes, for a group or when a "
            "message dies or is redriven. Leave out headers that begin with 'cassieq-'"
        )
    return arguments.headers(headers)


# --- queries --------------------------------------------------------------------------------------


class Page(Strict):
    """The queues to list."""

    prefix: str = Field("", description="Only queues whose names begin with this.")
    after: str = Field("", description="Begin after this name: the member next of the last page.")
    max_queues: Shown = Field(100, description="The most queues of one page.")


class SchedulePage(Strict):
    """The schedules to list."""

    after: str = Field("", description="Begin after this name: the member next of the last page.")
    max_schedules: Shown = Field(100, description="The most schedules of one page.")


class HowMany(Strict):
    """The number of times to show."""

    count: Shown = Field(5, description="The most times.")


class Deletion(Strict):
    """The conditions under which a queue is not deleted."""

    if_empty: bool = Field(False, description="Delete it only if it holds no message.")
    if_unused: bool = Field(False, description="Delete it only if no message is in flight.")
    force: bool = Field(
        False, description="Delete it although queues name it as their dead-letter queue."
    )


class PutOne(Strict):
    """The settings of a message that go with its body."""

    delay: Delay = Field(0.0, description="Seconds during which nobody gets the message.")
    due_at: Moment | None = Field(
        None,
        description="Instead of delay: the time before which nobody gets it, with a time zone.",
    )
    ttl: Ttl | None = Field(
        None, description="Seconds from when it is due until it expires. Default: for ever."
    )
    priority: Priority = Field(0, description="Messages of a higher one go out first.")
    key: Key | None = None
    tag: Tag | None = None
    group: Group | None = None
    message_id: MessageId | None = None
    dedup_key: DedupKey | None = None
    dedup_until: Literal["window", "acked", "leased"] = Field(
        "window", description="Until when the former put of the key stands for it."
    )


class Next(Strict):
    """The messages to lease, and for how long."""

    max_messages: Together = Field(1, description="The most messages.")
    wait: Wait | None = Field(
        None,
        description="Seconds to wait for the first message. A header Prefer: wait=20 is the same.",
    )
    visibility_timeout: Visibility | None = Field(
        None, description="Seconds during which nobody else gets them. Default: the queue's."
    )
    min_priority: Priority = Field(0, description="Only this priority and higher ones.")


class Peek(Strict):
    """The number of messages to show."""

    max_messages: Together = Field(10, description="The most messages.")


class Update(Strict):
    """The change to the lease."""

    visibility_timeout: Seconds | None = Field(
        None, description="Seconds from now on; 0 gives the message back. Default: unchanged."
    )


class Letters(Strict):
    """The dead letters to show."""

    where: list[str] = Field(
        [],
        description=f"KEY=VALUE, repeatable. Keys: {KEYS}. A message must match every key that is "
        "given, by one of its values.",
    )
    before: str | None = Field(None, description="Only messages that died before this time.")
    after: str | None = Field(None, description="Only messages that died at this time or later.")
    max_messages: Together = Field(20, description="The most messages.")


# --- bodies ---------------------------------------------------------------------------------------


class NewQueue(Strict):
    """Settings and labels of a queue; a setting that is left out has its default."""

    settings: Settings = Field({}, description="Times are seconds.")
    labels: Texts = Field({}, description="Texts that are kept with the queue.")


class QueueChange(Strict):
    """Settings and labels that change; null resets a setting, and removes a label."""

    is_needed: ClassVar[bool] = True

    settings: Settings = Field({}, description="Times are seconds.")
    labels: Annotated[dict[str, str | None], wrong_alone(str, NoneType)] = Field(
        {}, description="Other labels stay."
    )


class PutMessage(PutOne):
    """A message to put."""

    encoding: Encoding = Field("text", description="The encoding of body.")
    body: BodyText
    headers: Annotated[Texts, AfterValidator(sent_headers)] = Field(
        {}, description="Names that begin with cassieq- are reserved, and refused."
    )

    @field_validator("body", mode="plain")
    @classmethod
    def _decoded(cls, text: object, info: ValidationInfo) -> bytes:
        return decoded(text, info.data.get("encoding"))

    @model_validator(mode="after")
    def _small(self) -> PutMessage:
        arguments.check_extras(self.tag, self.headers)
        return self


class PutMany(Strict):
    """Messages to put. Those with the same times, priority, key and tag are stored together."""

    messages: Annotated[list[PutMessage], FailFast()] = Field(
        min_length=1, max_length=MOST_IN_BATCH
    )


class Ack(Strict):
    """Receipts to ack."""

    receipts: Receipts


class Extend(Ack):
    """Receipts whose leases end at another time."""

    visibility_timeout: Seconds = Field(description="Seconds from now on; 0 gives them back.")


class Release(Ack):
    """Receipts of messages to give back."""

    delay: Seconds = Field(0.0, description="Seconds during which nobody gets them.")
    count_delivery: bool = Field(
        True,
        description="Whether the delivery counts. Say false only if nobody has seen the messages.",
    )


class Reject(Ack):
    """Receipts of messages that nobody can handle."""

    reason: str = Field(
        "rejected",
        description="The reason, which the dead letters carry.",
        min_length=1,
        max_length=200,
    )


class Updated(Strict):
    """A leased message that gets another body, another timeout, or both."""

    receipt: str
    encoding: Encoding = "text"
    body: BodyText | None = None
    visibility_timeout: Seconds | None = Field(
        None, description="Seconds from now on; 0 gives the message back. Default: unchanged."
    )

    @field_validator("body", mode="plain")
    @classmethod
    def _decoded(cls, text: object, info: ValidationInfo) -> bytes | None:
        return None if text is None else decoded(text, info.data.get("encoding"))


class UpdateMany(Strict):
    """Messages to update."""

    updates: Annotated[list[Updated], FailFast()] = Field(min_length=1, max_length=MOST_AT_ONCE)


class Granted(Strict):
    """Rights on queues."""

    rights: list[RightName] = Field(min_length=1, max_length=rules.MOST_PATTERNS)
    queues: list[Pattern] = Field(
        ["*"],
        min_length=1,
        max_length=rules.MOST_PATTERNS,
        description="Patterns of names without the account: * is any characters, ? is one.",
    )

    @model_validator(mode="after")
    def _parsed(self) -> Granted:
        rules.parse_grant(self.rights, self.queues)
        return self


class Grants(Strict):
    """The rights that a key or a token gives. Default: all rights on all queues."""

    grants: list[Granted] | None = Field(None, min_length=1, max_length=rules.MOST_GRANTS)

    def as_grants(self) -> tuple[rules.Grant, ...]:
        """Return the grants as keys and tokens have them."""
        if self.grants is None:
            return rules.EVERYTHING
        return tuple(rules.parse_grant(one.rights, one.queues) for one in self.grants)


class KeyChange(Strict):
    """Whether a key is accepted."""

    enabled: bool


class NewToken(Grants):
    """A token, and for how long it is valid."""

    expires_in: TokenSeconds = Field(3_600.0, description="Seconds for which it is valid.")
    starts_in: TokenSeconds = Field(0.0, description="Seconds from now until it becomes valid.")


class Pause(Strict):
    """The messages that are paused or resumed."""

    priority: Priority | None = Field(None, description="Only this priority. Default: all.")


class ScheduleChange(Strict):
    """The definition of a schedule, as far as it changes; null asks for the default."""

    is_needed: ClassVar[bool] = True

    cron: str | None = Field(
        None,
        description="Five fields as in crontab: minute, hour, day of month, month, day of week. "
        "Or every, or at.",
    )
    timezone: str | None = Field(
        None, description="The time zone of cron, such as Europe/Berlin. Default: UTC."
    )
    every: Annotated[float, Ranged(schedule_options.EVERY)] | None = Field(
        None, description="Seconds from one message to the next."
    )
    at: Moment | None = Field(None, description="One time, with a time zone.")
    start: Moment | None = Field(None, description="No message before this time.")
    end: Moment | None = Field(None, description="No message after this time.")
    count: Annotated[int, Ranged(schedule_options.COUNT)] | None = Field(
        None, description="The most messages."
    )
    jitter: Annotated[float, Ranged(schedule_options.JITTER)] | None = Field(
        None, description="Each message is due up to so many seconds later."
    )
    horizon: Annotated[float, Ranged(schedule_options.HORIZON)] | None = Field(
        None, description="How many seconds ahead messages are put, at least."
    )
    misfire: Literal["latest", "all", "skip"] | None = Field(
        None, description="What becomes of times that were missed. Default: latest."
    )
    catch_up: Annotated[int, Ranged(schedule_options.CATCH_UP)] | None = Field(
        None, description="The most messages that misfire all puts. Default: 100."
    )
    encoding: Encoding = Field("text", description="The encoding of body.")
    body: BodyText | None = None
    headers: Annotated[Texts, AfterValidator(sent_headers)] | None = Field(
        None, description="Names that begin with cassieq- are reserved, and refused."
    )
    priority: Priority | None = Field(None, description="Messages of a higher one go out first.")
    key: Key | None = None
    tag: Tag | None = None
    group: Group | None = None
    ttl: Ttl | None = Field(
        None, description="Seconds from when a message is due until it expires. Default: for ever."
    )
    owner: Annotated[str, Ranged(schedule_options.OWNER)] | None = Field(
        None, description="Whoever declares it in a file: see cassieq schedule apply."
    )

    @field_validator("body", mode="plain")
    @classmethod
    def _decoded(cls, text: object, info: ValidationInfo) -> bytes | None:
        return None if text is None else decoded(text, info.data.get("encoding"))

    def given(self) -> dict[str, Any]:
        """Return the arguments that it has."""
        return {one: getattr(self, one) for one in self.model_fields_set - {"encoding"}}


class NewSchedule(ScheduleChange):
    """The definition of a schedule: one of cron, every and at, and what it puts; 64 KiB of that."""


class Backfill(Strict):
    """The past times to put once more."""

    begin: Moment = Field(description="The first time, with a time zone.")
    end: Moment = Field(description="The last time, with a time zone.")


class Redrive(Strict):
    """The messages to send, and where to."""

    to: str | None = Field(
        None,
        description="The target. Default: the queue that each message died in, if this is a "
        "dead-letter queue.",
    )
    where: list[str] = Field([], description="The conditions, as for the listing of dead letters.")
    before: str | None = None
    after: str | None = None
    max_messages: Many | None = Field(
        None, description="The most messages; the lowest ids go first."
    )
    dry_run: bool = Field(False, description="Only count; change nothing.")
