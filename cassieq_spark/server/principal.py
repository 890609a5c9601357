"""Say who a request comes from. Every door asks here, and then asks the caller for each right.

principal = await gate.authenticate(request, may=...)
queue = principal.full_name("orders")       # as the client knows it: acme/orders
principal.require(Right.READ, queue)        # or principal.may(Right.READ, queue)
...                                         # wait for messages
await gate.confirm(principal, Right.READ, queue)
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar, cast

from starlette.requests import Request

from cassieq_spark.accounts import tokens
from cassieq_spark.accounts.admin import AccountAdmin
from cassieq_spark.accounts.authenticator import Authenticator, LiveKey
from cassieq_spark.accounts.keys import MasterKey
from cassieq_spark.accounts.signature import UNSIGNED, Claim, SignedRequest, claim_of
from cassieq_spark.accounts.tokens import Token
from cassieq_spark.errors import AuthenticationFailed
from cassieq_spark.model.hosts import network_of
from cassieq_spark.model.rights import EVERYTHING, Grant, Principal, Right
from cassieq_spark.server.backend import Backend, Shared, Turns
from cassieq_spark.store import portal
from cassieq_spark.store.call import acting

T = TypeVar("T")

LOCAL: Final = Principal(account="", key_id="", grants=EVERYTHING)
"""Everybody who reaches a gateway that checks no accounts."""

READS: Final = 4
"""The number of keys that are read at once, in turn for each account, apart from the calls on
queues. Ids that were never found have as many places of their own, in turn for each address:
whoever makes up key ids keeps nobody waiting whose key is known, and nobody elsewhere whose key is
new."""

HASHED_ASIDE_BYTES: Final = 262_144
"""Longer bodies are hashed in a thread, so that others need not wait."""

_BEARER: Final = "bearer "


class Gate:
    """Checks who sends a request. For one event loop, which it never blocks."""

    def __init__(self, backend: Backend, master_key: MasterKey | None) -> None:
        """Prepare; nothing is read before the first request.

        Args:
            master_key: None: no accounts are checked, and everybody is `LOCAL`.
        """
        self._backend = backend
        self._master_key = master_key
        self._known = Turns(READS)
        self._unknown = Turns(READS)
        self._shared = Shared()
        self._authenticator: Authenticator | None = None

    async def authenticate(
        self,
        request: Request,
        *,
        may: Callable[[Principal], object],
        allows_unsigned: bool = False,
    ) -> Principal:
        """Return who has made a request; its body stays readable.

        The body is read only if the signature covers it, and its headers may be right. A token, and
        a signature that names the hash of the body, prove who asks before that.

        Args:
            may: Raises if a caller may not do this at all.
            allows_unsigned: Whether a signer may leave the body open, see `claim_of`.

        Raises:
            AuthenticationFailed: Nobody we know; ``reason`` says more.
            AccessDenied: What `may` raises.
            StoreError, Busy: The key could not be read.
            ClientDisconnect: The client has gone.
        """
        if self._master_key is None:
            return LOCAL
        now_us = await self._backend.now_us()
        sender = sender_of(request)
        claim = _claim_of(request, now_us, allows_unsigned=allows_unsigned)
        signed = claim if isinstance(claim, Claim) else None
        if signed is not None and not signed.payload:
            # So that nobody's body is read whose key is not accepted anyway.
            if await self._key(signed.key_id, sender) is None:
                self._checker().proves(signed, None, now_us=now_us)
            claim = signed.over(await self._hash(request, sender))
        found = await self._proved(claim, now_us, sender)
        may(found)
        if signed is not None and signed.payload not in ("", UNSIGNED):
            signed.over(await self._hash(request, sender))
        return found

    async def by_token(self, text: str, request: Request) -> Principal:
        """Return whose token this is, wherever it was: the page has it in a cookie.

        Raises:
            AuthenticationFailed: It is not accepted; ``reason`` says more.
            StoreError, Busy: The key could not be read.
        """
        if self._master_key is None:
            return LOCAL
        now_us = await self._backend.now_us()
        return await self._proved(tokens.read(text), now_us, sender_of(request))

    async def confirm(self, principal: Principal, right: Right, queue: str) -> None:
        """Return if a caller still has a right: for what happens long after `authenticate`.

        Raises:
            AuthenticationFailed: Its key was disabled or deleted, or its token has expired.
            AccessDenied: Its key has lost the right.
            StoreError, Busy: The key could not be read.
        """
        if self._master_key is None:
            return
        key = await self._own_key(principal)
        if key is None:
            raise AuthenticationFailed(
                f"the key {principal.key_id} was disabled or deleted while the request waited. "
                "Use another key",
                reason="refused",
            )
        if (
            principal.expires_us is not None
            and await self._backend.now_us() >= principal.expires_us
        ):
            raise AuthenticationFailed(
                "the token has expired while the request waited. Sign another one: cassieq "
                "account sign",
                reason="expired",
            )
        replace(principal, grants=key.grants).require(right, queue)

    @property
    def has_accounts(self) -> bool:
        """Whether accounts are checked."""
        return self._master_key is not None

    async def administer(
        self, work: Callable[[AccountAdmin, MasterKey], Coroutine[Any, Any, T]]
    ) -> T:
        """Do something with accounts and keys; only where `has_accounts`.

        Raises:
            CassieqError, Busy: What the work raises, or too many calls wait.
        """
        master_key = cast("MasterKey", self._master_key)
        admin = AccountAdmin(self._backend.store)
        return await self._backend.asked(lambda: work(admin, master_key))

    async def sign(
        self, principal: Principal, grants: tuple[Grant, ...], *, begins_us: int, ends_us: int
    ) -> str:
        """Sign a token by the key that a caller has shown.

        Raises:
            AuthenticationFailed: The key was disabled or deleted meanwhile.
            OptionInvalid: The token would be too long.
            StoreError, Busy: The key could not be read.
        """
        key = await self._own_key(principal)
        if key is None:
            raise tokens.refused()
        return tokens.sign(
            principal.key_id, key.secret, grants, begins_us=begins_us, ends_us=ends_us
        )

    def close(self) -> None:
        """Read no further key; reads under way end by themselves."""
        self._known.close()
        self._unknown.close()

    async def _proved(self, claim: Claim | Token, now_us: int, sender: str) -> Principal:
        key = await self._key(claim.key_id, sender)
        found = self._checker().proves(claim, key, now_us=now_us)
        acting.set(found.account)
        if self._checker().is_use_due(claim.key_id):
            portal.start(self._checker().record_use(claim.key_id))
        return found

    def _checker(self) -> Authenticator:
        """The authenticator.

        Raises:
            StoreUnavailable: Cassandra has not answered yet.
        """
        if self._authenticator is None:
            master_key = cast("MasterKey", self._master_key)
            self._authenticator = Authenticator(self._backend.store, master_key)
        return self._authenticator

    async def _hash(self, request: Request, sender: str) -> str:
        """The hash of the body."""
        hashed = partial(hashlib.sha256, await request.body())
        if len(await request.body()) > HASHED_ASIDE_BYTES:
            return (await self._known.run(partial(asyncio.to_thread, hashed), sender)).hexdigest()
        return hashed().hexdigest()

    async def _key(self, key_id: str, sender: str) -> LiveKey | None:
        """A key as it is now.

        Args:
            sender: Who waits for it if nobody knows whose key it is: each has a turn.
        """
        checker = self._checker()
        is_remembered, key = checker.remembered(key_id)
        if is_remembered:
            return key
        account = checker.account_of(key_id)
        turns, whose = (self._unknown, sender) if account is None else (self._known, account)
        # An unknown key is waited for in the turn of each sender, not in that of the first one.
        return await self._shared.once(
            f"{whose} {key_id}",
            lambda: turns.run(lambda: portal.asked(checker.key(key_id)), whose),
        )

    async def _own_key(self, principal: Principal) -> LiveKey | None:
        """The key of somebody who was authenticated, as it is now."""
        key = await self._key(principal.key_id, principal.account)
        return None if key is None or key.account != principal.account else key


def sender_of(request: Request) -> str:
    """Return where a request comes from: all that is known before its proof is checked."""
    client = request.client
    return "" if client is None else f"at {network_of(client.host)}"


def _claim_of(request: Request, now_us: int, *, allows_unsigned: bool) -> Claim | Token:
    """Return the claim of a request about who sends it; nothing of it is proved.

    Raises:
        AuthenticationFailed: It cannot be right; or it shows a token, and also has a signature or
            several Authorization headers.
    """
    given = request.headers.getlist("authorization")
    if not any(one[: len(_BEARER)].lower() == _BEARER for one in given):
        return claim_of(_signed_request(request), now_us=now_us, allows_unsigned=allows_unsigned)
    if len(given) > 1 or b"X-Amz-Signature=" in request.scope["query_string"]:
        raise AuthenticationFailed(
            "the request has a token and another proof of who sends it. Send one of them",
            reason="malformed",
        )
    return tokens.read(given[0][len(_BEARER) :].strip())


def _signed_request(request: Request) -> SignedRequest:
    """The request as it came over the wire, for its signature; its body has not come yet."""
    scope = request.scope
    return SignedRequest(
        method=scope["method"],
        raw_path=scope["raw_path"].decode("latin-1"),
        query_string=scope["query_string"].decode("latin-1"),
        headers=tuple(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        ),
        body_sha256=None,
    )
