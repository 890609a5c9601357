"""Read what a request says about its signature, and refuse what is malformed, early or late.

The canonical form of a request is the one that AWS documents for services other than S3: the path
is encoded once more than it was sent. No library verifies signatures on the server's side;
botocore's own signer is what the tests compare with.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, NoReturn
from urllib.parse import quote, unquote, unquote_to_bytes

from cassieq_spark.errors import AuthenticationFailed, RequestTimeSkewed
from cassieq_spark.options.values import Secret

ALGORITHM: Final = "AWS4-HMAC-SHA256"
_UNRESERVED: Final = "-_.~"

SKEW_S: Final = 900
LONGEST_EXPIRES_S: Final = 604_800
SERVICES: Final = frozenset({"sqs", "cassieq"})
"""``sqs`` is what SDKs sign for. The canonical form of some other services differs."""

UNSIGNED: Final = "UNSIGNED-PAYLOAD"
NEEDED: Final = ("x-amz-", "cassieq-header-")
"""Headers that begin with these say what is done and what is stored, so they must be signed."""

_MOST_HEADERS: Final = 100
_LONGEST_AUTHORIZATION: Final = 4_096

_AUTHORIZATION: Final = re.compile(
    rf"{ALGORITHM} +Credential=(?P<credential>[^ ,=]+), *SignedHeaders=(?P<headers>[^ ,=]+), *"
    r"Signature=(?P<signature>[^ ,=]+)"
)
_CREDENTIAL: Final = re.compile(
    r"(?P<key_id>[A-Za-z0-9]{1,128})/(?P<scope>(?P<day>[0-9]{8})/[A-Za-z0-9-]{1,64}/"
    r"(?P<service>[a-z0-9-]{1,64})/aws4_request)"
)
_TIME: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_EXPIRES: Final = re.compile(r"[0-9]{1,7}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_HEADER: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The claim of a signed request: who signed which text, and with what result.

    Attributes:
        requests: The two canonical forms of the request, without the hash of its body.
        payload: What was signed for the body; empty: its hash, which is not known yet.
    """

    key_id: str
    scope: str
    when: str
    requests: tuple[str, str]
    payload: str
    signature: str

    def is_proved_by(self, secret: Secret) -> bool:
        """Whether that secret made the signature; the same work whatever the answer."""
        results = [
            hmac.compare_digest(
                signature(
                    secret.reveal(),
                    self.scope,
                    string_to_sign(f"{one}\n{self.payload}", when=self.when, scope=self.scope),
                ),
                self.signature,
            )
            for one in self.requests
        ]
        return any(results)

    def over(self, body_sha256: str) -> Claim:
        """The claim, once the body has come.

        Raises:
            AuthenticationFailed: It is not the body that was signed.
        """
        if self.payload not in ("", UNSIGNED, body_sha256):
            _malformed("its body is not the one that X-Amz-Content-Sha256 names")
        return self if self.payload else replace(self, payload=body_sha256)


def claim_of(request: SignedRequest, *, now_us: int, allows_unsigned: bool = True) -> Claim:
    """Read the claim of a request, from its header or from its query.

    Args:
        allows_unsigned: Whether the signer may leave the body open (``UNSIGNED-PAYLOAD``), as for
            an upload by somebody who gets a presigned URL. Not where the body says what is done.

    Raises:
        AuthenticationFailed: There is none, or it cannot be right; nobody was asked.
        RequestTimeSkewed: It was signed more than 15 minutes from now.
    """
    query = _amz_query(request)
    if not allows_unsigned and UNSIGNED in (
        *request.values_of("x-amz-content-sha256"),
        query.get("X-Amz-Content-Sha256"),
    ):
        _malformed(f"its body is not signed ({UNSIGNED})")
    authorizations = request.values_of("authorization")
    if request.values_of("x-amz-security-token") or "X-Amz-Security-Token" in query:
        raise AuthenticationFailed(
            "session tokens (X-Amz-Security-Token) are not supported. Use a key of an account",
            reason="unsupported",
        )
    if authorizations and "X-Amz-Signature" in query:
        _malformed("it has both an Authorization header and X-Amz-Signature in its query")
    if "X-Amz-Signature" in query or "X-Amz-Algorithm" in query:
        return _of_query(request, query, now_us)
    if not authorizations:
        raise AuthenticationFailed(
            "the request is not signed. Sign it with a key of an account (AWS Signature "
            "Version 4), or use a token",
            reason="missing",
        )
    return _of_header(request, authorizations, now_us)


def _of_header(request: SignedRequest, authorizations: list[str], now_us: int) -> Claim:
    if len(authorizations) != 1 or len(authorizations[0]) > _LONGEST_AUTHORIZATION:
        _malformed("it has several Authorization headers, or a very long one")
    parts = _AUTHORIZATION.fullmatch(authorizations[0].strip())
    if parts is None:
        _malformed(
            f"its Authorization header is not '{ALGORITHM} Credential=..., SignedHeaders=..., "
            "Signature=...'"
        )
    when = _one(request, "x-amz-date")
    if abs(now_us / 1e6 - _seconds(when)) > SKEW_S:
        raise RequestTimeSkewed(
            f"the request was signed at {when}, but it is {_show(now_us)} now, and at most "
            f"{SKEW_S} s may lie between. Set the clock of the machine that signs"
        )
    given = parts["credential"], parts["headers"], when, parts["signature"]
    return _claim(request, *given, payload=_payload(request, None))


