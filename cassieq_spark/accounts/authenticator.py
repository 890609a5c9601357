"""Find out who sends a request: by its signature, or by a token. Every door asks here."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from cassieq_spark.accounts import tokens
from cassieq_spark.accounts.keys import KEY_ID, MasterKey, new_secret
from cassieq_spark.accounts.signature import Claim
from cassieq_spark.accounts.tokens import Token
from cassieq_spark.clock import Clock
from cassieq_spark.errors import AuthenticationFailed, CassieqError, MasterKeyInvalid
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.rights import Grant, Principal
from cassieq_spark.options.values import Secret
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.accounts import AccountStatus

USE_EVERY_S: Final = 60.0

_logger = get_logger("accounts")

KEPT_S: Final = 10.0
"""A key that was disabled is refused after this time at the latest."""

MOST: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveKey:
    """A key that is accepted now, with its secret in clear."""

    account: str
    secret: Secret
    grants: tuple[Grant, ...]


class Authenticator:
    """Checks requests against the keys in the store.

    A key is read at most once in ten seconds, so a disabled one is refused within that time. A
    request with an unknown key does the same work as one with a wrong signature: it is checked
    against a secret that nobody has.

    A door reads the claim of a request (`signature.claim_of`, `tokens.read`), gets the key that it
    names, from the engine's event loop unless it is `remembered`, and lets it prove the claim.
    """

    def __init__(self, store: Store, master_key: MasterKey, clock: Clock | None = None) -> None:
        """Prepare; nothing is read before the first request.

        Args:
            clock: Default: the store's, which follows the time of the Cassandra nodes.
        """
        self._store = store
        self._master_key = master_key
        self._clock = store.clock if clock is None else clock
        # What was found under each id, also that nothing was, and until when that is good. Ids that
        # nobody knows have a place of their own: whoever makes up ids pushes out no known one.
        self._known: OrderedDict[str, tuple[float, LiveKey]] = OrderedDict()
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self._nobodys = new_secret()
        self._used_s: OrderedDict[str, float] = OrderedDict()

    async def key(self, key_id: str) -> LiveKey | None:
        """The key of that id, if it is accepted now, or was at most ten seconds ago.

        Raises:
            StoreError: It is not remembered, and cannot be read.
        """
        # From before the read: a change that the read misses is seen ten seconds later, not twenty.
        until_s = self._clock.monotonic() + KEPT_S
        is_remembered, found = self.remembered(key_id)
        if is_remembered:
            return found
        found = await self._find(key_id)
        self._known.pop(key_id, None)
        self._unknown.pop(key_id, None)
        if found is None:
            self._unknown[key_id] = until_s
        else:
            self._known[key_id] = (until_s, found)
        for each in (self._known, self._unknown):
            if len(each) > MOST:
                each.popitem(last=False)
        return found

    def remembered(self, key_id: str) -> tuple[bool, LiveKey | None]:
        """Whether `key` would answer without waiting, and its answer then; it reads no table.

        The engine's event loop remembers, and that of the gateway asks.
        """
        now_s = self._clock.monotonic()
        known = self._known.get(key_id)
        if known is not None and now_s < known[0]:
            return True, known[1]
        return now_s < self._unknown.get(key_id, 0.0) or not KEY_ID.fullmatch(key_id), None

    def account_of(self, key_id: str) -> str | None:
        """The account of a key that was accepted when it was last read, however long ago."""
        known = self._known.get(key_id)
        return None if known is None else known[1].account

    def proves(self, claim: Claim | Token, key: LiveKey | None, *, now_us: int) -> Principal:
        """Return the principal that made this claim, if the key proves it. It waits for nothing.

        Args:
            key: What `key` says about the id that the claim names.

        Raises:
            AuthenticationFailed: It does not; ``reason`` says more.
        """
        secret = self._nobodys if key is None else key.secret
        if isinstance(claim, Token):
            limits, expires_us = claim.verify(secret, now_us=now_us)
            if key is None:
                raise tokens.refused()
            return Principal(
                account=key.account,
                key_id=claim.key_id,
                grants=key.grants,
                limits=limits,
                expires_us=expires_us,
            )
        is_proved = claim.is_proved_by(secret)
        if key is None:
            raise AuthenticationFailed(
                f"the key {claim.key_id[:80]!r} is not accepted: it is unknown or disabled. Check "
                "the access key id, or ask whoever administers the account",
                reason="refused",
            )
        if not is_proved:
            raise AuthenticationFailed(
                "the signature is not accepted: the secret of its key makes another signature of "
                "this request. Check the secret, and that nothing on the way changes the request",
                reason="signature",
            )
        return Principal(account=key.account, key_id=claim.key_id, grants=key.grants)

    def is_use_due(self, key_id: str) -> bool:
        """Whether a use of a key shall be recorded: once a minute. It notes that this was said."""
        now_s = self._clock.monotonic()
        if now_s < self._used_s.get(key_id, 0.0):
            return False
        self._used_s[key_id] = now_s + USE_EVERY_S
        self._used_s.move_to_end(key_id)
        if len(self._used_s) > MOST:
            self._used_s.popitem(last=False)
        return True

    async def record_use(self, key_id: str) -> None:
        """Record that a key was used now, if Cassandra answers; nothing depends on it."""
        try:
            await self._store.key_uses.record(key_id, self._clock.now_us())
        except CassieqError as error:  # least of all the request
            event(_logger, "key_use_not_recorded", key=key_id, error=str(error))

    async def _find(self, key_id: str) -> LiveKey | None:
        row = await self._store.account_keys.find(key_id)
        if row is None or row.is_disabled:
            return None
        account = await self._store.accounts.find(row.account)
        if (
            account is None
            or account.status is not AccountStatus.ACTIVE
            or account.account_id != row.account_id
            or key_id not in account.key_ids
        ):
            return None
        try:
            secret = self._master_key.unseal(
                row.sealed_secret, account_id=row.account_id, key_id=key_id
            )
        except MasterKeyInvalid as error:
            # Not the caller's business; whoever runs the server has to look.
            event(_logger, "key_unreadable", key=key_id, account=row.account, error=str(error))
            return None
        return LiveKey(account=row.account, secret=secret, grants=row.grants)
