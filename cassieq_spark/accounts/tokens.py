"""Sign and read bearer tokens: JSON Web Tokens that a key signs, for a while and for some queues.

A token is signed with a key that is derived from the secret, so whoever has the token does not
learn anything that helps to sign a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import jwt

from cassieq_spark.accounts.keys import KEY_ID, derive
from cassieq_spark.errors import AuthenticationFailed, OptionInvalid
from cassieq_spark.model.rights import Grant, grants_of
from cassieq_spark.options.values import Secret

ALGORITHM: Final = "HS256"
AUDIENCE: Final = "cassieq"
LONGEST: Final = 4_096
_LATEST_S: Final = 1 << 40

# The clock is ours, so times are checked here: PyJWT would ask the machine.
_OPTIONS: Final[Any] = {
    "require": ["exp", "nbf", "aud"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The content of a token; nothing of it is proved before `verify`."""

    text: str
    key_id: str

    def verify(self, secret: Secret, *, now_us: int) -> tuple[tuple[Grant, ...], int]:
        """Return what it is limited to, and when it expires.

        Raises:
            AuthenticationFailed: The secret did not sign it, or it is not valid now.
        """
        try:
            claims = jwt.decode(
                self.text,
                _signing_key(secret, self.key_id),
                algorithms=[ALGORITHM],
                audience=AUDIENCE,
                options=_OPTIONS,
            )
            grants = grants_of(claims.get("grants"))
            begins, ends = _time(claims, "nbf"), _time(claims, "exp")
        except (jwt.PyJWTError, OptionInvalid, ValueError, TypeError, RecursionError):
            raise refused() from None
        if now_us < begins * 1_000_000:
            raise AuthenticationFailed("the token is not valid yet. Use it later", reason="skewed")
        if now_us >= ends * 1_000_000:
            raise AuthenticationFailed(
                "the token has expired. Sign another one: cassieq account sign", reason="expired"
            )
        return grants, ends * 1_000_000


def read(text: str) -> Token:
    """Find out which key a token names.

    Raises:
        AuthenticationFailed: It is no token of this package.
    """
    if len(text) > LONGEST or not text.isascii():
        raise malformed()
    try:
        header = jwt.get_unverified_header(text)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise malformed() from None
    key_id = header.get("kid")
    # "none" and the algorithms of public keys end here, before a key is looked for.
    if header.get("alg") != ALGORITHM or not isinstance(key_id, str) or "crit" in header:
        raise malformed()
    return Token(text=text, key_id=key_id)


def sign(
    key_id: str, secret: Secret, grants: tuple[Grant, ...], *, begins_us: int, ends_us: int
) -> str:
    """Make a token. It allows what it names and what its key may do when it is used.

    Raises:
        OptionInvalid: The key id has a wrong form, or the token would be too long.
    """
    if not KEY_ID.fullmatch(key_id):
        raise OptionInvalid(f"{key_id[:80]!r} is not the id of a key. Look for it in its listing")
    claims = {
        "aud": AUDIENCE,
        "nbf": begins_us // 1_000_000,
        "exp": -(-ends_us // 1_000_000),
        "grants": [grant.to_plain() for grant in grants],
    }
    text = jwt.encode(
        claims, _signing_key(secret, key_id), algorithm=ALGORITHM, headers={"kid": key_id}
    )
    if len(text) > LONGEST:
        raise OptionInvalid(
            f"the token would have {len(text):,} characters, but the limit is {LONGEST:,}. Name "
            "fewer queues, or use a pattern"
        )
    return text


def malformed() -> AuthenticationFailed:
    """The error for a text that is no token of this package."""
    return AuthenticationFailed(
        "the token is not one of a key. Make one with: cassieq account sign", reason="malformed"
    )


def refused() -> AuthenticationFailed:
    """The error for an unknown or disabled key and for a wrong signature, which are not told."""
    return AuthenticationFailed(
        "the token is not accepted: its key is unknown or disabled, or did not sign it. Sign "
        "another one: cassieq account sign",
        reason="refused",
    )


def _signing_key(secret: Secret, key_id: str) -> bytes:
    return derive(secret.reveal().encode(), f"cassieq bearer token {key_id}")


def _time(claims: dict[str, Any], name: str) -> int:
    found = claims[name]
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= _LATEST_S:
        raise ValueError(name)
    return found
