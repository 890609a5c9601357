"""Good clients beside all of it: what they send is delivered, and nothing after its deletion."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from cassieq_spark.entropy import new_uuid
from tests.fuzz.stage import Stage

DRAIN_S: Final = 90.0
QUEUE: Final = "ledger"


class Ledger:
    """One account's messages: which were sent, may have been, and are deleted.

    Without a sleep a client would only measure itself: it pauses for `PAUSE_S` after each round.
    """

    PAUSE_S: Final = 0.2

    def __init__(self, stage: Stage, account: int) -> None:
        self._stage = stage
        self._account = account
        self._sqs: Any = None
        self.sent: set[str] = set()
        self.unsure: set[str] = set()
        self.deleted: set[str] = set()

    def run(self) -> None:
        """Send and receive until the run is over."""
        while not self._stage.is_over:
            self._try(self._send)
            self._try(self._receive)
            self._stage.over.wait(self.PAUSE_S)

    def _try(self, work: Any) -> None:
        book = self._stage.book
        try:
            work(self._client())
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            book.count("good", work.__name__, status)
            if status != 503:
                book.find("good", f"{work.__name__}: {error}"[:200])
        except BotoCoreError as error:
            book.count("good", work.__name__, type(error).__name__)
            self._sqs = None

    def _client(self) -> Any:
        if self._sqs is None:
            self._sqs = self._gateway.sqs(self._stage.accounts[self._account].key)
            self._url = f"{self._gateway.url}/{self._stage.numbers[self._account]}/{QUEUE}"
        return self._sqs

    @property
    def _gateway(self) -> Any:
        return self._stage.gateways["accounts"]

    def _send(self, sqs: Any) -> None:
        bodies = [new_uuid().hex for _ in range(3)]
        self.unsure |= set(bodies)
        entries = [{"Id": str(at), "MessageBody": body} for at, body in enumerate(bodies)]
        answer = sqs.send_message_batch(QueueUrl=self._url, Entries=entries)
        self.sent |= {bodies[int(one["Id"])] for one in answer["Successful"]}
        self._stage.book.count("good", "sent")

    def _receive(self, sqs: Any) -> int:
        found = sqs.receive_message(QueueUrl=self._url, MaxNumberOfMessages=10).get("Messages", [])
        for one in found:
            body = one["Body"]
            if body not in self.unsure:
                self._stage.book.find("good", "a message that nobody has sent", message=one)
            if body in self.deleted:
                self._stage.book.find("good", "a message came after it was deleted", message=one)
            sqs.delete_message(QueueUrl=self._url, ReceiptHandle=one["ReceiptHandle"])
            self.deleted.add(body)
        return len(found)

    def drain(self) -> None:
        """Take what is left, and say what is lost."""
        until = time.monotonic() + DRAIN_S
        while self.sent - self.deleted and time.monotonic() < until:
            self._try(self._receive)
            threading.Event().wait(0.05)
        self._try(self._receive)
        if lost := self.sent - self.deleted:
            self._stage.book.find("good", "messages are lost", lost=sorted(lost)[:100])
        self._stage.book.figures[f"ledger {self._account}"] = {
            "sent": len(self.sent), "deleted": len(self.deleted),
            "without an answer": len(self.unsure - self.sent),
        }  # fmt: skip


def cycle(stage: Stage) -> None:
    """After all of it, what every SDK does works, in each gateway."""
    for one in stage.gateways.values():
        key = stage.accounts[0].key
        sqs = one.sqs(key)
        try:
            url = sqs.create_queue(QueueName="afterwards")["QueueUrl"]
            sqs.send_message(QueueUrl=url, MessageBody="x")
            (found,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=10)["Messages"]
            sqs.delete_message(QueueUrl=url, ReceiptHandle=found["ReceiptHandle"])
            sqs.delete_queue(QueueUrl=url)
        except Exception as error:  # noqa: BLE001 - noted
            stage.book.find("afterwards", f"{one.name}: {error!r}"[:200])
        finally:
            sqs.close()
