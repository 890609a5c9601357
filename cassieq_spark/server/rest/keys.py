"""Administer the caller's own account: list, make, rotate, disable and delete keys; sign tokens.

Whoever may do so has a key with the right `admin` on all queues. Accounts themselves are made and
deleted by ``cassieq account``, where Cassandra is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.queue.message import show_time, time_of
from cassieq_spark.server.guards import Refusal
from cassieq_spark.server.rest.call import Answer

if TYPE_CHECKING:
    from cassieq_spark.accounts.admin import NewKey
    from cassieq_spark.server.rest.call import Call


async def list_keys(call: Call) -> dict[str, Any]:
    """List the keys of your account."""
    account = _administered(call)
    found = await call.gate.administer(lambda admin, _: admin.keys(account))
    return {"keys": [one.to_plain() for one in found]}


async def create(call: Call) -> Answer:
    """Make a further key of your account.

    The others stay valid. Its secret is shown this once.
    """
    account, grants = _administered(call, by_key=True), call.body.as_grants()
    return _made(
        await call.gate.administer(lambda admin, master: admin.new_key(account, grants, master))
    )


async def rotate(call: Call) -> Answer:
    """Make a key with the rights of another one, which stays valid until you delete it."""
    account, key_id = _administered(call, by_key=True), _key_of(call)
    return _made(
        await call.gate.administer(lambda admin, master: admin.rotate(account, key_id, master))
    )


async def change(call: Call) -> None:
    """Disable or enable a key.

    Gateways follow within ten seconds.
    """
    account, key_id, is_enabled = _administered(call), _key_of(call), call.body.enabled
    if not is_enabled:
        _spare_own(call, key_id)
    await call.gate.administer(
        lambda admin, _: admin.set_enabled(account, is_enabled=is_enabled, key_id=key_id)
    )


async def delete(call: Call) -> None:
    """Delete a key for good.

    Gateways refuse it within ten seconds.
    """
    account, key_id = _administered(call), _key_of(call)
    _spare_own(call, key_id)
    await call.gate.administer(lambda admin, _: admin.delete_key(account, key_id))


async def sign(call: Call) -> dict[str, Any]:
    """Sign a bearer token by the key of this request.

    It never allows more than the key, and ends with it.
    """
    _administered(call, by_key=True)
    body = call.body
    begins_us = await call.backend.now_us() + round(body.starts_in * 1e6)
    ends_us = begins_us + round(body.expires_in * 1e6)
    token = await call.gate.sign(
        call.principal, body.as_grants(), begins_us=begins_us, ends_us=ends_us
    )
    return {"token": token, "expires_at": show_time(time_of(ends_us))}


def _administered(call: Call, *, by_key: bool = False) -> str:
    """The caller's account.

    Args:
        by_key: Whether a token is not enough: what is made would outlive it.

    Raises:
        Refusal: There are no accounts, or a token asks for what outlives it.
        AccessDenied: The caller may not administer the account.
    """
    if not call.gate.has_accounts:
        raise Refusal(
            404, "This gateway checks no accounts, so there are no keys. Start it with --auth."
        )
    call.principal.require_admin()
    if by_key and call.principal.limits is not None:
        raise Refusal(
            403, "A token makes no keys and no tokens: they would outlive it. Sign by a key."
        )
    return call.principal.account


def _spare_own(call: Call, key_id: str) -> None:
    if key_id == call.principal.key_id:
        raise OptionInvalid(
            f"key {key_id} is the one that this request was made with. Disable or delete it with "
            "another key, so that somebody can still administer the account"
        )


def _key_of(call: Call) -> str:
    return str(call.request.path_params["key"])


def _made(key: NewKey) -> Answer:
    return Answer(
        {
            "access_key_id": key.key_id,
            "secret_access_key": key.secret.reveal(),
            "grants": [grant.to_plain() for grant in key.grants],
        },
        headers={"Cache-Control": "no-store"},
    )
