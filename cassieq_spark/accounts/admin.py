"""Create, list, disable and delete accounts and keys; each survives a crash at any step.

    new key:    id into the account's row  ->  key row        only then is the secret shown
    delete key: no key row  ->  id out of the account's row
    delete:     status = deleting  ->  no queues  ->  no key rows  ->  no account row

A key counts if its account lists it and its row is there, of this very account.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from cassieq_spark import errors
from cassieq_spark.accounts.keys import MasterKey, new_key_id, new_secret
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.moments import show_time, time_of
from cassieq_spark.model.outcome import Applied, Stored
from cassieq_spark.model.rights import EVERYTHING, Grant
from cassieq_spark.options import account_name
from cassieq_spark.options.values import Secret
from cassieq_spark.queue import admin as queue_admin
from cassieq_spark.queue.find import every_row
from cassieq_spark.queue.lane import attempts
from cassieq_spark.queue.schedules.define import finish
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.accounts import AccountRow, AccountStatus, KeyRow
from cassieq_spark.store.tables.queues import QueueRow

MOST_KEYS: Final = 16
"""More than AWS's two: a key has rights, so programs of one account have keys of their own."""

RESERVED: Final = frozenset({"ui", "v1"})
"""Addresses of the gateway. The URL of a queue may begin with its account's name."""

