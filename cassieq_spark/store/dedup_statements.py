"""Define the CQL statements of deduplication, as `statements` does for queues."""

from __future__ import annotations

from typing import Final

from cassieq_spark.store.statements import Kind, _statement

READ_KEY: Final = _statement(
    "read_key", Kind.READ,
    """SELECT at_lane, bucket, first, message_id, put_us, writer, tags, row_version
       FROM {ks}.dedup WHERE lane = ? AND key = ?""",
)  # fmt: skip
# It also takes a key without a row, whose writer is null. An INSERT would make a row marker with a
# time to live of its own: the row could outlast its columns, and refuse an INSERT although it is
# empty.
TAKE_KEY: Final = _statement(
    "take_key", Kind.CAS,
    """UPDATE {ks}.dedup USING TTL ?
       SET at_lane = ?, bucket = ?, first = ?, message_id = ?, put_us = ?,
           writer = ?, tags = ?, row_version = ?
       WHERE lane = ? AND key = ? IF writer = ?""",
)  # fmt: skip

READ_KEPT: Final = _statement(
    "read_kept", Kind.READ, "SELECT manifest FROM {ks}.kept WHERE lane = ? AND bucket = ?",
)  # fmt: skip
# It is answered at quorum before L passes the bucket; several repairers write the same [U5].
KEEP: Final = _statement(
    "keep", Kind.WRITE,
    "INSERT INTO {ks}.kept (lane, bucket, manifest) VALUES (?, ?, ?) USING TTL ?",
)  # fmt: skip
