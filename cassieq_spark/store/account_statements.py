"""Define the CQL statements on accounts and keys, as `statements` does for queues."""

from __future__ import annotations

from typing import Final

from cassieq_spark.store.statements import Kind, Reach, _statement

_ACCOUNTS: Final = """SELECT name, account_id, status, key_ids, created_us,
                              writer, tags, row_version
                       FROM {ks}.account"""
_ACCOUNT: Final = f"{_ACCOUNTS} WHERE name = ?"
_ACCOUNT_KEY: Final = """SELECT key_id, account, account_id, secret, grants, is_disabled,
                                created_us, writer, tags, row_version
                         FROM {ks}.account_key WHERE key_id = ?"""

# This data centre's quorum checks a request; if it does not know the row, all are asked.
FIND_ACCOUNT: Final = _statement("find_account", Kind.READ, _ACCOUNT)
READ_ACCOUNT: Final = _statement("read_account", Kind.READ, _ACCOUNT, Reach.WORLD)
LIST_ACCOUNTS: Final = _statement("list_accounts", Kind.READ, _ACCOUNTS, Reach.WORLD)
INSERT_ACCOUNT: Final = _statement(
    "insert_account", Kind.CAS,
    """INSERT INTO {ks}.account (name, account_id, status, key_ids, created_us,
              writer, tags, row_version)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS""",
    Reach.WORLD,
)  # fmt: skip
# Conditional on the row as read: two clients that add a key each must not undo each other's.
UPDATE_ACCOUNT: Final = _statement(
    "update_account", Kind.CAS,
    """UPDATE {ks}.account SET status = ?, key_ids = ?, writer = ?, tags = ?, row_version = ?
       WHERE name = ? IF writer = ?""",
    Reach.WORLD,
)  # fmt: skip
DELETE_ACCOUNT: Final = _statement(
    "delete_account", Kind.CAS, "DELETE FROM {ks}.account WHERE name = ? IF writer = ?",
    Reach.WORLD,
)  # fmt: skip
FIND_ACCOUNT_KEY: Final = _statement("find_account_key", Kind.READ, _ACCOUNT_KEY)
READ_ACCOUNT_KEY: Final = _statement("read_account_key", Kind.READ, _ACCOUNT_KEY, Reach.WORLD)
INSERT_ACCOUNT_KEY: Final = _statement(
    "insert_account_key", Kind.CAS,
    """INSERT INTO {ks}.account_key (key_id, account, account_id, secret, grants, is_disabled,
              created_us, writer, tags, row_version)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS""",
    Reach.WORLD,
)  # fmt: skip
# The secret and the grants of a key never change: for others, one makes another key.
UPDATE_ACCOUNT_KEY: Final = _statement(
    "update_account_key", Kind.CAS,
    """UPDATE {ks}.account_key SET is_disabled = ?, writer = ?, tags = ?, row_version = ?
       WHERE key_id = ? IF writer = ?""",
    Reach.WORLD,
)  # fmt: skip
# An id is never used again, so any row of it is the right one.
DELETE_ACCOUNT_KEY: Final = _statement(
    "delete_account_key", Kind.CAS, "DELETE FROM {ks}.account_key WHERE key_id = ? IF EXISTS",
    Reach.WORLD,
)  # fmt: skip
# For people who look for unused keys; nothing depends on it. The row ends by its TTL. The time of
# use is its write time, so that the newest use wins, whatever the clock of the node that takes it.
WRITE_KEY_USE: Final = _statement(
    "write_key_use", Kind.WRITE,
    "INSERT INTO {ks}.key_use (key_id, at_us) VALUES (?, ?) USING TIMESTAMP ? AND TTL 31536000",
)  # fmt: skip
READ_KEY_USE: Final = _statement(
    "read_key_use", Kind.READ, "SELECT at_us FROM {ks}.key_use WHERE key_id = ?",
)  # fmt: skip
