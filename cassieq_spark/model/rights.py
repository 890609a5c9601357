"""Decide what a key may do: rights on queues of one account, by patterns of their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final

from cassieq_spark.errors import AccessDenied, OptionInvalid

MOST_GRANTS: Final = 32
MOST_PATTERNS: Final = 32

LONGEST_TOKEN_S: Final = 365 * 86_400.0
"""The longest life of a token: a year."""

_ACCOUNT_SEPARATOR: Final = "/"
PATTERN: Final = r"[A-Za-z0-9._*?-]{1,200}"
"""A pattern has no brackets: without fnmatch's sets, the language has two signs to learn."""
_PATTERN: Final = re.compile(PATTERN)


class Right(StrEnum):
    """A right on a queue; ``admin`` is for the account itself."""

    READ = "read"
    PUT = "put"
    ACK = "ack"
    UPDATE = "update"
    INFO = "info"
    CREATE = "create"
    PURGE = "purge"
    DELETE = "delete"
    REDRIVE = "redrive"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Rights on the queues whose names match one of the patterns.

    Attributes:
        patterns: Of names without the account. ``*`` is any number of characters and ``?`` is one.
            A pattern matches the whole name, and upper and lower case differ.
    """

    rights: frozenset[Right]
    patterns: tuple[str, ...]

    def allows(self, right: Right, queue: str) -> bool:
        """Whether the grant has that right on a queue, named without its account."""
        return self.has(right) and any(fnmatchcase(queue, one) for one in self.patterns)

    def has(self, right: Right) -> bool:
        """Whether the grant has that right on some queue. The right to delete includes purge."""
        return right in self.rights or (right is Right.PURGE and Right.DELETE in self.rights)

    def to_plain(self) -> dict[str, list[str]]:
        """Return the form that rows, tokens and ``--json`` have."""
        return {"rights": sorted(self.rights), "queues": list(self.patterns)}


def _least(rights: Iterable[Right]) -> frozenset[Right]:
    """Leave out a right that another right includes.

    Keys are stored in this form. The right to purge is younger than the others, and servers that do
    not know it could not read a key that names it.
    """
    found = frozenset(rights)
    return found - {Right.PURGE} if Right.DELETE in found else found


EVERYTHING: Final = (Grant(rights=_least(Right), patterns=("*",)),)
"""All rights on all queues of an account."""


def parse_grant(rights: Iterable[str], patterns: Iterable[str]) -> Grant:
    """Check a grant from outside.

    Raises:
        OptionInvalid: A right or a pattern is invalid; the error names it.
    """
    found_rights, found_patterns = _texts("rights", rights), _texts("queues", patterns)
    known = {right.value for right in Right}
    for one in found_rights:
        if one not in known:
            raise OptionInvalid(
                f"{one[:80]!r} is not a right, allowed: {', '.join(right.value for right in Right)}"
            )
    for one in found_patterns:
        if not _PATTERN.fullmatch(one):
            raise OptionInvalid(
                f"{one[:80]!r} is not a pattern of queue names, allowed: 1 to 200 letters, digits, "
                "'.', '-', '_', and '*' for any characters or '?' for one, without the account"
            )
    return Grant(
        rights=_least(map(Right, found_rights)), patterns=tuple(dict.fromkeys(found_patterns))
    )


def grants_of(plain: Any) -> tuple[Grant, ...]:
    """Read grants in the form of `Grant.to_plain`.

    Raises:
        OptionInvalid: It is not in this form.
    """
    if not isinstance(plain, list) or not 1 <= len(plain) <= MOST_GRANTS:
        raise OptionInvalid(f"grants are not a list of 1 to {MOST_GRANTS} grants")
    found = []
    for one in plain:
        if not isinstance(one, Mapping) or set(one) != {"rights", "queues"}:
            raise OptionInvalid("a grant is not an object of rights and queues")
        found.append(parse_grant(one["rights"], one["queues"]))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Somebody who has shown a key, or a token that a key has signed.

    Attributes:
        account: The account's name; empty if accounts are not checked. Such a caller reaches only
            the queues that belong to no account.
        grants: The rights that the key has now.
        limits: The most that the token allows; None if the key itself was used.
        expires_us: When the token expires; None if the key itself was used.
    """

    account: str
    key_id: str
    grants: tuple[Grant, ...]
    limits: tuple[Grant, ...] | None = None
    expires_us: int | None = None

    def full_name(self, queue: str) -> str:
        """Return the name by which the client knows a queue of this account: ``acme/orders``.

        Raises:
            OptionInvalid: The name has a ``/``: callers name queues without the account.
        """
        if _ACCOUNT_SEPARATOR in queue:
            raise OptionInvalid(
                f"queue name {queue[:200]!r} has a '/'. Name a queue without its account: a key "
                "reaches the queues of its own account only"
            )
        return f"{self.account}{_ACCOUNT_SEPARATOR}{queue}" if self.account else queue

    def own_name(self, queue: str) -> str | None:
        """Return the name without the account, as callers know it; None: another account's."""
        account, name = _split(queue)
        return name if account == self.account else None

    def may(self, right: Right, queue: str) -> bool:
        """Whether the principal has a right on a queue.

        Args:
            queue: The full name, see `full_name`. A queue of another account is always refused.
        """
        name = self.own_name(queue)
        return name is not None and all(
            any(grant.allows(right, name) for grant in grants) for grants in self._each()
        )

    def may_put(self, queue: str) -> bool:
        """Whether it may put messages into a queue that a message's header names to a redrive."""
        return self.may(Right.PUT, queue)

    def may_somewhere(self, right: Right) -> bool:
        """Whether it has a right on some queue: for requests that name no queue, such as lists."""
        return all(any(grant.has(right) for grant in grants) for grants in self._each())

    def may_administer(self) -> bool:
        """Whether it may change its account: keys and their rights. That needs all queues.

        A key that may administer only some queues could give itself the others.
        """
        return all(
            any(Right.ADMIN in one.rights and "*" in one.patterns for one in grants)
            for grants in self._each()
        )

    def require(self, right: Right, queue: str) -> None:
        """Return if the principal has the right.

        Raises:
            AccessDenied: It does not; the error names the key, the right and the queue.
        """
        if not self.may(right, queue):
            raise self._lacks(right, f"on queue {queue!r}", queue)

    def require_somewhere(self, right: Right) -> None:
        """Return if the principal may have the right on some queue.

        Raises:
            AccessDenied: It has it on none; the error names the key and the right.
        """
        if not self.may_somewhere(right):
            raise self._lacks(right, "on every queue")

    def require_admin(self) -> None:
        """Return if the principal may change its account.

        Raises:
            AccessDenied: It may not.
        """
        if not self.may_administer():
            raise self._lacks(Right.ADMIN, "on the pattern '*'")

    def _each(self) -> list[tuple[Grant, ...]]:
        """Return the grants that must all allow a request: the key's, and the token's if any."""
        return [self.grants] if self.limits is None else [self.grants, self.limits]

    def _lacks(self, right: Right, where: str, queue: str = "") -> AccessDenied:
        kind = "key" if self.limits is None else "a token of key"
        return AccessDenied(
            f"{kind} {self.key_id} of account {self.account!r} lacks the right {right.value!r} "
            f"{where}. Use a key that has it, or ask whoever administers the account",
            right=right.value,
            queue=queue,
        )


def _split(queue: str) -> tuple[str, str]:
    """Return the account of a queue, empty if it has none, and its name in it."""
    account, separator, name = queue.partition(_ACCOUNT_SEPARATOR)
    # No account is named "/", so that "/orders" is not taken for "orders".
    return (account or _ACCOUNT_SEPARATOR, name) if separator else ("", queue)


def _texts(name: str, given: Any) -> list[str]:
    is_list = isinstance(given, list | tuple | set | frozenset)
    found = [one for one in given if isinstance(one, str)] if is_list else []
    if not is_list or not 1 <= len(found) == len(given) <= MOST_PATTERNS:
        raise OptionInvalid(f"{name} are not a list of 1 to {MOST_PATTERNS} texts")
    return found
