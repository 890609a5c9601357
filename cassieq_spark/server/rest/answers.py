"""Define the bodies of answers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from cassieq_spark.server.rest.models import Encoding, Settings


class Queue(BaseModel):
    """A queue with its settings."""

    name: str
    created_at: str
    settings: Settings
    labels: dict[str, str]


class QueueNames(BaseModel):
    """A page of queues."""

    queues: list[str]
    next: str | None = Field(description="The value of after for the next page; null: no more.")


class Statistics(BaseModel):
    """The content of a queue, in messages; the first five are disjoint."""

    visible: int
    in_flight: int
    delayed: int
    scheduled: int
    dead: int
    oldest_age_s: float | None
    buckets: dict[str, int]
    consumers: dict[str, int]
    applied_lwts: int
    by_priority: dict[str, int]
    paused: list[int]


class Purged(BaseModel):
    """The number of messages that were dropped."""

    purged: int


class Put(BaseModel):
    """The message that was put, or the one that had its key before."""

    message_id: str
    duplicate: bool | None = Field(
        None, description="Present if the dedup_key was put already: nothing was stored."
    )


class Problem(BaseModel):
    """An error in the form of RFC 9457, with the code of this package."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None = Field(None, description="The field of the request that is wrong.")
    message_ids: list[str] | None = Field(
        None, description="Messages of which it is unknown whether they were stored."
    )


class PutResult(BaseModel):
    """A message id, or why the message was not stored."""

    message_id: str | None = None
    duplicate: bool | None = None
    problem: Problem | None = None


class PutResults(BaseModel):
    """The result for each message, in their order."""

    results: list[PutResult]


class Message(BaseModel):
    """A message, as one delivery or one peek returns it."""

    message_id: str
    receipt: str | None
    body: str
    encoding: Encoding
    tag: str | None
    group: str | None
    headers: dict[str, str]
    priority: int
    delivery_count: int
    enqueued_at: str
    visible_until: str | None
    id: int
    lane: str


class Messages(BaseModel):
    """Messages."""

    messages: list[Message]


class Letter(Message):
    """A message of a dead-letter queue."""

    source_queue: str | None
    reason: str | None
    deliveries: int | None
    first_time: str | None
    last_time: str | None


class LettersShown(BaseModel):
    """Dead letters."""

    messages: list[Letter]


class Settled(BaseModel):
    """The outcome for one receipt."""

    receipt: str
    verdict: Literal[
        "acked",
        "already_acked",
        "extended",
        "released",
        "rejected",
        "updated",
        "stale",
        "unknown",
        "invalid",
    ] = Field(
        description="stale: the delivery has ended, and nothing was done. unknown: ask again. "
        "invalid: the problem says why."
    )
    problem: Problem | None = None
    new_receipt: str | None = Field(None, description="After an update: the old one is stale now.")
    visible_until: str | None = Field(None, description="The time when the lease ends.")


class Verdicts(BaseModel):
    """The verdict for each receipt, in their order."""

    results: list[Settled]


class NewReceipt(BaseModel):
    """An update: the old receipt is stale now."""

    receipt: str | None = Field(description="null: the message was given back.")
    visible_until: str | None


class Redriven(BaseModel):
    """The counts of a redrive; each chosen message is in one of them."""

    queue: str
    moved: int
    waiting: int
    leased: int
    delayed: int
    homeless: int
    gone: int
    by_target: dict[str, int]
    problems: list[str]


class Schedule(BaseModel):
    """A schedule. What it puts is null in a list, and for a key that lacks the right to read."""

    name: str | None
    queue: str | None
    status: Literal["active", "paused", "deleting"]
    cron: str | None
    timezone: str
    every: float | None
    at: str | None
    start: str | None
    end: str | None
    count: int | None
    jitter: float | None
    horizon: float
    misfire: str
    catch_up: int
    priority: int
    ttl: float | None
    owner: str | None
    occurrences: int = Field(description="How many were put, those put ahead among them.")
    next_at: str | None = Field(description="Its next time; null: it has ended, or is paused.")
    last_at: str | None = Field(description="Its latest time that was put and is over.")
    missed_at: str | None = Field(
        description="Its first time that is over and was not put; null: it keeps up."
    )
    body: str | None
    encoding: Encoding | None
    tag: str | None
    headers: dict[str, str] | None
    group: str | None
    key: str | None


class Schedules(BaseModel):
    """A page of schedules."""

    schedules: list[Schedule]
    next: str | None = Field(description="The value of after for the next page; null: no more.")


class Ran(BaseModel):
    """A message that was put at once."""

    slot: str = Field(description="The time that its header cassieq-slot has.")


class Backfilled(BaseModel):
    """The number of messages that were put once more."""

    put: int


class Times(BaseModel):
    """Times of a schedule, in its time zone."""

    times: list[str]


class Granted(BaseModel):
    """Rights on queues."""

    rights: list[str]
    queues: list[str]


class Key(BaseModel):
    """A key, without its secret."""

    access_key_id: str
    status: Literal["active", "disabled", "unfinished"]
    grants: list[Granted]
    created_at: str | None
    used_at: str | None = Field(description="The last use, to a minute; null: none for a year.")


class Keys(BaseModel):
    """The keys of the account, oldest first."""

    keys: list[Key]


class MadeKey(BaseModel):
    """A new key. Its secret is not shown again."""

    access_key_id: str
    secret_access_key: str
    grants: list[Granted]


class SignedToken(BaseModel):
    """A bearer token."""

    token: str
    expires_at: str