_logger = get_logger("accounts")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was just made. Its secret is not shown again."""

    account: str
    key_id: str
    secret: Secret
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInfo:
    """A key as it is listed.

    Attributes:
        row: None if the key was not finished, or half deleted; then it can only be deleted.
        used_us: The last use, within a minute; None if there was none in the last year.
    """

    key_id: str
    row: KeyRow | None
    used_us: int | None

    def to_plain(self) -> dict[str, Any]:
        """Return the key as ``--json`` and the REST API show it."""
        row = self.row
        status = "unfinished" if row is None else "disabled" if row.is_disabled else "active"
        return {
            "access_key_id": self.key_id,
            "status": status,
            "grants": [] if row is None else [grant.to_plain() for grant in row.grants],
            "created_at": None if row is None else show_time(time_of(row.created_us)),
            "used_at": None if self.used_us is None else show_time(time_of(self.used_us)),
        }


class AccountAdmin:
    """The accounts of one keyspace."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(self, name: str, master_key: MasterKey) -> NewKey:
        """Create an account, with a key that has all rights in it.

        Raises:
            OptionInvalid: The name has a wrong form, or the gateway uses it itself.
            AccountExists: An account of that name exists, even if its creation was cut off.
        """
        if name in RESERVED:
            raise errors.OptionInvalid(
                f"account name {name!r} is an address of the gateway. Choose another name"
            )
        key_id = new_key_id()
        row = AccountRow(
            name=account_name(name),
            account_id=self._store.entropy.new_uuid(),
            status=AccountStatus.ACTIVE,
            key_ids=(key_id,),
            created_us=self._store.clock.now_us(),
        )
        outcome = await self._store.accounts.insert(row)
        if not isinstance(outcome, Applied):
            raise errors.AccountExists(
                f"account {name!r} exists already. Make a further key for it with "
                f"cassieq account new-key {name}, or choose another name"
            )
        event(_logger, "account_created", account=name)
        return await self._insert_key(row, key_id, EVERYTHING, master_key)

    async def all(self) -> list[AccountRow]:
        """Every account, by name."""
        return await self._store.accounts.read_all()

    async def keys(self, name: str) -> list[KeyInfo]:
        """The keys of an account, oldest first. Secrets are not read.

        Raises:
            AccountNotFound: No account has that name.
        """
        account = (await self._read(name)).value
        found = []
        for key_id in account.key_ids:
            key = await self._store.account_keys.read(key_id)
            used_us = await self._store.key_uses.last_us(key_id)
            row = None if key is None else key.value
            found.append(KeyInfo(key_id=key_id, row=row, used_us=used_us))
        return found

    async def new_key(self, name: str, grants: tuple[Grant, ...], master_key: MasterKey) -> NewKey:
        """Make a further key; the others stay valid.

        Raises:
            AccountNotFound: No account has that name.
            TooManyKeys: It has `MOST_KEYS` keys.
        """
        key_id = new_key_id()

        def with_key(row: AccountRow) -> AccountRow:
            if len(row.key_ids) >= MOST_KEYS:
                raise errors.TooManyKeys(
                    f"account {name!r} has {len(row.key_ids)} keys, which is the limit. Delete one "
                    f"that nobody uses; see: cassieq account keys {name}"
                )
            return replace(row, key_ids=(*row.key_ids, key_id))

        return await self._insert_key(
            await self._change(name, with_key), key_id, grants, master_key
        )

    async def rotate(self, name: str, key_id: str, master_key: MasterKey) -> NewKey:
        """Make a key with the rights of another one, which stays valid until it is deleted.

        Raises:
            KeyNotFound: The account has no such key.
            TooManyKeys: It has `MOST_KEYS` keys.
        """
        return await self.new_key(name, (await self._key(name, key_id)).value.grants, master_key)

    async def set_enabled(self, name: str, *, is_enabled: bool, key_id: str | None = None) -> None:
        """Disable or enable an account, or one of its keys; servers follow within ten seconds.

        Raises:
            AccountNotFound, KeyNotFound: It does not exist.
        """
        if key_id is None:
            status = AccountStatus.ACTIVE if is_enabled else AccountStatus.DISABLED
            await self._change(name, lambda row: replace(row, status=status))
            event(_logger, "account_changed", account=name, status=status.value)
            return
        async for _ in attempts(self._store):
            found = await self._key(name, key_id)
            wanted = replace(found.value, is_disabled=not is_enabled)
            if found.value == wanted or isinstance(
                await self._store.account_keys.update(found, wanted), Applied
            ):
                event(_logger, "key_changed", account=name, key=key_id, is_enabled=is_enabled)
                return
        raise _contention(name)

    async def delete_key(self, name: str, key_id: str) -> None:
        """Delete a key for good.

        Raises:
            AccountNotFound, KeyNotFound: It does not exist.
        """
        if key_id not in (await self._read(name)).value.key_ids:
            raise _no_key(name, key_id)
        await self._store.account_keys.delete(key_id)
        await self._change(
            name, lambda row: replace(row, key_ids=tuple(k for k in row.key_ids if k != key_id))
        )
        event(_logger, "key_deleted", account=name, key=key_id)

    async def queues(self, name: str) -> list[QueueRow]:
        """The queues of an account, by name; also those whose deletion was cut off."""
        prefix = f"{account_name(name)}/"
        return [row for row in await every_row(self._store) if row.name.startswith(prefix)]

    async def delete(self, name: str, *, with_queues: bool = False) -> int:
        """Delete an account with its keys and schedules; return how many queues it had.

        A deletion that was cut off goes on where it stopped. Its keys are refused within ten
        seconds; wait for that long before you give the name to somebody else.

        Raises:
            AccountNotFound: No account has that name.
            AccountInUse: It has queues; nothing was done.
        """
        found = await self.queues(name)
        if found and not with_queues:
            await self._read(name)
            raise errors.AccountInUse(
                f"account {name!r} has {len(found)} queues, such as {found[0].name!r}. Delete them "
                "first, or give --with-queues to delete them with all they hold"
            )
        row = await self._change(name, lambda row: replace(row, status=AccountStatus.DELETING))
        deleted = await self.queues(name)
        for queue in deleted:
            with suppress(errors.QueueNotFound):  # somebody else was faster
                await queue_admin.delete(self._store, queue.name)
        await self._delete_schedules(name)
        for key_id in row.key_ids:
            await self._store.account_keys.delete(key_id)
        stored = await self._store.accounts.read(name)
        if stored is not None and stored.value.account_id == row.account_id:
            await self._store.accounts.delete(stored)
        event(_logger, "account_deleted", account=name, queues=len(deleted))
        return len(deleted)

    async def _delete_schedules(self, name: str) -> None:
        """Delete the schedules of an account: they would put into queues of whoever has it next."""
        with suppress(errors.SchemaMissing):  # an earlier release has made the tables
            for one in await self._store.timetable.read_all():
                if one.name.startswith(f"{name}/") or one.queue.startswith(f"{name}/"):
                    await finish(self._store, one)

    async def _insert_key(
        self, account: AccountRow, key_id: str, grants: tuple[Grant, ...], master_key: MasterKey
    ) -> NewKey:
        secret = new_secret()
        row = KeyRow(
            key_id=key_id,
            account=account.name,
            account_id=account.account_id,
            sealed_secret=master_key.seal(secret, account_id=account.account_id, key_id=key_id),
            grants=grants,
            is_disabled=False,
            created_us=self._store.clock.now_us(),
        )
        if not isinstance(await self._store.account_keys.insert(row), Applied):
            raise errors.CasContention(
                f"key {key_id} of account {account.name!r} was deleted while it was made. Make "
                "another one"
            )
        event(_logger, "key_created", account=account.name, key=key_id)
        return NewKey(account=account.name, key_id=key_id, secret=secret, grants=grants)

    async def _read(self, name: str) -> Stored[AccountRow]:
        found = await self._store.accounts.read(account_name(name))
        if found is None:
            raise errors.AccountNotFound(
                f"there is no account {name!r}. Create it, or look for a misspelt name: "
                "cassieq account list"
            )
        return found

    async def _key(self, name: str, key_id: str) -> Stored[KeyRow]:
        account = (await self._read(name)).value
        found = await self._store.account_keys.read(key_id) if key_id in account.key_ids else None
        if found is None or found.value.account_id != account.account_id:
            raise _no_key(name, key_id)
        return found

    async def _change(self, name: str, change: Callable[[AccountRow], AccountRow]) -> AccountRow:
        async for _ in attempts(self._store):
            found = await self._read(name)
            wanted = change(found.value)
            if AccountStatus.DELETING is found.value.status is not wanted.status or (
                wanted.status is AccountStatus.DELETING
                and len(wanted.key_ids) > len(found.value.key_ids)
            ):
                raise errors.AccountNotFound(
                    f"account {name!r} is being deleted, and nothing else can be done with it. "
                    f"Finish that with: cassieq account delete {name} --with-queues"
                )
            if wanted == found.value:
                return wanted
            if isinstance(await self._store.accounts.update(found, wanted), Applied):
                return wanted
        raise _contention(name)


def _no_key(name: str, key_id: str) -> errors.KeyNotFound:
    return errors.KeyNotFound(
        f"account {name!r} has no key {key_id[:80]!r}. List its keys with: cassieq account keys "
        f"{name}"
    )


def _contention(name: str) -> errors.CasContention:
    return errors.CasContention(
        f"other clients change account {name!r} again and again. Try again later"
    )
