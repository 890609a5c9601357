"""A public value is as frozen as it says: it hashes, pickles, and nobody changes it."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import warnings
from dataclasses import FrozenInstanceError, asdict, fields, is_dataclass, replace
from typing import Any
from uuid import UUID

import pytest

import cassieq_spark as cassieq
import cassieq_spark.spark
from cassieq_spark.model.ids import LaneId, QueueName
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.model.recurring import Definition, Schedule, State, Status
from cassieq_spark.model.slots import Slot
from cassieq_spark.schedules import ScheduleInfo
from tests.fixtures.public import offered
from tests.unit.test_annotations import DELIVERY, INFO, MESSAGE, RECEIPT

SCHEDULE = Schedule(
    datacenter="here",
    name="report",
    queue=QueueName("jobs"),
    lane=LaneId(UUID(int=1)),
    status=Status.ACTIVE,
    definition=Definition(every_us=60_000_000, headers={"a": "b"}),
    state=State(cursor=Slot(0)),
    touch_us=0,
)

VALUES: list[Any] = [
    INFO,
    INFO.settings,
    MESSAGE,
    DELIVERY,
    cassieq.Progress(queue="orders", queues_done=0, queues=1, share=0.5),
    cassieq.QueueStats(buckets={"open": 1}, consumers={"one": 2}, by_priority={0: 3}),
    cassieq.ScheduledHour(due_from=MESSAGE.enqueued_at, priority=0, messages=1),
    cassieq.Settled(acked=1),
    cassieq.Dispatched(schedules=1, looked_at=1, put=0, problems={"report": "no queue"}),
    ScheduleInfo.of(SCHEDULE, 0),
    cassieq.ScheduleChange(name="report", action="alter", before={"tag": "a"}, after={"tag": "b"}),
    cassieq.Finding(queue="orders", kind="lost", bucket=1, what="a message"),
    RECEIPT,
    cassieq.Backoff(),
]


def each_value() -> Any:
    return pytest.mark.parametrize("value", VALUES, ids=lambda one: type(one).__name__)


def test_every_public_frozen_value_is_here() -> None:
    public = [one for one in offered().values() if is_dataclass(one)]
    frozen = {one for one in public if one.__dataclass_params__.frozen}  # type: ignore[attr-defined]  # a dataclass has them
    assert frozen <= {type(one) for one in VALUES}


@each_value()
def test_it_hashes_and_pickles_and_is_equal_to_its_copies(value: Any) -> None:
    pickled = pickle.loads(pickle.dumps(value))  # noqa: S301 - its own
    copies = [pickled, copy.deepcopy(value), replace(value)]

    assert [value] * 3 == copies
    assert 1 == len({value, *copies})
    assert asdict(value) == asdict(copies[0])


@each_value()
def test_no_attribute_of_it_changes(value: Any) -> None:
    for name in ("note", fields(value)[0].name):
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(value, name, 1)
        with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{name}'"):
            delattr(value, name)


@each_value()
def test_no_dict_in_it_changes(value: Any) -> None:
    for one in [getattr(value, one.name) for one in fields(value)]:
        if not isinstance(one, dict):
            continue
        before = dict(one)
        changes: list[Any] = [
            lambda one=one: one.update(a=1),
            lambda one=one: one.__setitem__("a", "1"),
            lambda one=one: one.__delitem__(next(iter(one))),
            lambda one=one: one.__ior__({"a": "1"}),
            one.clear,
            one.popitem,
            lambda one=one: one.pop(next(iter(one))),
            lambda one=one: one.setdefault("a", "1"),
        ]
        for change in changes:
            with pytest.raises(TypeError, match="cannot be changed"):
                change()
        assert before == one
        assert json.dumps(before) == json.dumps(one)


def test_a_message_keeps_none_of_the_dict_that_it_was_made_of() -> None:
    given = {"trace": "on"}
    message = replace(MESSAGE, headers=given)
    given["trace"] = "off"
    assert {"trace": "on"} == message.headers


def test_a_delivery_is_a_message_with_a_receipt_and_shows_neither_that_nor_a_long_body() -> None:
    delivery = replace(DELIVERY, body=b"x" * 100)
    assert isinstance(delivery, cassieq.Message)
    assert MESSAGE != DELIVERY
    assert RECEIPT == Receipt.decode(delivery.receipt)
    assert not hasattr(MESSAGE, "receipt")
    assert (
        f"Delivery(message_id={delivery.message_id!r}, id=1, body={b'x' * 32!r}... (100 bytes), "
        "tag=None, delivery_count=1)"
    ) == repr(delivery)


def test_a_subclass_of_a_value_has_attributes_of_its_own() -> None:
    class Noted(cassieq.Message):
        pass

    message = Noted(**{one.name: getattr(MESSAGE, one.name) for one in fields(MESSAGE)})
    message.note = 1  # type: ignore[attr-defined]  # that is the point
    assert 1 == message.note  # type: ignore[attr-defined]  # as above
    with pytest.raises(FrozenInstanceError):
        message.body = b""  # type: ignore[misc]  # as above


def test_a_client_that_could_not_connect_is_collected_without_a_warning() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(cassieq.StoreError):
            cassieq.connect("127.0.0.1:1", connect_timeout=1)
        gc.collect()
    assert [] == [one for one in seen if one.category is ResourceWarning and "Client" in str(one)]


def test_a_package_shows_its_public_names_only() -> None:
    for package in (cassieq, cassieq_spark.spark):
        shown = {name for name in dir(package) if not name.startswith("__")}
        assert set(package.__all__) == shown


def test_a_put_result_is_a_message_id_that_knows_more() -> None:
    result = cassieq.PutResult("1", duplicate=True)
    assert ("1", "1", True) == (result, result.message_id, result.duplicate)
    assert type(result.message_id) is str
    assert '"1"' == json.dumps(result)
    pickled = pickle.loads(pickle.dumps(result))  # noqa: S301 - it is our own
    for again in (copy.copy(result), copy.deepcopy(result), pickled):
        assert ("1", True) == (again, again.duplicate)
