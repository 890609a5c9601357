"""Rights, the master key and tokens: what is allowed, what is refused, and what is never shown."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.accounts import authenticator, tokens
from cassieq_spark.accounts.authenticator import KEPT_S, Authenticator, LiveKey
from cassieq_spark.accounts.keys import KEY_ID, MasterKey, derive, new_key_id, new_secret, write_new
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import (
    AccessDenied,
    AuthenticationFailed,
    CassieqError,
    MasterKeyInvalid,
    OptionInvalid,
)
from cassieq_spark.model.rights import (
    EVERYTHING,
    Grant,
    Principal,
    Right,
    grants_of,
    parse_grant,
)
from cassieq_spark.options.values import Secret
from cassieq_spark.testing import ManualClock

KEY = "CQAKABCDEFGHIJKLMNOP"
SECRET = Secret("s" * 40)
NOW_US = 1_800_000_000_000_000
READ_ORDERS = parse_grant(["read", "ack"], ["orders", "in-*"])


def principal(*grants: Grant, limits: tuple[Grant, ...] | None = None) -> Principal:
    return Principal(account="acme", key_id=KEY, grants=grants, limits=limits)


# --- rights


def test_a_caller_names_queues_without_the_account_and_sees_only_its_own() -> None:
    for account, full in (("acme", "acme/orders"), ("", "orders")):
        who = Principal(account=account, key_id=KEY, grants=EVERYTHING)
        assert full == who.full_name("orders")
        assert "orders" == who.own_name(full)
        assert who.may(Right.READ, full)
        for other in ("other/orders", "/orders", "acme2/orders", f"{full}/x/../..", "other/"):
            is_own = other.startswith("acme/") and account == "acme"
            assert is_own == (who.own_name(other) is not None)
            assert is_own == who.may(Right.READ, other)
        with pytest.raises(OptionInvalid, match="without its account"):
            who.full_name("other/orders")


def test_a_right_somewhere_and_the_account_itself_need_the_key_and_the_token() -> None:
    info = Grant(rights=frozenset({Right.INFO}), patterns=("in-*",))
    everything = principal(*EVERYTHING)
    limited = principal(*EVERYTHING, limits=(info,))
    everything.require_somewhere(Right.READ)
    everything.require_admin()
    limited.require_somewhere(Right.INFO)
    with pytest.raises(AccessDenied, match=r"a token of key .* lacks the right 'read' on every"):
        limited.require_somewhere(Right.READ)
    with pytest.raises(AccessDenied, match="lacks the right 'admin'"):
        limited.require_admin()
    with pytest.raises(AccessDenied, match="lacks the right 'admin'"):
        principal(Grant(rights=frozenset(Right), patterns=("a*",))).require_admin()


@pytest.mark.parametrize(
    ("queue", "is_allowed"),
    [
        *(("acme/orders", True), ("acme/in-1", True), ("acme/in-", True)),
        *(("acme/orders2", False), ("acme/xin-1", False), ("acme/Orders", False)),
        *(("other/orders", False), ("orders", False), ("acme", False), ("/orders", False)),
        *(("acme2/orders", False), ("acme/acme/orders", False), ("", False)),
    ],
)
def test_a_key_may_do_what_it_was_granted_on_its_accounts_queues_alone(
    queue: str, is_allowed: bool
) -> None:
    who = principal(READ_ORDERS)
    assert is_allowed == who.may(Right.READ, queue)
    assert not who.may(Right.PUT, queue)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(AccessDenied) as denied:
        principal(READ_ORDERS).require(Right.DELETE, "acme/orders")
    assert ("delete", "acme/orders") == (denied.value.right, denied.value.queue)
    assert f"key {KEY} of account 'acme' lacks the right 'delete' on queue" in str(denied.value)
    principal(*EVERYTHING).require(Right.DELETE, "acme/orders")


def test_a_token_has_what_both_it_and_its_key_have() -> None:
    who = principal(READ_ORDERS, limits=EVERYTHING)
    assert who.may(Right.READ, "acme/orders")
    assert not who.may(Right.PUT, "acme/orders")
    narrow = principal(*EVERYTHING, limits=(READ_ORDERS,))
    assert narrow.may(Right.ACK, "acme/in-9")
    assert not narrow.may(Right.ACK, "acme/out-9")
    assert not narrow.may_administer()
    assert not principal(*EVERYTHING, limits=()).may(Right.READ, "acme/orders")


@pytest.mark.parametrize(
    ("rights", "queues"),
    [
        *((["reed"], ["*"]), (["read"], ["a/b"]), (["read"], ["[a]"]), (["read"], [""])),
        *(([], ["*"]), (["read"], []), ("read", ["*"]), (["read"], "*"), (["read"], [5])),
        *((["read"] * 33, ["*"]), (["read"], ["q" * 201]), (["read"], ["*"] * 33), (None, None)),
    ],
)
def test_what_is_no_grant_is_refused(rights: Any, queues: Any) -> None:
    with pytest.raises(OptionInvalid):
        parse_grant(rights, queues)


def test_purge_is_a_right_of_its_own_that_delete_has_in_it() -> None:
    may_purge = principal(parse_grant(["purge"], ["orders"]))
    may_delete = principal(parse_grant(["delete"], ["orders"]))
    may_read = principal(READ_ORDERS)

    allowed = [
        (one.may(Right.PURGE, "acme/orders"), one.may(Right.DELETE, "acme/orders"))
        for one in (may_purge, may_delete, may_read)
    ]

    assert [(True, False), (True, True), (False, False)] == allowed
    assert may_delete.may_somewhere(Right.PURGE)


def test_a_key_with_all_rights_is_stored_as_before_there_was_a_right_to_purge() -> None:
    """Servers of the former release read it: a right that they do not know would refuse it."""
    before = ["ack", "admin", "create", "delete", "info", "put", "read", "redrive", "update"]
    asked = parse_grant([right.value for right in Right], ["*"])

    assert [before, before] == [one.to_plain()["rights"] for one in (asked, *EVERYTHING)]
    assert principal(*grants_of([{"rights": before, "queues": ["*"]}])).may(Right.PURGE, "acme/x")


def test_a_pattern_of_many_stars_is_decided_at_once() -> None:
    grant = parse_grant(["read"], ["*a" * 99 + "b"])
    assert not grant.allows(Right.READ, "a" * 200)


grants = st.lists(
    st.builds(
        parse_grant,
        st.lists(st.sampled_from([right.value for right in Right]), min_size=1, max_size=10),
        st.lists(st.from_regex(r"[A-Za-z0-9._*?-]{1,20}", fullmatch=True), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=4,
).map(tuple)


@given(grants)
def test_grants_come_back_as_they_were_stored(given_: tuple[Grant, ...]) -> None:
    assert given_ == grants_of(json.loads(json.dumps([one.to_plain() for one in given_])))


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["rights", "queues", "x"]), inner, max_size=3)
    ),
)


@given(plain)
def test_other_json_is_no_grants(found: Any) -> None:
    with pytest.raises(OptionInvalid):
        grants_of(found)


# --- keys and the master key


def test_ids_and_secrets_have_the_form_that_sdks_take() -> None:
    ids = {new_key_id() for _ in range(100)}
    assert 100 == len(ids)
    assert all(KEY_ID.fullmatch(one) and len(one) == 20 for one in ids)
    secret = new_secret().reveal()
    assert 40 == len(secret)
    assert secret.isalnum()


@pytest.fixture
def master_file(tmp_path: Path) -> Path:
    write_new(tmp_path / "master.key")
    return tmp_path / "master.key"


def test_a_new_file_is_its_owners_alone_and_an_old_one_is_never_replaced(master_file: Path) -> None:
    assert 0o600 == master_file.stat().st_mode & 0o777
    before = master_file.read_bytes()
    assert 32 == len(base64.b64decode(before))
    with pytest.raises(MasterKeyInvalid, match="not replaced"):
        write_new(master_file)
    assert before == master_file.read_bytes()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o601])
def test_a_file_that_others_can_use_is_refused_as_ssh_does(master_file: Path, mode: int) -> None:
    master_file.chmod(mode)
    with pytest.raises(MasterKeyInvalid, match=f"mode {mode:04o}.*chmod 600"):
        MasterKey.load(master_file)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"short", base64.b64encode(b"x" * 31), b"\xff" * 44, b"A" * 5_000]
)
def test_a_file_without_a_key_is_refused_and_not_quoted(master_file: Path, content: bytes) -> None:
    master_file.write_bytes(content)
    with pytest.raises(MasterKeyInvalid, match="does not hold 32 random bytes") as refused:
        MasterKey.load(master_file)
    assert content.strip() == b"" or content.decode("latin-1") not in str(refused.value)


@pytest.mark.parametrize("path", ["", "/", "/no/such/file", "a\0b"])
def test_a_path_that_cannot_be_read_is_named(path: str) -> None:
    with pytest.raises(MasterKeyInvalid, match="cannot be read"):
        MasterKey.load(path)


def test_a_secret_is_bound_to_its_account_and_key_and_to_its_master_key() -> None:
    master, account = MasterKey(b"m" * 32), new_uuid()
    sealed = master.seal(SECRET, account_id=account, key_id=KEY)
    assert SECRET == master.unseal(sealed, account_id=account, key_id=KEY)
    assert SECRET.reveal().encode() not in sealed
    assert sealed != master.seal(SECRET, account_id=account, key_id=KEY)
    for wrong in (
        {"account_id": new_uuid(), "key_id": KEY},
        {"account_id": account, "key_id": "CQAKAAAAAAAAAAAAAAAA"},
    ):
        with pytest.raises(MasterKeyInvalid, match="altered, or moved"):
            master.unseal(sealed, **wrong)  # type: ignore[arg-type]  # both kinds in one dict
    with pytest.raises(MasterKeyInvalid, match="another master key"):
        MasterKey(b"n" * 32).unseal(sealed, account_id=account, key_id=KEY)
    # A new first line encrypts; the old line still decrypts.
    both = MasterKey(b"n" * 32, b"m" * 32)
    assert SECRET == both.unseal(sealed, account_id=account, key_id=KEY)
    newer = both.seal(SECRET, account_id=account, key_id=KEY)
    assert SECRET == MasterKey(b"n" * 32).unseal(newer, account_id=account, key_id=KEY)


@given(st.binary(max_size=120), st.integers(0, 88))
def test_altered_secrets_are_refused_by_name(noise: bytes, at: int) -> None:
    master, account = MasterKey(b"m" * 32), new_uuid()
    sealed = bytearray(master.seal(SECRET, account_id=account, key_id=KEY))
    sealed[at % len(sealed)] ^= 1
    for wrong in (bytes(sealed), noise, bytes(sealed[:at])):
        with pytest.raises(MasterKeyInvalid):
            master.unseal(wrong, account_id=account, key_id=KEY)


def test_a_master_key_is_not_shown_and_does_not_pickle() -> None:
    assert "MasterKey(***)" == repr(MasterKey(b"m" * 32))
    with pytest.raises(TypeError, match="does not leave its process"):
        pickle.dumps(MasterKey(b"m" * 32))


# --- tokens


def token(
    limits: tuple[Grant, ...] = (READ_ORDERS,), *, lasts_s: float = 60, key: str = KEY
) -> str:
    return tokens.sign(key, SECRET, limits, begins_us=NOW_US, ends_us=NOW_US + round(lasts_s * 1e6))


def own(claims: dict[str, Any], header: dict[str, Any] | None = None, **how: Any) -> str:
    """Signed with the right key, but with other claims."""
    key = derive(SECRET.reveal().encode(), f"cassieq bearer token {KEY}")
    return jwt.encode(claims, key, headers={"kid": KEY, **(header or {})}, **how)


CLAIMS = {
    "aud": "cassieq",
    "nbf": NOW_US // 10**6,
    "exp": NOW_US // 10**6 + 60,
    "grants": [READ_ORDERS.to_plain()],
}


def test_a_token_says_what_it_was_signed_for() -> None:
    read = tokens.read(token())
    assert KEY == read.key_id
    assert (READ_ORDERS,) == read.verify(SECRET, now_us=NOW_US)[0]
    assert (READ_ORDERS,) == tokens.read(own(CLAIMS)).verify(SECRET, now_us=NOW_US)[0]
    assert SECRET.reveal() not in token()


@pytest.mark.parametrize(("at_s", "reason"), [(-1, "skewed"), (60, "expired"), (10**6, "expired")])
def test_a_token_is_valid_in_its_time_only(at_s: int, reason: str) -> None:
    with pytest.raises(AuthenticationFailed) as refused:
        tokens.read(token()).verify(SECRET, now_us=NOW_US + at_s * 1_000_000)
    assert reason == refused.value.reason


@pytest.mark.parametrize(
    "claims",
    [
        *({key: value for key, value in CLAIMS.items() if key != left} for left in CLAIMS),
        *({**CLAIMS, "exp": odd} for odd in (True, "9999999999", 9e9, -1, None, 10**30)),
        *({**CLAIMS, "nbf": odd} for odd in (True, "0", None, 1.5)),
        *({**CLAIMS, "aud": odd} for odd in ("other", ["other"], None, 5)),
        *({**CLAIMS, "grants": odd} for odd in ([], {}, None, "all", [{"rights": ["root"]}])),
    ],
    ids=repr,
)
def test_a_token_with_other_claims_is_refused_even_if_its_key_signed_it(claims: Any) -> None:
    with pytest.raises(AuthenticationFailed) as refused:
        tokens.read(own(claims)).verify(SECRET, now_us=NOW_US)
    assert "refused" == refused.value.reason


def test_a_token_is_refused_by_another_secret() -> None:
    with pytest.raises(AuthenticationFailed, match="not accepted"):
        tokens.read(token()).verify(Secret("t" * 40), now_us=NOW_US)
    # The secret itself is not what tokens are signed with.
    plain_key = jwt.encode(CLAIMS, SECRET.reveal(), headers={"kid": KEY})
    with pytest.raises(AuthenticationFailed, match="not accepted"):
        tokens.read(plain_key).verify(SECRET, now_us=NOW_US)


def test_other_algorithms_end_before_a_key_is_looked_for() -> None:
    nobody = jwt.encode(CLAIMS, None, algorithm="none", headers={"kid": KEY})  # type: ignore[arg-type]  # "none" has no key
    payload = token().partition(".")[2]
    forged, longer = (
        base64.urlsafe_b64encode(json.dumps({"alg": alg, "kid": KEY}).encode()).decode().rstrip("=")
        + f".{payload}"
        for alg in ("RS256", "HS512")
    )
    critical = own(CLAIMS, {"crit": ["b64"], "b64": True})
    for text in (nobody, forged, longer, critical):
        with pytest.raises(AuthenticationFailed) as refused:
            tokens.read(text)
        assert "malformed" == refused.value.reason


@pytest.mark.parametrize(
    "text", ["", ".", "..", "a.b.c", "e30.e30.", "é", "x" * 5_000, "[" * 4_000]
)
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(AuthenticationFailed) as refused:
        tokens.read(text)
    assert "malformed" == refused.value.reason


@given(st.text(max_size=60), st.text(max_size=60), st.data())
def test_no_text_raises_anything_but_a_named_error(head: str, tail: str, data: Any) -> None:
    good = token()
    cut = data.draw(st.integers(0, len(good)))
    for text in (head + "." + tail + ".", good[:cut] + tail, good[:cut], good + tail):
        try:
            found = tokens.read(text).verify(SECRET, now_us=NOW_US)
        except CassieqError as refused:
            assert isinstance(refused, AuthenticationFailed)  # noqa: PT017 - the only one allowed
        else:
            # The last sign of a part has bits that stand for nothing.
            assert (decoded(text), (READ_ORDERS,)) == (decoded(good), found[0])


def decoded(text: str) -> list[bytes]:
    """The parts of a token."""
    return [base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in text.split(".")]


def test_a_token_that_would_be_too_long_is_not_made() -> None:
    with pytest.raises(OptionInvalid, match="limit is 4,096"):
        token(tuple(parse_grant(["read"], [f"{'q' * 190}{n}"]) for n in range(30)))
    with pytest.raises(OptionInvalid, match="is not the id of a key"):
        token(key="AKIA")


# --- what is remembered


def checker_of(
    rows: dict[str, LiveKey], clock: ManualClock, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> Authenticator:
    """What checks keys, and reads them here in place of a store."""

    async def find(key_id: str) -> LiveKey | None:
        asked.append(key_id)
        return rows.get(key_id)

    nothing: Any = None
    checker = Authenticator(nothing, nothing, clock)
    monkeypatch.setattr(checker, "_find", find)
    return checker


def an_id(number: int) -> str:
    return f"CQAK{number:016d}".translate(str.maketrans("0189", "ZYXW"))


def live(account: str) -> LiveKey:
    return LiveKey(account=account, secret=SECRET, grants=EVERYTHING)


def test_a_key_is_read_once_in_ten_seconds_known_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = an_id(2), an_id(3)
    clock, rows, asked = ManualClock(), {a: live("one")}, list[str]()
    checker = checker_of(rows, clock, asked, monkeypatch)

    def get(key_id: str) -> str | None:
        found = asyncio.run(checker.key(key_id))
        return None if found is None else found.account

    assert ["one", "one", None, None] == [get(key_id) for key_id in (a, a, b, b)]
    assert [None, None] == [get("no id"), get(a.lower())]
    assert [a, b] == asked
    del rows[a]
    rows[b] = live("two")
    clock.advance(KEPT_S - 0.1)
    assert ("one", None) == (get(a), get(b))
    clock.advance(0.1)
    assert (None, "two") == (get(a), get(b))


async def test_made_up_ids_push_out_no_known_one_and_fill_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authenticator, "MOST", 10)
    known, asked = [an_id(at) for at in range(2, 12)], list[str]()
    rows = {one: live("acme") for one in known}
    checker = checker_of(rows, ManualClock(), asked, monkeypatch)

    for one in (*known, *(an_id(at) for at in range(2_000, 3_000))):
        await checker.key(one)
    assert (10, 10) == (len(checker._known), len(checker._unknown))
    asked.clear()
    assert ["acme"] * 10 == [
        found.account for one in known if (found := await checker.key(one)) is not None
    ]
    assert [] == asked
