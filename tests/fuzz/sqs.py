"""Sends requests of the grammar, several at once, and judges their answers."""

from __future__ import annotations

import base64
import http.client
import re
import ssl
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any, Final
from urllib.parse import quote

from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from cassieq_spark.clock import SystemClock
from tests.fuzz.book import wrong
from tests.fuzz.grammar import Asked, as_form, as_json, asked, changed, filled
from tests.fuzz.stage import Stage

AT_ONCE: Final = 5
EXAMPLES: Final = 1_000
DRAINED: Final = 65_536
"""A longer body may be refused while it is sent, and then the answer may be lost."""
GIVES_UP: Final = 100
"""Batches in a row that end in an error of the fuzzer's own."""
LET_IN: Final = ("own", "presigned", "token")

_CODE: Final = re.compile(rb"sqs#(\w+)|<Code>([\w.]+)")
_RECEIPTS: Final = re.compile(rb'(?:"ReceiptHandle": "|<ReceiptHandle>)([^"<]{1,2000})')


class Over(Exception):
    """The time is over; what else would be drawn is not needed."""


def batches(stage: Stage, first: int, batch: Callable[[int], None], part: str) -> None:
    """Run batches until the run is over. An error of the fuzzer's own does not end it."""
    failures = 0
    for number in count(first):
        if (stage.is_over and number > first) or failures > GIVES_UP:
            return
        try:
            batch(number)
            failures = 0
        except Over:
            return
        except (Flaky, SystemError):
            # Strategies of schemathesis remember things. And while CPython 3.11 parses (inspect),
            # hypothesis in another thread changes the limit of recursion.
            stage.book.count(part, "batches ended early")
        except Exception as error:  # noqa: BLE001 - noted
            failures += 1
            name = f"{type(error).__name__}: {error}"[:160]
            stage.book.find("fuzzer", f"{part}: {name}", batch=number, error=error)
            stage.over.wait(1.0)  # a gateway may have to start again


def drawn(number: int, strategy: SearchStrategy[Any], examples: int, use: Any) -> None:
    """Use so many values, the same for the same number."""
    every = settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
    )  # fmt: skip
    seed(number)(every(given(strategy)(use)))()


class Sender:
    """Sends what was drawn."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._receipts: dict[tuple[str, int], deque[str]] = {}

    def run(self, first: int) -> None:
        with ThreadPoolExecutor(AT_ONCE, "fuzz-sqs") as pool:
            free = threading.BoundedSemaphore(2 * AT_ONCE)

            def send(one: Asked) -> None:
                if self._stage.is_over:
                    raise Over
                free.acquire()
                pool.submit(self._send, one).add_done_callback(lambda _: free.release())

            one = asked(tuple(self._stage.numbers))
            batches(self._stage, first, lambda n: drawn(n, one, EXAMPLES, send), "sqs")

    def _send(self, one: Asked) -> None:
        try:
            self.send(one)
        except Exception as error:  # noqa: BLE001 - noted
            self._stage.book.find("fuzzer", f"sqs: {error!r}"[:160], asked=repr(one)[:4_000])

    def send(self, one: Asked) -> None:
        path, headers, body = self.written(one)
        self.exchange(one, "GET" if one.who == "presigned" else "POST", path, headers, body)

    def written(self, one: Asked) -> tuple[str, dict[str, str], bytes]:
        """Path, headers and body."""
        receipts = list(self._receipts.get((one.gateway, one.account), ()))
        fields = filled(one.given, receipts)
        is_json = one.is_json and one.who != "presigned"
        if is_json:
            body = as_json(fields)
            headers = {
                "X-Amz-Target": "AmazonSQS." + one.action,
                "Content-Type": "application/json",
            }
            headers = {
                key: quote(value, safe=" ./:;=", errors="surrogatepass")
                for key, value in headers.items()
            }
        else:
            body = as_form(one.action, fields)
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
        body = changed(body, one.cut)
        headers |= dict(one.headers)
        return self.signed(one, headers, body)

    def signed(
        self, one: Asked, headers: dict[str, str], body: bytes
    ) -> tuple[str, dict[str, str], bytes]:
        gateway, account = self._stage.gateways[one.gateway], self._stage.accounts[one.account]
        if one.who == "nobody":
            return "/", headers, body
        if one.who == "token":
            token = account.token("put,read,ack,info", now_us=SystemClock().now_us())
            return "/", {**headers, "Authorization": f"Bearer {token}"}, body
        key = (account.key[0], "s" * 40) if one.who == "forged" else account.key
        if one.who == "presigned":
            text = quote(body[:60_000].decode("ascii", errors="replace"), safe="=&%+")
            request = AWSRequest(method="GET", url=f"{gateway.url}/?{text}")
            SigV4QueryAuth(Credentials(*key), "sqs", "eu-west-1", expires=60).add_auth(request)
            return str(request.url).removeprefix(gateway.url), {}, b""
        own = {name: value for name, value in headers.items() if not name.startswith("X-Long")}
        request = AWSRequest(method="POST", url=f"{gateway.url}/", data=body, headers=own)
        SigV4Auth(Credentials(*key), "sqs", "eu-west-1").add_auth(request)
        said = {**headers, **{name: str(value) for name, value in request.headers.items()}}
        return "/", said, body + b"&" if one.who == "altered" else body

    def exchange(
        self, one: Asked, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        book, gateway = self._stage.book, self._stage.gateways[one.gateway]
        connection = gateway.connect()  # of its own: none is closed for being idle
        try:
            with suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):  # refused early
                connection.request(
                    method, path, body, {k: v.encode("latin-1") for k, v in headers.items()}
                )
            answer = connection.getresponse()
            status, found = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            book.count("sqs", "no answer:", type(error).__name__)
            if len(body) < DRAINED:
                book.find("sqs", f"no answer: {type(error).__name__}", asked=repr(one)[:4_000])
            return
        finally:
            connection.close()
        name = one.action if one.action.isalpha() and one.action.isascii() else "?"
        book.count("sqs", "json" if one.is_json else "form", status)
        code = _CODE.search(found)
        book.count("sqs", name[:40], "2xx" if code is None else (code[1] or code[2]).decode())
        problem = wrong(status, found, self._stage.hidden_from(one.account))
        if problem is None and one.gateway == "accounts" and one.who not in LET_IN and status < 400:
            problem = f"{one.who} was let in"
        if problem is not None:
            book.find(
                "sqs", f"{problem}, {name[:40]}, {'json' if one.is_json else 'form'}",
                gateway=one.gateway, account=one.account, who=one.who, method=method, path=path,
                headers=headers, body=base64.b64encode(body).decode(), asked=repr(one)[:4_000],
                status=status, answer=repr(found[:2_000]),
            )  # fmt: skip
        if receipts := _RECEIPTS.findall(found):
            key = (one.gateway, one.account)
            kept = self._receipts.setdefault(key, deque(maxlen=30))
            kept.extend(receipt.decode() for receipt in receipts)
