"""Administer queues, and the caller's own account: its keys, and tokens that they sign.

Whoever does the latter has a key with the right `admin` on all queues. Accounts themselves are made
and deleted by ``cassieq account``, where Cassandra is.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from cassieq_spark.accounts.admin import NewKey
from cassieq_spark.aio.queue import AsyncQueue
from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.moments import show_time, time_of
from cassieq_spark.model.rights import Principal, Right
from cassieq_spark.server.door import in_turn, on_queue
from cassieq_spark.server.guards import Refusal
from cassieq_spark.server.rest.call import Answer, Call

TARGET: Final = "dead_letter_queue"


def settings_of(queue: AsyncQueue, principal: Principal) -> dict[str, Any]:
    """A queue's settings, with the dead-letter queue as its owner names it."""
    settings = queue.settings.by_option()
    if (dead := queue.settings.dead_letter_queue) is not None:
        settings[TARGET] = principal.own_name(dead)
    return settings


async def list_queues(call: Call) -> dict[str, Any]:
    """List queues by name."""
    query, principal = call.query, call.principal
    found = await call.backend.run(call.backend.client.queues)
    own = (principal.own_name(one.name) for one in found if principal.may(Right.INFO, one.name))
    left = sorted(
        name for name in own if name and name.startswith(query.prefix) and name > query.after
    )
    page = left[: query.max_queues]
    return {"queues": page, "next": page[-1] if len(left) > len(page) else None}


@in_turn
async def create_queue(call: Call) -> Answer:
    """Create a queue.

    An existing queue is returned if it has the settings that are named; it keeps its labels and all
    other settings.
    """
    made, is_new = await call.backend.client.find_or_create_queue(
        call.queue, labels=call.body.labels, **_settings(call)
    )
    return Answer(_shown(call, made), 201 if is_new else 200)


@in_turn
async def show_queue(call: Call) -> dict[str, Any]:
    """Show the settings and labels of a queue."""
    return _shown(call, await call.backend.client.queue(call.queue))


@in_turn
async def alter_queue(call: Call) -> dict[str, Any]:
    """Change settings and labels of a queue.

    Other gateways see them within ten seconds.
    """
    client, settings, labels = call.backend.client, _settings(call), call.body.labels
    if not settings and not labels:
        raise OptionInvalid("the body has neither settings nor labels. Give what is to change")
    if settings:
        call.backend.keep(await client.alter_queue(call.queue, **settings))
    if labels:
        call.backend.keep(await client.label_queue(call.queue, labels))
    return _shown(call, await call.backend.handle(call.queue))


@in_turn
async def delete_queue(call: Call) -> None:
    """Delete a queue with everything in it.

    409 if a queue names it as its dead-letter queue, or a condition does not hold.
    """
    await call.backend.client.delete_queue(call.queue, **call.query.model_dump())
    call.backend.forget(call.queue)


@on_queue
async def purge_queue(_: Call, queue: AsyncQueue) -> dict[str, Any]:
    """Drop all messages of a queue: visible, leased, delayed and dead."""
    return {"purged": await queue.purge()}


@on_queue
async def pause_queue(call: Call, queue: AsyncQueue) -> None:
    """Hand out no more messages of a queue, or of one priority, until it is resumed."""
    await queue.pause(call.body.priority)


@on_queue
async def resume_queue(call: Call, queue: AsyncQueue) -> None:
    """Hand out messages again after a pause."""
    await queue.resume(call.body.priority)


@on_queue
async def statistics(_: Call, queue: AsyncQueue) -> dict[str, Any]:
    """Count the messages of a queue."""
    found = asdict(await queue.stats())
    found["oldest_age_s"] = found.pop("oldest_age")
    found["by_priority"] = {str(one): count for one, count in found["by_priority"].items()}
    return found


def _settings(call: Call) -> dict[str, Any]:
    """The settings of a body, with the dead-letter queue as the client knows it."""
    found: dict[str, Any] = dict(call.body.settings)
    if isinstance(found.get(TARGET), str):
        found[TARGET] = call.target(found[TARGET])
    return found


def _shown(call: Call, found: AsyncQueue) -> dict[str, Any]:
    queue = call.backend.keep(found)
    return {
        "name": call.principal.own_name(queue.name),
        "created_at": show_time(queue.created_at),
        "settings": settings_of(queue, call.principal),
        "labels": dict(queue.labels),
    }


# --- keys -----------------------------------------------------------------------------------------


async def list_keys(call: Call) -> dict[str, Any]:
    """List the keys of your account."""
    account = _administered(call)
    found = await call.gate.administer(lambda admin, _: admin.keys(account))
    return {"keys": [one.to_plain() for one in found]}


async def create_key(call: Call) -> Answer:
    """Make a further key of your account.

    The others stay valid. Its secret is shown this once.
    """
    account, grants = _administered(call, by_key=True), call.body.as_grants()
    return _made(
        await call.gate.administer(lambda admin, master: admin.new_key(account, grants, master))
    )


async def rotate_key(call: Call) -> Answer:
    """Make a key with the rights of another one, which stays valid until you delete it."""
    account, key_id = _administered(call, by_key=True), _key_of(call)
    return _made(
        await call.gate.administer(lambda admin, master: admin.rotate(account, key_id, master))
    )


async def change_key(call: Call) -> None:
    """Disable or enable a key.

    Gateways follow within ten seconds.
    """
    account, key_id, is_enabled = _administered(call), _key_of(call), call.body.enabled
    if not is_enabled:
        _spare_own(call, key_id)
    await call.gate.administer(
        lambda admin, _: admin.set_enabled(account, is_enabled=is_enabled, key_id=key_id)
    )


async def delete_key(call: Call) -> None:
    """Delete a key for good.

    Gateways refuse it within ten seconds.
    """
    account, key_id = _administered(call), _key_of(call)
    _spare_own(call, key_id)
    await call.gate.administer(lambda admin, _: admin.delete_key(account, key_id))


async def sign_token(call: Call) -> dict[str, Any]:
    """Sign a bearer token with the key of this request.

    It never allows more than the key, and is refused when the key is.
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