def _of_query(request: SignedRequest, query: dict[str, str], now_us: int) -> Claim:
    needed = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")
    if missing := [name for name in needed if f"X-Amz-{name}" not in query]:
        _malformed(f"its query lacks X-Amz-{missing[0]}")
    algorithm, credential, when, expires, names, signed = (query[f"X-Amz-{one}"] for one in needed)
    if algorithm != ALGORITHM:
        _malformed(f"its X-Amz-Algorithm is not {ALGORITHM}")
    if not _EXPIRES.fullmatch(expires) or not 1 <= int(expires) <= LONGEST_EXPIRES_S:
        _malformed(f"its X-Amz-Expires is not a number of seconds from 1 to {LONGEST_EXPIRES_S}")
    signed_s, now_s = _seconds(when), now_us / 1e6
    if signed_s - now_s > SKEW_S:
        raise RequestTimeSkewed(
            f"the URL was signed at {when}, but it is {_show(now_us)} now. Set the clock of the "
            "machine that signs"
        )
    if now_s >= signed_s + int(expires):
        raise AuthenticationFailed(
            f"the URL was signed at {when} for {expires} s, and it is {_show(now_us)} now. Sign "
            "another one",
            reason="expired",
        )
    payload = _payload(request, query.get("X-Amz-Content-Sha256"))
    return _claim(request, credential, names, when, signed, payload=payload)


def _claim(
    request: SignedRequest, credential: str, signed: str, when: str, found: str, *, payload: str
) -> Claim:
    """The claim of what a request says about its signature.

    Args:
        signed: The names of the signed headers.
        found: The signature.
    """
    parts = _CREDENTIAL.fullmatch(credential)
    if parts is None:
        _malformed("its credential is not 'key id/date/region/service/aws4_request'")
    if parts["service"] not in SERVICES:
        _malformed("it is signed for another service. Sign it for 'sqs' or 'cassieq'")
    if parts["day"] != when[:8]:
        _malformed("the date of its credential is not the date of X-Amz-Date")
    if not _HASH.fullmatch(found):
        _malformed("its signature is not 64 digits in lower-case hex")
    names = _signed_names(request, signed)
    headers = canonical_headers(request, names)
    path = canonical_path(request.raw_path)
    documented, as_sent = (
        f"{request.method}\n{path}\n{query}\n{headers}\n{';'.join(names)}"
        for query in canonical_queries(request.query_string)
    )
    claim = Claim(
        key_id=parts["key_id"],
        scope=parts["scope"],
        when=when,
        requests=(documented, as_sent),
        payload=payload,
        signature=found,
    )
    return claim if request.body_sha256 is None else claim.over(request.body_sha256)


def _signed_names(request: SignedRequest, given: str) -> list[str]:
    """The signed headers: in order, each present, and among them all that change the meaning."""
    names = given.split(";")
    if (
        len(names) > _MOST_HEADERS
        or names != sorted(set(names))
        or not all(_HEADER.fullmatch(one) for one in names)
    ):
        _malformed("its signed headers are not lower-case names in order, each once")
    present = {name.lower() for name, _ in request.headers}
    if absent := [name for name in names if name not in present]:
        _malformed(f"it lacks the header {absent[0]!r}, which its signature names")
    # Whoever could add one to a signed request would choose what is done, or what is stored.
    needed = {"host", *(name for name in present if name.startswith(NEEDED))}
    if unsigned := sorted(needed - set(names)):
        _malformed(f"its signature does not cover the header {unsigned[0]!r}")
    if len(request.values_of("host")) != 1:
        _malformed("it has several Host headers")
    return names


def _payload(request: SignedRequest, in_query: str | None) -> str:
    """Return the value that the request signs for its body; empty if it names none."""
    given = request.values_of("x-amz-content-sha256") or ([in_query] if in_query else [])
    if not given:
        return ""
    if len(given) != 1 or not (given[0] == UNSIGNED or _HASH.fullmatch(given[0])):
        _malformed(f"its X-Amz-Content-Sha256 is neither a SHA-256 in hex nor {UNSIGNED}")
    return given[0]


def _amz_query(request: SignedRequest) -> dict[str, str]:
    """The parameters of a presigned URL; each may be there once."""
    found: dict[str, str] = {}
    for pair in request.query_string.split("&"):
        raw, _, value = pair.partition("=")
        name = unquote(raw)
        if name.lower().startswith("x-amz-"):
            if name in found:
                _malformed(f"its query has {name[:80]!r} twice")
            if raw != name:
                _malformed(f"its query has {name[:80]!r} in another spelling")
            found[name] = unquote(value)
    return found


def _one(request: SignedRequest, name: str) -> str:
    values = request.values_of(name)
    if len(values) != 1:
        _malformed(f"it needs the header {name!r}, once")
    return values[0].strip()


def _seconds(when: str) -> float:
    wrong = "its X-Amz-Date is not a time such as 20260131T235959Z"
    if not _TIME.fullmatch(when):
        _malformed(wrong)
    try:
        return datetime.strptime(when, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        _malformed(wrong)


def _show(now_us: int) -> str:
    return datetime.fromtimestamp(now_us // 1_000_000, UTC).strftime("%Y%m%dT%H%M%SZ")


def _malformed(why: str) -> NoReturn:
    raise AuthenticationFailed(
        f"the request is not signed as AWS Signature Version 4 has it: {why}. Sign it with an SDK",
        reason="malformed",
    )
