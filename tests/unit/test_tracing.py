"""A program without OpenTelemetry pays nothing for it."""

from __future__ import annotations

import subprocess
import sys

from cassieq_spark import tracing

PROGRAM = """
import asyncio
import sys
import cassieq_spark
from cassieq_spark import tracing
with tracing.sending("orders", [{}]) as context:
    assert {} == context
async def nothing():
    return []
assert [] == asyncio.run(tracing.received("orders", nothing()))
with tracing.settling("ack", "orders", 1):
    tracing.failed(cassieq_spark.QueueDeleted)
    assert tracing.current() is None
with tracing.request("GET", []) as request:
    request.end(api="rest", operation="getQueue", status=200, code=None)
assert not tracing.is_on()
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
print("nothing was imported")
"""


def test_without_opentelemetry_nothing_of_it_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert "nothing was imported\n" == done.stdout, done.stderr


def test_a_context_is_added_unless_there_is_one_or_no_room() -> None:
    context = {"traceparent": "new"}
    own = {"traceparent": "own"}
    full = {"x": "y" * (tracing.MAX_EXTRA_BYTES - 20)}

    assert {"a": "b", "traceparent": "new"} == tracing.with_context({"a": "b"}, context, tag=None)
    assert own == tracing.with_context(own, context, tag=None)
    assert full == tracing.with_context(full, context, tag="a tag of some bytes")
    assert full | context == tracing.with_context(full, context, tag=None)
