"""Group two columns of a DataFrame, receipts and verdicts, by bucket and lease.

Tasks make a few bytes of each record batch. The driver puts them together, so that it finds every
mistake before anything is written, and one task gets all verdicts of a bucket.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, field
from itertools import combinations
from string import ascii_lowercase, ascii_uppercase, digits
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cassieq_spark.errors import OptionInvalid, ReceiptInvalid
from cassieq_spark.model import receipt as papers
from cassieq_spark.model.ids import EMPTY, OFFSET_LIMIT, BucketNo, LaneId, Place, Runs
from cassieq_spark.model.pointer import DELETED
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.queue.settle.settle import foreign
from cassieq_spark.spark import arrays
from cassieq_spark.spark.columns import receipt_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from cassieq_spark.queue.lane import Lane

ACK: Final = "ack"
RELEASE: Final = "release"
REJECT: Final = "reject"
VERDICTS: Final = (ACK, RELEASE, REJECT)
"""The allowed values of the verdict column, besides null."""

_HEAD: Final = papers.RAW_BYTES - 12
"""How many bytes all receipts of one delivery share."""

_SEXTETS: Final = np.zeros(256, dtype=np.uint8)
_SEXTETS[list(f"{ascii_uppercase}{ascii_lowercase}{digits}-_".encode())] = np.arange(64)


@dataclass(slots=True)
class Gathered:
    """The receipts and verdicts of a whole DataFrame.

    Attributes:
        left: The number of rows without a verdict.
    """

    by_bucket: dict[Place, dict[UUID, dict[str, Runs]]] = field(default_factory=dict)
    left: int = 0

    @property
    def rejects(self) -> bool:
        """Whether any message is rejected."""
        return any(
            REJECT in by_verdict
            for by_lease in self.by_bucket.values()
            for by_verdict in by_lease.values()
        )


def gather(receipts: pa.Array, verdicts: pa.Array) -> pa.Array:
    """An Arrow UDF: the result for a record batch is in its first row; all others are null.

    Runs in a task, and writes nothing.
    """
    if not len(receipts):
        return pa.array([], pa.binary())
    said: tuple[object, ...]
    try:
        said = (len(verdicts) - pc.count(verdicts).as_py(), list(_groups(receipts, verdicts)))
    except (OptionInvalid, ReceiptInvalid) as error:
        # A value that the driver raises: an exception of a task would arrive there as text only.
        said = (error.code, error.message)
    return pa.array([msgpack.packb(said), *[None] * (len(receipts) - 1)], pa.binary())


def put_together(lane: Lane, parts: Iterable[bytes]) -> Gathered:
    """Put together what all record batches say.

    Raises:
        OptionInvalid: A verdict is unknown, or one message has two.
        ReceiptInvalid: One is malformed, or of another queue.
    """
    gathered = Gathered()
    for part in parts:
        left, said = msgpack.unpackb(part)
        for kind in (OptionInvalid, ReceiptInvalid):
            if left == kind.code:
                raise kind(said)
        gathered.left += left
        for lane_id, bucket, lease_id, verdict, encoded in said:
            runs = Runs.decode(encoded)
            place = Place(LaneId(UUID(bytes=lane_id)), BucketNo(bucket))
            if not lane.fixed.has(place.lane):
                raise foreign(lane, "is of another queue, or of an earlier queue of this name")
            if bucket >= DELETED or runs.last >= lane.bucket_size:
                raise foreign(lane, "names messages that never existed")
            by_lease = gathered.by_bucket.setdefault(place, {})
            by_verdict = by_lease.setdefault(UUID(bytes=lease_id), {})
            by_verdict[verdict] = by_verdict.get(verdict, EMPTY) | runs
    _check_agreement(lane, gathered)
    return gathered


def _check_agreement(lane: Lane, gathered: Gathered) -> None:
    for place, by_lease in gathered.by_bucket.items():
        for lease_id, by_verdict in by_lease.items():
            for one, other in combinations(by_verdict, 2):
                if twice := by_verdict[one] & by_verdict[other]:
                    at = twice.first
                    receipt = Receipt(
                        lane=place.lane,
                        bucket=place.bucket,
                        lease_id=lease_id,
                        first=at,
                        last=at,
                    )
                    raise OptionInvalid(
                        f"message {place.bucket * lane.bucket_size + at} of queue {lane.queue!r} "
                        f"has two verdicts, {one!r} and {other!r} (receipt {receipt.encode()}). "
                        "Nothing was changed. Give each message one verdict"
                    )


def _groups(
    receipts: pa.Array, verdicts: pa.Array
) -> Iterator[tuple[bytes, int, bytes, str, bytes]]:
    """Yield (lane, bucket, lease, verdict, runs) of one record batch."""
    for verdict in pc.unique(verdicts).to_pylist():
        if verdict is None:
            continue
        if verdict not in VERDICTS:
            allowed = ", ".join(map(repr, VERDICTS))
            raise OptionInvalid(
                f"a message's verdict is {reprlib.repr(verdict)}, allowed: {allowed} or null. "
                "Nothing was changed"
            )
        judged = receipts.filter(pc.fill_null(pc.equal(verdicts, verdict), fill_value=False))
        if judged.null_count:
            raise ReceiptInvalid(
                f"the verdict {verdict!r} is about a message without a receipt. Nothing was "
                "changed. Rows of spark.read have no receipt: they were looked at, not delivered"
            )
        for (lane, bucket, lease), runs in _places(judged.cast(pa.string())):
            yield lane, bucket, lease, verdict, runs.encode()


def _places(receipts: pa.StringArray) -> Iterator[tuple[tuple[bytes, int, bytes], Runs]]:
    """Yield ((lane, bucket, lease), runs) that receipts name, decoded together.

    Each decoded receipt is encoded again and compared: that proves it whole. A receipt that
    differs, or is of another kind, takes the slow way, which says what is wrong with it.
    """
    regular = pc.equal(pc.binary_length(receipts), papers.TEXT_LENGTH)
    slow = receipts.filter(pc.invert(regular)).to_pylist()
    texts = receipts.filter(regular)
    for head, at, offsets in _deliveries(texts):
        given = texts.take(pa.array(at))
        is_same = np.asarray(pc.equal(receipt_texts(head, offsets), given))
        is_same &= (head[0] == papers.RECEIPT_VERSION) & (offsets < OFFSET_LIMIT)
        slow += given.filter(pa.array(~is_same)).to_pylist()
        if is_same.any():
            (lane, bucket, lease), _ = _place(given[int(np.argmax(is_same))].as_py())
            yield (lane, bucket, lease), arrays.runs(np.unique(offsets[is_same]))
    yield from map(_place, slow)


def _deliveries(texts: pa.StringArray) -> Iterator[tuple[bytes, NDArray[Any], NDArray[np.int64]]]:
    """Yield (common beginning, positions, first offsets) of the receipts of each delivery."""
    if not len(texts):
        return
    raw = _decoded(texts)
    heads = np.ascontiguousarray(raw[:, :_HEAD]).view(np.dtype((np.void, _HEAD))).ravel()
    firsts = np.ascontiguousarray(raw[:, _HEAD : _HEAD + 4]).view(">u4").ravel().astype(np.int64)
    unique, which, counts = np.unique(heads, return_inverse=True, return_counts=True)
    positions = np.split(np.argsort(which, kind="stable"), np.cumsum(counts)[:-1])
    for head, at in zip(unique, positions, strict=True):
        yield head.tobytes(), at, firsts[at]


def _place(text: str) -> tuple[tuple[bytes, int, bytes], Runs]:
    try:
        one = Receipt.decode(text)
        runs = Runs.span(one.first, one.last)
    except ReceiptInvalid as error:
        raise ReceiptInvalid(
            f"receipt {reprlib.repr(text)} is invalid, and nothing was changed: {error.message}"
        ) from error
    except ValueError as error:
        raise ReceiptInvalid(
            f"receipt {reprlib.repr(text)} names messages that never existed. Nothing was changed"
        ) from error
    return (one.lane.bytes, one.bucket, one.lease_id.bytes), runs


def _decoded(texts: pa.StringArray) -> NDArray[np.uint8]:
    """Decode base64url of `papers.TEXT_LENGTH` characters to (n, bytes); other text to anything."""
    width = papers.TEXT_LENGTH
    start = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset]
    characters = np.frombuffer(texts.buffers()[2], dtype=np.uint8)
    characters = characters[start : start + len(texts) * width].reshape(-1, width)
    sextets = np.zeros((len(texts), -(-width // 4) * 4), dtype=np.uint8)
    sextets[:, :width] = _SEXTETS[characters]
    one, two, three, four = (sextets[:, at::4] for at in range(4))
    raw = np.empty((len(texts), sextets.shape[1] // 4 * 3), dtype=np.uint8)
    raw[:, 0::3] = one << 2 | two >> 4
    raw[:, 1::3] = two << 4 | three >> 2
    raw[:, 2::3] = three << 6 | four
    return raw
