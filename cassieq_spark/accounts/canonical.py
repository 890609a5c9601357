"""Put a request into the canonical form that Signature Version 4 signs. Pure functions.

The form is the one that AWS documents for services other than S3: the path is encoded once more
than it was sent. No library verifies signatures on the server's side; botocore's own signer is what
the tests compare with.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

ALGORITHM: Final = "AWS4-HMAC-SHA256"
_UNRESERVED: Final = "-_.~"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """A request as it came over the wire.

    Attributes:
        raw_path: Percent-encoded as sent, without the query.
        query_string: As sent, without ``?``.
        headers: Names and values in the order they came; a header may come several times. Bytes
            are decoded as Latin-1, as ASGI servers hand them on.
        body_sha256: The hash of the body, in lower-case hex; None: the body has not come yet.
    """

    method: str
    raw_path: str
    query_string: str
    headers: tuple[tuple[str, str], ...]
    body_sha256: str | None

    _values: dict[str, list[str]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Once: a request may sign many headers, and have many more.
        found: dict[str, list[str]] = {}
        for key, value in self.headers:
            found.setdefault(key.lower(), []).append(value)
        object.__setattr__(self, "_values", found)

    def values_of(self, name: str) -> list[str]:
        """All values of one header."""
        return self._values.get(name, [])


def canonical_path(raw_path: str) -> str:
    """The path without ``.``, ``..`` and empty segments, encoded once more."""
    kept: list[str] = []
    for segment in raw_path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    path = "/" + "/".join(kept) + ("/" if kept and raw_path.endswith("/") else "")
    return quote(path.encode("latin-1", "replace"), safe="/~")


def canonical_queries(query_string: str) -> tuple[str, str]:
    """The two forms of a query: as AWS documents it, and in the words that were sent.

    botocore signs the query of a URL as it is written. Both forms name the same parameters, so
    that either is accepted changes nothing for anybody who has no key.
    """
    pairs = [
        one.partition("=")[::2]
        for one in query_string.split("&")
        if one and not one.startswith("X-Amz-Signature=")
    ]
    return _joined((_encoded(name), _encoded(value)) for name, value in pairs), _joined(pairs)


def canonical_headers(request: SignedRequest, names: Iterable[str]) -> str:
    """The signed headers, one a line, with single spaces inside."""
    return "".join(
        f"{name}:{','.join(' '.join(value.split()) for value in request.values_of(name))}\n"
        for name in names
    )


def string_to_sign(canonical_request: str, *, when: str, scope: str) -> str:
    """The text that the signature is made of."""
    hashed = hashlib.sha256(canonical_request.encode("latin-1", "replace")).hexdigest()
    return f"{ALGORITHM}\n{when}\n{scope}\n{hashed}"


def signature(secret: str, scope: str, text: str) -> str:
    """The signature of a text by a secret, in hex.

    Args:
        scope: ``date/region/service/aws4_request``; each part goes into the signing key.
    """
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _joined(pairs: Iterable[tuple[str, ...]]) -> str:
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def _encoded(text: str) -> str:
    return quote(unquote_to_bytes(text.replace("+", " ")), safe=_UNRESERVED)
