"""What an error says of the time that was waited: the real one, with all tries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.errors import StoreTimeout
from cassieq_spark.testing.faults import Fault, FaultyStore

if TYPE_CHECKING:
    import cassieq_spark as cassieq

TRIES = re.compile(r"(?P<seconds>\d+\.\d) s, sent (?P<sent>\d+) times")


def test_an_outage_is_one_event_a_try_and_its_error_names_the_time_waited(
    client: cassieq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    session = client._session
    store = FaultyStore()
    store.plan("read_queue", Fault.TIMEOUT_BEFORE, times=1_000)
    began_s = session.clock.monotonic()
    with store.on(session), session.within(1.5), pytest.raises(StoreTimeout) as caught:
        client.queue("orders")
    took_s = session.clock.monotonic() - began_s

    found = TRIES.search(str(caught.value))
    assert found is not None, caught.value
    assert 1.5 <= float(found["seconds"]) + 0.05 <= took_s + 0.1
    events = [one for one in caplog.records if vars(one).get("event") == "statement_retried"]
    assert int(found["sent"]) == len(events) + 1
    assert list(range(1, len(events) + 1)) == [vars(one)["fields"]["attempt"] for one in events]
