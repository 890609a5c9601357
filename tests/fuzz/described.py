"""Requests made of the REST door's own description, by schemathesis."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import httpx
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from cassieq_spark.clock import SystemClock
from cassieq_spark.server.operations import OPERATIONS, RestOperation
from cassieq_spark.server.rest.call import Nothing
from cassieq_spark.server.rest.door import document
from tests.fuzz.book import wrong
from tests.fuzz.sqs import Over, batches, drawn
from tests.fuzz.stage import Stage

CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES: Final = 8

SCHEMA: Final = schemathesis.openapi.from_dict(document())


def called(case: Any, queue: str, receipts: list[str], draw: Any) -> None:
    """Name a queue and a receipt that exist, more often than chance would."""
    found = case.path_parameters or {}
    if "queue" in found:
        others = [] if case.method == "PUT" else [found["queue"]]  # nobody would delete those
        found["queue"] = draw(st.sampled_from([queue, queue, f"{queue[-70:]}-new", *others]))
    if "schedule" in found:
        found["schedule"] = draw(st.sampled_from([f"{queue[-70:]}-s", f"{queue[-70:]}-t"]))
    if "receipt" in found:
        # As many choices each time: what is drawn must not depend on what the queue has.
        at = draw(st.integers(0, len(receipts)))
        found["receipt"] = [*receipts, found["receipt"]][at]
    if isinstance(case.body, dict) and isinstance(case.body.get("receipts"), list):
        case.body["receipts"] = [*case.body["receipts"], *receipts]
    query = case.query or {}
    if "wait" in query:
        with suppress(TypeError, ValueError):
            query["wait"] = min(float(query["wait"]), 0.1)


def takes_anything(operation: RestOperation) -> bool:
    """Whether a request for it can be wrong in any way that the description knows."""
    return "{" in operation.path or operation.query is not Nothing or operation.body is not None


KINDS: Final = [
    (mode, one)
    for mode in GenerationMode
    for one in OPERATIONS
    if mode is GenerationMode.POSITIVE or takes_anything(one)
]


class Described:
    """Asks each operation in turn, in the name of one account; at least once."""

    _has_asked = False

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def run(self, first: int) -> None:
        batches(self._stage, first, self._batch, "rest")

    def _batch(self, number: int) -> None:
        stage, at = self._stage, number % len(self._stage.accounts)
        mode, operation = KINDS[number % len(KINDS)]
        described = SCHEMA[f"/v1{operation.path}"][operation.method]
        token = stage.accounts[at].token(
            "info,put,read,ack,create,delete,redrive,admin", now_us=SystemClock().now_us()
        )
        headers = {"Authorization": f"Bearer {token}"}
        gateway = stage.gateways["accounts"]
        queue = "/v1/queues/rest-0"
        # No connection is used twice: the gateway ends idle ones at any moment.
        once = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(base_url=gateway.url, headers=headers, timeout=60, limits=once) as rest:
            rest.put(queue)

            def ask(data: st.DataObject) -> None:
                if self._has_asked and stage.is_over:
                    raise Over
                self._has_asked = True
                case: Any = data.draw(described.as_strategy(mode))
                rest.post(f"{queue}/messages", content=b"x")
                found = rest.post(f"{queue}/messages/next")
                leased = found.json()["messages"] if found.status_code == 200 else []
                receipts = [one["receipt"] for one in leased[:1]] or ["none"]
                called(case, "rest-0", receipts, data.draw)
                self._judge(at, case, gateway.url, headers, operation.name)
                if operation.name == "deleteQueue":
                    rest.put(queue)

            drawn(number, st.data(), EXAMPLES, ask)
            rest.delete("/v1/queues/rest-0-new")

    def _judge(self, at: int, case: Any, url: str, headers: dict[str, str], name: str) -> None:
        book = self._stage.book
        try:
            response = case.call(base_url=url, headers=headers, timeout=60)
        except requests.RequestException as error:
            book.find("rest", f"{name}: {type(error).__name__}", curl=case.as_curl_command(headers))
            return
        book.count("rest", name, response.status_code // 100, "xx")
        problem = wrong(response.status_code, response.content, self._stage.hidden_from(at))
        if problem is None and response.status_code != 503:
            try:
                case.validate_response(response, checks=CHECKS)
            except FailureGroup as failures:
                problem = "; ".join(sorted({one.title for one in failures.exceptions}))
            except Failure as failure:
                problem = failure.title
        if problem is not None:
            book.find(
                "rest", f"{name}: {problem}", curl=case.as_curl_command(headers),
                status=response.status_code, answer=repr(response.content[:2_000]),
            )  # fmt: skip
