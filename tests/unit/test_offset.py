"""The source's offset names exactly what its micro-batch holds.

See docs/design/source.md.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.errors import OffsetUnreadable
from cassieq_spark.model.ids import BucketNo, LaneId, Place, QueueName, Runs
from cassieq_spark.model.offset import INITIAL, LeasedRuns, SourceOffset

LANES = [LaneId(UUID(int=number)) for number in range(1, 4)]
QUEUES = {QueueName("orders"): LANES[0], QueueName("a/invoices"): LaneId(UUID(int=9))}
RUNS = st.sets(st.integers(0, 300), min_size=1, max_size=20).map(Runs.from_offsets)
PLACES = st.builds(Place, st.sampled_from(LANES), st.integers(0, 50).map(BucketNo))
LEASED = st.one_of(
    st.builds(
        LeasedRuns, queue=st.just(QueueName("orders")), place=PLACES, lease_id=st.uuids(), runs=RUNS
    ),
    st.builds(
        LeasedRuns,
        queue=st.just(QueueName("a/invoices")),
        place=st.builds(Place, st.just(LaneId(UUID(int=9))), st.integers(0, 50).map(BucketNo)),
        lease_id=st.uuids(),
        runs=RUNS,
    ),
)
OFFSETS = st.builds(
    SourceOffset,
    stream=st.uuids(),
    queues=st.just(QUEUES),
    seq=st.integers(1, 10**6),
    leases=st.lists(LEASED, unique_by=lambda one: (one.place, one.lease_id)).map(tuple),
)


@given(OFFSETS)
@pytest.mark.invariant("I8")
def test_an_offset_that_spark_has_logged_is_read_back_as_it_was(offset: SourceOffset) -> None:
    assert offset == SourceOffset.from_json(json.loads(json.dumps(offset.to_json())))


def test_the_logged_form_is_one_entry_per_run() -> None:
    (lane, other, third), stream, lease = LANES, UUID(int=2), UUID(int=3)
    orders, invoices = QueueName("orders"), QueueName("invoices")
    offset = SourceOffset(
        stream=stream,
        queues={orders: lane, invoices: third},
        seq=5,
        leases=(
            LeasedRuns(
                queue=orders,
                place=Place(other, BucketNo(7)),
                lease_id=lease,
                runs=Runs.of((0, 2), (4, 4)),
            ),
            LeasedRuns(
                queue=orders,
                place=Place(lane, BucketNo(7)),
                lease_id=lease,
                runs=Runs.of((1, 1)),
            ),
            LeasedRuns(
                queue=invoices,
                place=Place(third, BucketNo(7)),
                lease_id=lease,
                runs=Runs.of((3, 3)),
            ),
        ),
    )
    assert offset.to_json() == {
        "v": 1,
        "stream": str(stream),
        "queues": [["orders", [str(lane), str(other)]], ["invoices", [str(third)]]],
        "seq": 5,
        "leases": [
            [1, 7, str(lease), 0, 2],
            [1, 7, str(lease), 4, 4],
            [0, 7, str(lease), 1, 1],
            [2, 7, str(lease), 3, 3],
        ],
    }


def test_p23_the_initial_offset_is_a_constant() -> None:
    assert {"v": 1, "stream": None, "queues": [], "seq": 0, "leases": []} == INITIAL.to_json()
    assert INITIAL == SourceOffset.from_json(INITIAL.to_json())


@pytest.mark.parametrize(
    "damage",
    [
        {"v": 2},
        {"stream": "x"},
        {"queues": 5},
        {"queues": ["x"]},
        {"queues": [["q", ["x"]]]},
        {"queues": [["q", []]]},
        {"seq": "many"},
        {"queues": [["q", [str(LANES[0])]]], "leases": [[0, 1, str(UUID(int=1)), 5, 4]]},
        {"queues": [["q", [str(LANES[0])]]], "leases": [[1, 1, str(UUID(int=1)), 4, 5]]},
        {"queues": [["q", [str(LANES[0])]]], "leases": [[-1, 1, str(UUID(int=1)), 4, 5]]},
        {"queues": [["q", [str(LANES[0])]]], "leases": [[0, 1, 2]]},
        {"leases": None},
    ],
    ids=str,
)
def test_something_else_is_refused_in_words(damage: dict[str, Any]) -> None:
    with pytest.raises(OffsetUnreadable, match="checkpoint"):
        SourceOffset.from_json({**INITIAL.to_json(), **damage})


def test_another_sources_offset_is_refused_in_words() -> None:
    with pytest.raises(OffsetUnreadable, match="another source"):
        SourceOffset.from_json({"topic": {"0": 5}})
