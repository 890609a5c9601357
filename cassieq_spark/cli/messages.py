"""``cassieq put``, ``get``, ``ack`` and ``peek`` handle messages from a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer

from cassieq_spark.cli.flags import Connected, Seconds, Time
from cassieq_spark.cli.queue import QueueName
from cassieq_spark.cli.shell import FAILED, NOTHING, Interrupt, Out, Printed, print_note, show_text
from cassieq_spark.clock import Clock, SystemClock
from cassieq_spark.errors import (
    BodyInvalid,
    CassieqError,
    OptionInvalid,
    PutAmbiguous,
    ReceiptInvalid,
    UsageError,
)
from cassieq_spark.model.dedup import Until
from cassieq_spark.model.sizes import MAX_BODY_BYTES
from cassieq_spark.options import values
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.inspect.letters import as_object, body_as_object
from cassieq_spark.queue.message import Delivery, Message
from cassieq_spark.queue.put.results import PutResult
from cassieq_spark.queue.settle.settle import AckResult

_MOMENT = values.moment()

BASE64 = "base64:"
"""Begins what is shown of a body that is not UTF-8."""

LOOK_S = 1.0
"""The length of one get of a long wait, after which Ctrl-C is noticed: never between a claim and
its receipts.
"""

READ_BYTES: Final = 256 * 1024

STDIN: Final = "-"

MinPriority = Annotated[
    int,
    typer.Option(metavar="N", help="Only messages of this priority and higher ones."),
]
Max = Annotated[int, typer.Option(metavar="N", help="The most messages to return.")]


def put(
    queue: QueueName,
    connection: Connected,
    out: Printed,
    bodies: Annotated[list[str] | None, typer.Argument(metavar="BODY")] = None,
    *,
    file: Path | None = None,
    priority: Annotated[int, typer.Option(metavar="N")] = 0,
    key: str | None = None,
    tag: str | None = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE")] = None,
    group: str | None = None,
    delay: Time = None,
    due_at: Annotated[str | None, typer.Option(metavar="WHEN")] = None,
    ttl: Time = None,
    message_id: Annotated[str | None, typer.Option(metavar="UUID")] = None,
    dedup_key: Annotated[str | None, typer.Option(metavar="KEY")] = None,
    dedup_until: Until = Until.WINDOW,
) -> None:
    """Put messages and print their message ids. A message whose id is printed is stored.

    Args:
        bodies: Each BODY is one message. '-' reads standard input: each line is one message.
        file: Put the whole file as one message. '-' reads standard input.
        priority: The messages' priority; a higher one goes out first.
        key: Messages of one key stay in one lane, in their order.
        tag: A tag to route messages by.
        header: A header of the messages; repeatable.
        group: Whom the messages belong to, such as a customer. It does not change the order.
        delay: How long the messages stay hidden at first: 5s, 2h, 7d.
        due_at: The time before which nobody gets the messages: 2030-01-01T09:00Z.
        ttl: How long the messages live from when they are due: 1s to 400d. Then they expire.
        message_id: The message id, if there is one message. Default: made of queue and id.
        dedup_key: The message's deduplication key, if there is one message: within the queue's
            window, a further put of the key stores nothing.
        dedup_until: Until when the former put stands for the key: for the window, until its message
            is acked, or until it is leased.

    Example:
        cassieq put orders 'one message' --delay 5m
    """
    found = _bodies(bodies or [], file)
    is_one = bodies != [STDIN] and len(bodies or []) <= 1
    for flag, value in (("--message-id", message_id), ("--dedup-key", dedup_key)):
        if value is not None and not is_one:
            raise UsageError(f"{flag} names one message. Give one body, or --file")
    more: dict[str, Any] = {
        "priority": priority,
        "key": key,
        "delay": delay or 0,
        "due_at": None if due_at is None else _MOMENT.checked("--due-at", due_at),
        "ttl": ttl,
        "tag": tag,
        "headers": dict(map(header_of, header or [])),
        "group": group,
        "message_ids": None if message_id is None else [message_id],
        "dedup_keys": None if dedup_key is None else [dedup_key],
        "dedup_until": dedup_until,
    }
    with connection.open() as client:
        opened = client.queue(queue)
        for batch in found:
            try:
                put = opened.put_many(batch, **more)
                _print_put(put, out, has_key=dedup_key is not None)
            except PutAmbiguous as error:
                _print_put(list(map(PutResult, error.stored)), out, has_key=False)
                for unknown in error.message_ids:
                    print_note(f"unknown: {unknown}")
                raise


def cancel(queue: QueueName, connection: Connected, out: Printed, message_id: str) -> None:
    """Take a message back that nobody was given yet. The exit code is 1 if it is too late.

    Args:
        message_id: The message id, as `put` printed it.

    Example:
        cassieq cancel orders cdea1fa4-d829-8d47-b449-000000000000
    """
    with connection.open() as client:
        is_cancelled = client.queue(queue).cancel(message_id)
    out.lines(
        [{"message_id": message_id, "cancelled": is_cancelled}],
        ["cancelled" if is_cancelled else "too late: it was given to somebody, or is not there"],
    )
    if not is_cancelled:
        raise typer.Exit(FAILED)


def get(
    queue: QueueName,
    connection: Connected,
    out: Printed,
    *,
    max_messages: Max = 1,
    wait: Annotated[float, Seconds()] = 0.0,
    visibility_timeout: Time = None,
    consumer: str | None = None,
    min_priority: MinPriority = 0,
    ack: bool = False,
) -> None:
    """Lease messages and print receipt and body of each on a line. Exit code 3 if there is none.

    Args:
        wait: How long to wait for the first message.
        visibility_timeout: How long the messages stay hidden from others. Default: the queue's
            timeout.
        consumer: The consumer's name, which stats show. Default: host and process.
        ack: Ack the messages once they are printed.

    Example:
        cassieq get orders --max-messages 10 --wait 5s --ack
    """
    with connection.open() as client, Interrupt() as interrupt:
        opened = client.queue(queue)
        found = get_unless(
            interrupt,
            SystemClock(),
            wait,
            lambda look_s: opened.get(
                max_messages,
                wait=look_s,
                visibility_timeout=visibility_timeout,
                consumer=consumer,
                min_priority=min_priority,
            ),
        )
        if interrupt:
            give_back(opened, found)
        interrupt.end(is_done=False)
        try:
            _print_messages(found, out)
        except Exception:
            give_back(opened, found)
            raise
        if ack:
            opened.ack(found)
    if not found:
        raise typer.Exit(NOTHING)


def peek(queue: QueueName, connection: Connected, out: Printed, *, max_messages: Max = 10) -> None:
    """Show visible messages without leasing them. Exit code 3 if there is none.

    Example:
        cassieq peek orders --max-messages 10
    """
    with connection.open() as client:
        found = client.queue(queue).peek(max_messages)
    _print_messages(found, out)
    if not found:
        raise typer.Exit(NOTHING)


def ack(
    queue: QueueName,
    connection: Connected,
    out: Printed,
    receipts: Annotated[list[str], typer.Argument(metavar="RECEIPT")],
) -> None:
    """Ack messages: they are done. Exit code 1 if a verdict is stale, invalid or unknown.

    Args:
        receipts: A receipt to ack. '-' reads standard input: receipts, or lines that `get` printed.

    Example:
        cassieq ack orders RECEIPT
    """
    counts: Counter[AckResult] = Counter()
    with connection.open() as client:
        opened = client.queue(queue)
        for batch in _receipts(receipts):
            verdicts = opened.ack_each(batch)
            counts.update(verdicts)
            pairs = list(zip(batch, verdicts, strict=True))
            out.lines(
                ({"receipt": one, "verdict": str(verdict)} for one, verdict in pairs),
                (f"{verdict}\t{one}" for one, verdict in pairs),
            )
    if counts.keys() - {AckResult.ACKED, AckResult.ALREADY_ACKED}:
        print_note(", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
        raise typer.Exit(FAILED)


def get_unless(interrupt: Interrupt, clock: Clock, wait_s: float, look: Any) -> list[Delivery]:
    """Return what ``look`` (a get that waits so many seconds) brings first, within the wait.

    It is not one long get: a signal would have to wait for its end, or interrupt it.
    """
    deadline_s = clock.monotonic() + wait_s
    while True:
        left_s = max(0.0, deadline_s - clock.monotonic())
        found: list[Delivery] = look(min(left_s, LOOK_S))
        if found or interrupt or left_s <= LOOK_S:
            return found


def give_back(queue: Queue, messages: Sequence[Delivery | str]) -> None:
    """Release what is held and will not be acked; if that fails, the leases run out."""
    if messages:
        with suppress(CassieqError):
            queue.release(messages)


def _print_messages(messages: Sequence[Message], out: Out) -> None:
    """Print of each the receipt, or without one the message id, and the body."""
    texts = (
        f"{one.receipt if isinstance(one, Delivery) else one.message_id}\t{show_body(one)}"
        for one in messages
    )
    out.lines(map(as_object, messages), texts)


def show_body(message: Message) -> str:
    """The body on one line; see `show_bytes`."""
    return show_bytes(message.body)


def show_bytes(body: bytes) -> str:
    """A body on one line; a body that is not UTF-8 is base64, and marked so.

    A text that itself begins with the mark has its colon escaped: the two can be told apart.
    """
    shown = body_as_object(body)
    if "encoding" in shown:
        return f"{BASE64}{shown['body']}"
    text = show_text(shown["body"])
    return text.replace(":", "\\x3a", 1) if text.startswith(BASE64) else text


def _print_put(put: Sequence[PutResult], out: Out, *, has_key: bool) -> None:
    shown = [{"message_id": one} | ({"duplicate": one.duplicate} if has_key else {}) for one in put]
    out.lines(shown, put)
    if not out.as_json and any(one.duplicate for one in put):
        print_note("duplicate: it was put before with this key; nothing was stored")


def _bodies(bodies: list[str], file: Path | None) -> Iterator[list[bytes]]:
    if bool(bodies) is (file is not None):
        raise UsageError(
            "give the messages in one way: bodies, '-' for the lines of standard input, or --file"
        )
    if file is not None:
        return iter([[whole(file)]])
    if bodies == [STDIN]:
        return batches()
    if STDIN in bodies:
        raise UsageError(
            "'-' is standard input and must stand alone. Put the other bodies with another command"
        )
    # The bytes that were typed, even if they are not text in this locale.
    return iter([[os.fsencode(body) for body in bodies]])


def header_of(given: str) -> tuple[str, str]:
    """Read a header of the command line."""
    name, is_there, value = given.partition("=")
    if not is_there or not name:
        raise OptionInvalid(f"--header is {show_text(given)!r}, allowed: NAME=VALUE")
    return name, value


def _receipts(given: list[str]) -> Iterator[list[str]]:
    if given != [STDIN]:
        return iter([given])
    return (found for batch in batches() if (found := [_receipt(one) for one in batch if one]))


def _receipt(line: bytes) -> str:
    """The receipt of a line: a receipt only, or a line that `get` printed, as text or as JSON."""
    text = line.decode("utf-8", errors="replace").rstrip("\r")
    if not text.startswith("{"):
        return text.partition("\t")[0]
    try:
        return str(json.loads(text)["receipt"])
    except (ValueError, KeyError, RecursionError) as error:
        raise ReceiptInvalid(
            "a line of standard input is JSON without a 'receipt'. Pass lines that `get --json` "
            "printed, or receipts alone"
        ) from error


def batches(source: BinaryIO | None = None) -> Iterator[list[bytes]]:
    r"""Lines without their ``\n``, as many together as one read brings.

    So ``cat file`` goes in large batches, and ``tail -f`` line by line, without a timer.

    Raises:
        BodyInvalid: A line is longer than a body may be; it is not kept in memory to its end.
    """
    stream: BinaryIO = sys.stdin.buffer if source is None else source
    rest = b""
    number = 0
    read_some = getattr(stream, "read1", stream.read)  # what is there, at least one byte
    while read := read_some(READ_BYTES):
        *lines, rest = (rest + read).split(b"\n") if b"\n" in read else (rest + read,)
        if len(rest) > MAX_BODY_BYTES:
            raise BodyInvalid(
                f"line {number + len(lines) + 1} of standard input has more than "
                f"{MAX_BODY_BYTES:,} bytes, which is the limit of a body; the {number:,} lines "
                "before it are put. If the whole input is one message, use --file -"
            )
        if lines:
            yield lines
        number += len(lines)
    if rest:
        yield [rest]


def whole(path: Path, named: str = "--file") -> bytes:
    """Read a file as one body; ``-`` is standard input.

    Raises:
        OptionInvalid: It cannot be read.
    """
    # One byte more than allowed is enough for the error that says so.
    try:
        if str(path) == STDIN:
            return sys.stdin.buffer.read(MAX_BODY_BYTES + 1)
        with path.open("rb") as file:
            return file.read(MAX_BODY_BYTES + 1)
    except OSError as error:
        raise OptionInvalid(
            f"{named} {path} cannot be read: {error.strerror}. Name a file that can be read"
        ) from error
