"""Tables account and account_key (LWT only, G1, G2) and key_use, which decides nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from cassieq_spark.errors import OptionInvalid, RowCorrupt
from cassieq_spark.model.outcome import Outcome, Stored
from cassieq_spark.model.rights import Grant, grants_of
from cassieq_spark.store import statements
from cassieq_spark.store.tables.table import CasTable, Table


class AccountStatus(StrEnum):
    """The phase of an account's life; only an active account's keys are accepted."""

    ACTIVE = "active"
    DISABLED = "disabled"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRow:
    """An account, as its row has it.

    Attributes:
        account_id: A later account of the same name has another id: keys do not outlive their
            account.
        key_ids: The keys that are valid. If a key's row is missing, its creation or deletion was
            cut off.
    """

    name: str
    account_id: UUID
    status: AccountStatus
    key_ids: tuple[str, ...]
    created_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """A key of an account; ``sealed_secret`` is encrypted under the master key."""

    key_id: str
    account: str
    account_id: UUID
    sealed_secret: bytes
    grants: tuple[Grant, ...]
    is_disabled: bool
    created_us: int


class Accounts(CasTable[AccountRow]):
    """The account rows."""

    READ = statements.READ_ACCOUNT

    async def find(self, name: str) -> AccountRow | None:
        """Return the row for a request: this data centre's, or if it has none, that of all."""
        rows = await self._session.attempt(statements.FIND_ACCOUNT, (name,))
        found = self._stored(rows) or await self.read(name)
        return None if found is None else found.value

    async def read_all(self) -> list[AccountRow]:
        """Return every account, by name."""
        found = self._values(await self._session.run(statements.LIST_ACCOUNTS))
        return sorted(found, key=lambda account: account.name)

    async def insert(self, row: AccountRow) -> Outcome[AccountRow]:
        """Insert the row by CAS, if there is none."""
        columns = (row.account_id, row.status.value, list(row.key_ids), row.created_us)
        return await self._send(statements.INSERT_ACCOUNT, (row.name,), row, columns)

    async def update(self, old: Stored[AccountRow], row: AccountRow) -> Outcome[AccountRow]:
        """Write another status or other keys by CAS."""
        columns = (row.status.value, list(row.key_ids))
        return await self._send(statements.UPDATE_ACCOUNT, (row.name,), row, columns, old=old)

    async def delete(self, old: Stored[AccountRow]) -> None:
        """Remove this row; an account that was created under the name since stays."""
        await self._delete(statements.DELETE_ACCOUNT, (old.value.name,), old)

    def _decode(self, row: Any) -> AccountRow | None:
        if row.account_id is None:
            return None
        return AccountRow(
            name=row.name,
            account_id=row.account_id,
            status=AccountStatus(row.status),
            key_ids=tuple(row.key_ids or ()),
            created_us=row.created_us,
        )


class AccountKeys(CasTable[KeyRow]):
    """The key rows."""

    READ = statements.READ_ACCOUNT_KEY

    async def find(self, key_id: str) -> KeyRow | None:
        """Return the row for a request: this data centre's, or if it has none, that of all."""
        rows = await self._session.attempt(statements.FIND_ACCOUNT_KEY, (key_id,))
        found = self._stored(rows) or await self.read(key_id)
        return None if found is None else found.value

    async def insert(self, row: KeyRow) -> Outcome[KeyRow]:
        """Insert the row by CAS, if there is none."""
        columns = (
            row.account,
            row.account_id,
            row.sealed_secret,
            json.dumps([grant.to_plain() for grant in row.grants]),
            row.is_disabled,
            row.created_us,
        )
        return await self._send(statements.INSERT_ACCOUNT_KEY, (row.key_id,), row, columns)

    async def update(self, old: Stored[KeyRow], row: KeyRow) -> Outcome[KeyRow]:
        """Disable or enable the key by CAS."""
        columns = (row.is_disabled,)
        return await self._send(statements.UPDATE_ACCOUNT_KEY, (row.key_id,), row, columns, old=old)

    async def delete(self, key_id: str) -> None:
        """Remove a key, if it exists."""
        await self._sender.delete(statements.DELETE_ACCOUNT_KEY, (key_id,))

    def _decode(self, row: Any) -> KeyRow | None:
        if row.account_id is None:
            return None
        try:
            grants = grants_of(json.loads(row.grants))
        except (OptionInvalid, TypeError, ValueError, RecursionError) as error:
            raise RowCorrupt(
                f"the grants of key {row.key_id} cannot be read; were they written by hand? Delete "
                "the key, and make another one"
            ) from error
        return KeyRow(
            key_id=row.key_id,
            account=row.account,
            account_id=row.account_id,
            sealed_secret=row.secret,
            grants=grants,
            is_disabled=row.is_disabled,
            created_us=row.created_us,
        )


class KeyUses(Table):
    """The times of the keys' last uses, within a minute or so."""

    async def record(self, key_id: str, at_us: int) -> None:
        """Record a use, if Cassandra answers at once: a request waits for this, and need not."""
        await self._session.attempt(statements.WRITE_KEY_USE, (key_id, at_us, at_us))

    async def last_us(self, key_id: str) -> int | None:
        """Return when a key was last used; None: not in the last year."""
        row = await self._session.one(statements.READ_KEY_USE, (key_id,))
        return None if row is None else int(row.at_us)
