"""A receipt says what it said, and anything else is refused by name."""

from __future__ import annotations

import string
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cassieq_spark.entropy import new_uuid, system
from cassieq_spark.errors import ReceiptInvalid
from cassieq_spark.model.ids import BucketNo, LaneId
from cassieq_spark.model.receipt import TEXT_LENGTH, Receipt

receipts = st.builds(
    Receipt,
    lane=st.uuids().map(LaneId),
    bucket=st.integers(0, (1 << 64) - 1).map(BucketNo),
    lease_id=st.uuids(),
    first=st.integers(0, (1 << 32) - 1),
    last=st.integers(0, (1 << 32) - 1),
)
OTHERS = f"{string.printable}\0é\u0661\uff21"
ONE = Receipt(lane=LaneId(UUID(int=1)), bucket=BucketNo(7), lease_id=UUID(int=2), first=3, last=3)


@given(receipts)
def test_what_is_encoded_is_decoded(receipt: Receipt) -> None:
    text = receipt.encode()

    assert TEXT_LENGTH == len(text)
    assert receipt == Receipt.decode(text)


def test_a_receipt_tells_when_its_delivery_began_if_its_lease_does() -> None:
    timed = replace(ONE, lease_id=system.uuid_at(1_700_000_000_123_456))

    assert 1_700_000_000_123_000 == Receipt.decode(timed.encode()).began_us
    assert [None, None] == [
        replace(ONE, lease_id=one).began_us for one in (UUID(int=2), new_uuid())
    ]


@pytest.mark.invariant("I3")
@settings(max_examples=10)
@given(receipts)
def test_every_change_of_one_character_is_refused(receipt: Receipt) -> None:
    """Also of the last, two of whose bits stand for nothing, and of ``-`` to ``+``."""
    text = receipt.encode()
    changes = (text[:at] + one + text[at + 1 :] for at in range(len(text)) for one in OTHERS)
    assert [text] * TEXT_LENGTH == [change for change in changes if is_accepted(change)]


def is_accepted(text: str) -> bool:
    try:
        Receipt.decode(text)
    except ReceiptInvalid:
        return False
    return True


@given(receipts, st.data())
def test_one_character_more_or_less_is_refused(receipt: Receipt, data: st.DataObject) -> None:
    text = receipt.encode()
    at = data.draw(st.integers(0, TEXT_LENGTH - 1))
    more = data.draw(st.sampled_from(OTHERS))
    for changed in (text[:at] + text[at + 1 :], text[:at] + more + text[at:], f"{text}{more}"):
        with pytest.raises(ReceiptInvalid):
            Receipt.decode(changed)


@given(st.one_of(st.text(), st.text(min_size=TEXT_LENGTH, max_size=TEXT_LENGTH)))
def test_random_text_is_refused_and_nothing_else_is_raised(text: str) -> None:
    with pytest.raises(ReceiptInvalid):
        Receipt.decode(text)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (None, "text, not NoneType"),
        (b"bytes", "text, not bytes"),
        (ONE.encode()[:-1], "Was it cut off?"),
        ("é" * TEXT_LENGTH, "letters, digits"),
        ("!" * TEXT_LENGTH, "letters, digits"),
        ("A" * TEXT_LENGTH, "version 0"),
        ("AQ" + "A" * (TEXT_LENGTH - 2), "checksum"),
    ],
)
def test_each_way_to_be_wrong_is_named(what: object, says: str) -> None:
    with pytest.raises(ReceiptInvalid, match=says.replace("?", r"\?")):
        Receipt.decode(what)
