"""Signature Version 4 as botocore and AWS have it; nothing that was altered is accepted."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.accounts import signature
from cassieq_spark.accounts.signature import SKEW_S, SignedRequest, claim_of
from cassieq_spark.errors import AuthenticationFailed, CassieqError, RequestTimeSkewed
from cassieq_spark.options.values import Secret

KEY = "CQAKABCDEFGHIJKLMNOP"
SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEYab"  # noqa: S105 - made up
OTHER = Secret("another")
HOST = "127.0.0.1:8080"


def signed(
    method: str = "POST",
    path: str = "/",
    query: str = "",
    body: bytes = b"{}",
    *,
    headers: dict[str, str] | None = None,
    presigned_for_s: int | None = None,
    service: str = "sqs",
    region: str = "eu-central-1",
    session: str | None = None,
) -> SignedRequest:
    """As botocore signs it and sends it."""
    url = f"http://{HOST}{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method=method, url=url, data=body, headers=headers or {})
    key = Credentials(KEY, SECRET, session)
    if presigned_for_s is None:
        SigV4Auth(key, service, region).add_auth(request)
    else:
        SigV4QueryAuth(key, service, region, expires=presigned_for_s).add_auth(request)
    parts = urlsplit(request.url)
    return SignedRequest(
        method=method,
        raw_path=parts.path,
        query_string=parts.query,
        headers=(
            ("host", HOST),
            *((name.lower(), value) for name, value in request.headers.items()),
        ),
        body_sha256=hashlib.sha256(body).hexdigest(),
    )


def now_us() -> int:
    return round(datetime.now(UTC).timestamp() * 1e6)  # noqa: TID251 - botocore asks the machine


def is_accepted(request: SignedRequest, *, at_us: int | None = None) -> bool:
    claim = claim_of(request, now_us=now_us() if at_us is None else at_us)
    assert KEY == claim.key_id
    assert not claim.is_proved_by(OTHER)
    return claim.is_proved_by(Secret(SECRET))


def with_header(request: SignedRequest, name: str, value: str | None) -> SignedRequest:
    kept = tuple(one for one in request.headers if one[0] != name)
    return replace(request, headers=kept if value is None else (*kept, (name, value)))


segments = st.text(st.sampled_from("abzAZ09-_.~ %+&=é/"), max_size=8)
wire_paths = segments.map(lambda text: "/" + signature.quote(text, safe="/+&="))
query_words = st.text(st.sampled_from("abZ0-_.~ +&=é%/"), min_size=1, max_size=6)
wire_queries = st.lists(st.tuples(query_words, query_words), max_size=4).map(
    lambda pairs: "&".join(
        f"{signature.quote(name, safe='-_.~')}={signature.quote(value, safe='-_.~')}"
        for name, value in pairs
    )
)
header_values = st.text(st.sampled_from("ab  ,;=\t1"), min_size=1, max_size=12).map(str.strip)
more_headers = st.dictionaries(
    st.sampled_from(["x-amz-target", "content-type", "x-amzn-query-mode", "user-agent", "zeta"]),
    header_values.filter(bool),
)
methods = st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH"])


@given(methods, wire_paths, wire_queries, st.binary(max_size=50), more_headers)
def test_what_botocore_signs_is_accepted(
    method: str, path: str, query: str, body: bytes, headers: dict[str, str]
) -> None:
    assert is_accepted(signed(method, path, query, body, headers=headers))


@given(methods, wire_paths, wire_queries)
def test_what_botocore_presigns_is_accepted(method: str, path: str, query: str) -> None:
    assert is_accepted(signed(method, path, query, b"", presigned_for_s=60))


@pytest.mark.parametrize("path", ["/a/../b", "/a//b", "/./a/", "/a%2Fb", "/a%252Fb", "//", "/a+b"])
@pytest.mark.parametrize("query", ["b=2&a=1", "a=2&a=1", "a", "a=&b", "x=%2f", "x=a+b", "x=a%20b"])
def test_odd_paths_and_queries_are_signed_as_botocore_has_them(path: str, query: str) -> None:
    assert is_accepted(signed("GET", path, query))


@pytest.mark.parametrize("service", ["sqs", "cassieq"])
@pytest.mark.parametrize("region", ["us-east-1", "elsewhere", "x"])
def test_any_region_and_both_services_are_accepted(service: str, region: str) -> None:
    assert is_accepted(signed(service=service, region=region))


ALTERED = {
    "method": lambda one: replace(one, method="PUT"),
    "path": lambda one: replace(one, raw_path=one.raw_path + "x"),
    "query": lambda one: replace(one, query_string=one.query_string + "&z=1"),
    "query value": lambda one: replace(one, query_string=one.query_string.replace("a=1", "a=2")),
    "body": lambda one: replace(one, body_sha256="0" * 64),
    "signed header": lambda one: with_header(one, "x-amz-target", "AmazonSQS.DeleteQueue"),
    "host": lambda one: with_header(one, "host", "elsewhere"),
}


@pytest.mark.parametrize("what", ALTERED)
@pytest.mark.parametrize("presigned_for_s", [None, 60])
def test_a_change_of_any_signed_part_is_refused(what: str, presigned_for_s: int | None) -> None:
    if what == "signed header" and presigned_for_s:
        pytest.skip("SigV4QueryAuth signs the host header only")
    request = signed(
        "POST",
        "/q",
        "a=1",
        b"" if presigned_for_s else b"{}",
        headers={"X-Amz-Target": "AmazonSQS.SendMessage"} if not presigned_for_s else {},
        presigned_for_s=presigned_for_s,
    )
    assert is_accepted(request)
    assert not is_accepted(ALTERED[what](request))


@pytest.mark.parametrize("off_s", [-SKEW_S - 3, SKEW_S + 3])
def test_a_signature_of_another_time_is_refused(off_s: float) -> None:
    request = signed()
    assert is_accepted(request, at_us=now_us() + round((off_s - off_s / 50) * 1e6))
    with pytest.raises(RequestTimeSkewed, match="was signed at") as refused:
        claim_of(request, now_us=now_us() + round(off_s * 1e6))
    assert "skewed" == refused.value.reason


def test_a_presigned_url_is_valid_until_it_expires_and_not_before_its_time() -> None:
    request = signed("GET", body=b"", presigned_for_s=1_000)
    assert is_accepted(request, at_us=now_us() + 990_000_000)
    with pytest.raises(AuthenticationFailed, match="for 1000 s") as expired:
        claim_of(request, now_us=now_us() + 1_001_000_000)
    assert "expired" == expired.value.reason
    with pytest.raises(RequestTimeSkewed):
        claim_of(request, now_us=now_us() - (SKEW_S + 5) * 1_000_000)


def _authorization(request: SignedRequest, old: str, new: str) -> SignedRequest:
    (value,) = request.values_of("authorization")
    assert old in value
    return with_header(request, "authorization", value.replace(old, new))


MALFORMED: dict[str, Any] = {
    "no authorization": lambda one: with_header(one, "authorization", None),
    "another scheme": lambda one: with_header(one, "authorization", "Basic YTpi"),
    "two authorizations": lambda one: replace(
        one, headers=(*one.headers, ("authorization", one.values_of("authorization")[0]))
    ),
    "very long": lambda one: with_header(one, "authorization", "AWS4-HMAC-SHA256 " + "x" * 5_000),
    "two dates": lambda one: replace(
        one, headers=(*one.headers, ("x-amz-date", one.values_of("x-amz-date")[0]))
    ),
    "no date": lambda one: with_header(one, "x-amz-date", None),
    "no such time": lambda one: with_header(one, "x-amz-date", "20261399T000000Z"),
    "two hosts": lambda one: replace(one, headers=(*one.headers, ("host", "b"))),
    "host not signed": lambda one: _authorization(one, "host;", ""),
    "header of the message not signed": lambda one: with_header(one, "cassieq-header-to", "eve"),
    "target not signed": lambda one: with_header(one, "x-amz-target", "AmazonSQS.DeleteQueue"),
    "headers out of order": lambda one: _authorization(one, "host;x-amz-date", "x-amz-date;host"),
    "header twice": lambda one: _authorization(one, "host;", "host;host;"),
    "header in capitals": lambda one: _authorization(one, "host;", "Host;"),
    "header absent": lambda one: _authorization(one, "host;", "host;nothing;"),
    "another service": lambda one: _authorization(one, "/sqs/", "/s3/"),
    "another date": lambda one: _authorization(
        one, one.values_of("x-amz-date")[0][:8] + "/", "20200101/"
    ),
    "not aws4_request": lambda one: _authorization(one, "aws4_request", "aws5_request"),
    "signature in capitals": lambda one: _authorization(one, "Signature=", "Signature=A"),
    "session token": lambda one: with_header(one, "x-amz-security-token", "t"),
    "streaming body": lambda one: with_header(
        one, "x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    ),
    "signature in the query, too": lambda one: replace(one, query_string="X-Amz-Signature=a"),
    "a parameter in another spelling": lambda one: replace(
        one, query_string="X%2DAmz-Security-Token=a"
    ),
    "half a presigned query": lambda one: replace(
        with_header(one, "authorization", None), query_string="X-Amz-Algorithm=AWS4-HMAC-SHA256"
    ),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_what_is_not_signed_properly_is_refused_before_any_key_is_looked_for(what: str) -> None:
    with pytest.raises(AuthenticationFailed) as refused:
        claim_of(MALFORMED[what](signed()), now_us=now_us())
    assert refused.value.reason in {"missing", "malformed", "unsupported"}
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("expires", ["0", "604801", "-1", "1.5", "", "99999999"])
def test_a_presigned_url_that_lives_too_long_or_not_at_all_is_refused(expires: str) -> None:
    request = signed("GET", body=b"", presigned_for_s=777)
    query = request.query_string.replace("X-Amz-Expires=777", f"X-Amz-Expires={expires}")
    with pytest.raises(AuthenticationFailed, match="X-Amz-Expires"):
        claim_of(replace(request, query_string=query), now_us=now_us())


def test_a_presigned_parameter_that_is_there_twice_is_refused() -> None:
    request = signed("GET", body=b"", presigned_for_s=60)
    twice = replace(request, query_string=request.query_string + "&X-Amz-Expires=604800")
    with pytest.raises(AuthenticationFailed, match="twice"):
        claim_of(twice, now_us=now_us())


def test_botocores_session_tokens_are_refused_by_name() -> None:
    for presigned_for_s in (None, 60):
        with pytest.raises(AuthenticationFailed, match="session tokens") as refused:
            claim_of(signed(session="t", presigned_for_s=presigned_for_s), now_us=now_us())
        assert "unsupported" == refused.value.reason


def test_an_unsigned_payload_is_accepted_if_that_itself_is_signed() -> None:
    request = signed(headers={"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"})
    assert is_accepted(replace(request, body_sha256="0" * 64))
    assert not is_accepted(with_header(request, "x-amz-content-sha256", request.body_sha256))
    with pytest.raises(AuthenticationFailed, match="does not cover the header"):
        claim_of(with_header(signed(), "x-amz-content-sha256", "UNSIGNED-PAYLOAD"), now_us=now_us())


@pytest.mark.parametrize("presigned_for_s", [None, 60])
def test_an_unsigned_payload_is_refused_where_the_body_says_what_is_done(
    presigned_for_s: int | None,
) -> None:
    name = "X-Amz-Content-SHA256"
    if presigned_for_s is None:
        request = signed(headers={name: "UNSIGNED-PAYLOAD"})
    else:
        request = signed(
            "GET", "/", "X-Amz-Content-Sha256=UNSIGNED-PAYLOAD", presigned_for_s=presigned_for_s
        )
    claim_of(request, now_us=now_us())
    with pytest.raises(AuthenticationFailed, match="its body is not signed"):
        claim_of(request, now_us=now_us(), allows_unsigned=False)


def test_a_header_that_comes_twice_is_signed_in_its_order() -> None:
    headers = (("zeta", "b  c"), ("zeta", "a"))
    request = replace(signed(), headers=headers)
    assert "zeta:b c,a\n" == signature.canonical_headers(request, ["zeta"])


latin = st.text(st.characters(max_codepoint=255), max_size=40)
odd_values = latin | st.sampled_from(
    ["AWS4-HMAC-SHA256 Credential=a/20260101/r/sqs/aws4_request, SignedHeaders=host, Signature=b"]
)
odd_names = st.sampled_from(
    ["authorization", "host", "x-amz-date", "x-amz-content-sha256", "x-amz-target"]
)


@given(
    latin,
    latin,
    latin | st.just("X-Amz-Signature=a&X-Amz-Algorithm=AWS4-HMAC-SHA256"),
    st.lists(st.tuples(odd_names | latin, odd_values), max_size=6),
    latin,
)
def test_no_input_raises_anything_but_a_named_error(
    method: str, path: str, query: str, headers: list[tuple[str, str]], body: str
) -> None:
    request = SignedRequest(
        method=method,
        raw_path=path,
        query_string=query,
        headers=tuple(headers),
        body_sha256=body,
    )
    try:
        claim = claim_of(request, now_us=now_us())
    except CassieqError as refused:
        assert isinstance(refused, AuthenticationFailed)  # noqa: PT017 - the only one allowed
    else:
        assert not claim.is_proved_by(Secret(SECRET))


@given(st.sampled_from(range(6)), latin)
def test_no_presigned_parameter_raises_anything_but_a_named_error(at: int, value: str) -> None:
    request = signed("GET", body=b"", presigned_for_s=60)
    pairs = request.query_string.split("&")
    pairs[at % len(pairs)] = pairs[at % len(pairs)].partition("=")[0] + "=" + value
    altered = replace(request, query_string="&".join(pairs))
    try:
        claim = claim_of(altered, now_us=now_us())
    except CassieqError as refused:
        assert isinstance(refused, AuthenticationFailed)  # noqa: PT017 - the only one allowed
    else:
        is_same = altered.query_string == request.query_string
        assert is_same or not claim.is_proved_by(Secret(SECRET))
