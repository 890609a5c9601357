"""Accounts and their keys on the real node: made, raced for, cut off, refused."""

from __future__ import annotations

import hashlib
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

import cassieq_spark as cassieq
from cassieq_spark.accounts import signature, tokens
from cassieq_spark.accounts.admin import MOST_KEYS, AccountAdmin, NewKey
from cassieq_spark.accounts.authenticator import Authenticator
from cassieq_spark.accounts.keys import MasterKey
from cassieq_spark.accounts.signature import SignedRequest
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import (
    AccountExists,
    AccountInUse,
    AccountNotFound,
    AuthenticationFailed,
    CassieqError,
    KeyNotFound,
    OptionInvalid,
    TooManyKeys,
)
from cassieq_spark.model.rights import Right, parse_grant
from cassieq_spark.options.values import Secret
from cassieq_spark.store import portal
from cassieq_spark.store.store import Store
from cassieq_spark.testing import ManualClock
from tests.fixtures.accounts import shower, signer
from tests.fixtures.faults import Fault, FaultyStore
from tests.fixtures.transports import intercept

if TYPE_CHECKING:
    from tests.fixtures.places import Places

MASTER = MasterKey(b"m" * 32)


class Place:
    """A client of its own, with faults, a clock and an account's name."""

    def __init__(self, client: cassieq.Client) -> None:
        self.client = client
        self.faults = FaultyStore()
        intercept(client._session, self.faults)
        self.clock = ManualClock(client.store.clock)
        client.store.clock = self.clock
        self.name = f"acme-{new_uuid().hex[:12]}"
        self.accounts = AccountAdmin(client.store)

    @property
    def store(self) -> Store:
        return self.client.store

    def authenticator(self, master: MasterKey = MASTER) -> Authenticator:
        return Authenticator(self.store, master, self.clock)


@pytest.fixture
def place(client: cassieq.Client) -> Place:
    return Place(client)


def request_of(key_id: str, secret: Secret, body: bytes = b"{}") -> SignedRequest:
    """As boto3 signs it."""
    request = AWSRequest(method="POST", url="http://h/", data=body, headers={})
    SigV4Auth(Credentials(key_id, secret.reveal()), "sqs", "eu-west-1").add_auth(request)
    return SignedRequest(
        method="POST",
        raw_path="/",
        query_string="",
        headers=(
            ("host", "h"),
            *((name.lower(), value) for name, value in request.headers.items()),
        ),
        body_sha256=hashlib.sha256(body).hexdigest(),
    )


def token_of(key: NewKey, *rights: str) -> str:
    begins = round(datetime.now(UTC).timestamp() * 1e6) - 5_000_000  # noqa: TID251 - real time
    grants = (parse_grant(rights, ["*"]),)
    return tokens.sign(
        key.key_id, key.secret, grants, begins_us=begins, ends_us=begins + 3_600_000_000
    )


def is_refused(authenticator: Authenticator, key: NewKey) -> bool:
    try:
        signer(authenticator, request_of(key.key_id, key.secret))
    except AuthenticationFailed as refused:
        return refused.reason in ("refused", "signature")
    return False


def test_a_new_accounts_key_has_all_rights_in_it_and_none_elsewhere(place: Place) -> None:
    key = portal.run(place.accounts.create(place.name, MASTER))
    authenticator = place.authenticator()
    who = signer(authenticator, request_of(key.key_id, key.secret))
    assert (place.name, key.key_id) == (who.account, who.key_id)
    assert all(who.may(right, who.full_name("orders")) for right in Right)
    assert not who.may(Right.READ, f"{place.name}x/orders")
    by_token = shower(authenticator, token_of(key, "read"))
    assert by_token.may(Right.READ, by_token.full_name("orders"))
    assert not by_token.may(Right.PUT, by_token.full_name("orders"))


def test_an_account_cannot_have_the_name_of_an_address_of_the_gateway(place: Place) -> None:
    for name in ("ui", "v1"):
        with pytest.raises(OptionInvalid, match="address of the gateway"):
            portal.run(place.accounts.create(name, MASTER))
        assert name not in [one.name for one in portal.run(place.accounts.all())]


def test_an_unknown_key_a_disabled_one_and_a_wrong_signature_cost_the_same_work(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = portal.run(place.accounts.create(place.name, MASTER))
    disabled = portal.run(place.accounts.new_key(place.name, key.grants, MASTER))
    portal.run(place.accounts.set_enabled(place.name, is_enabled=False, key_id=disabled.key_id))
    authenticator = place.authenticator()
    work: list[int] = []
    sign = signature.signature

    def counted(secret: str, scope: str, text: str) -> str:
        work.append(len(secret))
        return sign(secret, scope, text)

    monkeypatch.setattr(signature, "signature", counted)
    found = []
    for key_id, secret in (
        (key.key_id, Secret("w" * 40)),
        (disabled.key_id, disabled.secret),
        ("CQAKAAAAAAAAAAAAAAAA", key.secret),
        ("AKIAIOSFODNN7EXAMPLE", key.secret),
    ):
        work.clear()
        with pytest.raises(AuthenticationFailed) as refused:
            signer(authenticator, request_of(key_id, secret))
        found.append((refused.value.reason, list(work)))
    assert [("signature", [40, 40]), *[("refused", [40, 40])] * 3] == found


def test_an_account_exists_once_whoever_races_for_it(
    place: Place, places: Places, keyspace: str
) -> None:
    place.faults.park("insert_account", 3)
    with ExitStack() as clients:
        admins = [place.accounts]
        for _ in range(2):
            other = clients.enter_context(places.connect(keyspace))
            intercept(other._session, place.faults)
            admins.append(AccountAdmin(other.store))

        def create(admin: AccountAdmin) -> NewKey | None:
            try:
                return portal.run(admin.create(place.name, MASTER))
            except AccountExists:
                return None

        with ThreadPoolExecutor(3) as pool:
            (key,) = (one for one in pool.map(create, admins) if one is not None)
    assert not is_refused(place.authenticator(), key)
    assert [key.key_id] == [one.key_id for one in portal.run(place.accounts.keys(place.name))]


def test_keys_that_are_made_at_the_same_time_all_count_up_to_the_limit(place: Place) -> None:
    portal.run(place.accounts.create(place.name, MASTER))
    grants = (parse_grant(["read"], ["*"]),)
    with ThreadPoolExecutor(4) as pool:
        made = list(
            pool.map(
                lambda _: portal.run(place.accounts.new_key(place.name, grants, MASTER)), range(4)
            )
        )
    authenticator = place.authenticator()
    assert [False] * 4 == [is_refused(authenticator, key) for key in made]
    for _ in range(MOST_KEYS - 5):
        portal.run(place.accounts.new_key(place.name, grants, MASTER))
    with pytest.raises(TooManyKeys, match=f"{MOST_KEYS} keys"):
        portal.run(place.accounts.new_key(place.name, grants, MASTER))


@pytest.mark.parametrize(
    "statement", ["insert_account", "insert_account_key", "update_account", "update_account_key"]
)
@pytest.mark.parametrize("fault", [Fault.TIMEOUT_AFTER, Fault.TIMEOUT_BEFORE])
def test_a_lost_answer_changes_nothing(place: Place, statement: str, fault: Fault) -> None:
    place.faults.plan(statement, fault)
    first = portal.run(place.accounts.create(place.name, MASTER))
    second = portal.run(place.accounts.rotate(place.name, first.key_id, MASTER))
    portal.run(place.accounts.set_enabled(place.name, is_enabled=False, key_id=first.key_id))

    authenticator = place.authenticator()
    assert is_refused(authenticator, first)
    assert not is_refused(authenticator, second)
    assert fault.value in str(place.faults)
    assert 2 == len(portal.run(place.accounts.keys(place.name)))


def test_a_key_that_was_not_finished_is_listed_and_can_be_deleted(place: Place) -> None:
    first = portal.run(place.accounts.create(place.name, MASTER))
    place.faults.plan("insert_account_key", Fault.REFUSE)
    with pytest.raises(CassieqError):
        portal.run(place.accounts.rotate(place.name, first.key_id, MASTER))
    (_, half) = portal.run(place.accounts.keys(place.name))
    assert half.row is None
    portal.run(place.accounts.delete_key(place.name, half.key_id))
    assert [first.key_id] == [one.key_id for one in portal.run(place.accounts.keys(place.name))]


def test_a_disabled_key_is_refused_within_ten_seconds_and_so_is_an_account(place: Place) -> None:
    first = portal.run(place.accounts.create(place.name, MASTER))
    second = portal.run(place.accounts.rotate(place.name, first.key_id, MASTER))
    authenticator = place.authenticator()
    assert not is_refused(authenticator, first)

    portal.run(place.accounts.set_enabled(place.name, is_enabled=False, key_id=first.key_id))
    place.clock.advance(10)
    assert is_refused(authenticator, first)
    assert not is_refused(authenticator, second)

    portal.run(place.accounts.set_enabled(place.name, is_enabled=True, key_id=first.key_id))
    portal.run(place.accounts.set_enabled(place.name, is_enabled=False))
    place.clock.advance(10)
    assert is_refused(authenticator, first)
    assert is_refused(authenticator, second)
    with pytest.raises(AuthenticationFailed, match="not accepted"):
        shower(authenticator, token_of(first, "read"))

    portal.run(place.accounts.set_enabled(place.name, is_enabled=True))
    place.clock.advance(10)
    assert not is_refused(authenticator, first)


def test_a_deleted_key_is_gone_and_others_stay(place: Place) -> None:
    first = portal.run(place.accounts.create(place.name, MASTER))
    second = portal.run(place.accounts.rotate(place.name, first.key_id, MASTER))
    portal.run(place.accounts.delete_key(place.name, first.key_id))
    authenticator = place.authenticator()
    assert is_refused(authenticator, first)
    assert not is_refused(authenticator, second)
    for call in (place.accounts.delete_key, place.accounts.rotate):
        more = [MASTER] if call == place.accounts.rotate else []
        with pytest.raises(KeyNotFound):
            portal.run(call(place.name, first.key_id, *more))


def test_an_account_with_queues_is_deleted_with_them_or_not_at_all(place: Place) -> None:
    key = portal.run(place.accounts.create(place.name, MASTER))
    queue = f"{place.name}/orders"
    place.client.create_queue(queue).put(b"x")
    (message,) = place.client.queue(queue).get()
    assert b"x" == message.body
    with pytest.raises(AccountInUse, match=f"1 queues, such as '{queue}'"):
        portal.run(place.accounts.delete(place.name))
    assert not is_refused(place.authenticator(), key)

    assert 1 == portal.run(place.accounts.delete(place.name, with_queues=True))
    assert queue not in {info.name for info in place.client.queues()}
    assert place.name not in {one.name for one in portal.run(place.accounts.all())}
    assert is_refused(place.authenticator(), key)
    for call in (place.accounts.keys, place.accounts.delete):
        with pytest.raises(AccountNotFound):
            portal.run(call(place.name))


@pytest.mark.parametrize("statement", ["delete_account_key", "delete_account", "delete_queue"])
def test_a_deletion_that_was_cut_off_refuses_keys_and_can_be_finished(
    place: Place, statement: str
) -> None:
    key = portal.run(place.accounts.create(place.name, MASTER))
    place.client.create_queue(f"{place.name}/orders")
    place.faults.plan(statement, Fault.REFUSE)
    with pytest.raises(CassieqError):
        portal.run(place.accounts.delete(place.name, with_queues=True))
    assert is_refused(place.authenticator(), key)
    with pytest.raises(AccountNotFound, match="is being deleted"):
        portal.run(place.accounts.set_enabled(place.name, is_enabled=True))
    with pytest.raises(AccountNotFound, match="is being deleted"):
        portal.run(place.accounts.new_key(place.name, key.grants, MASTER))
    portal.run(place.accounts.delete(place.name, with_queues=True))
    assert place.name not in {one.name for one in portal.run(place.accounts.all())}


def test_a_key_of_a_former_account_of_the_same_name_stays_refused(place: Place) -> None:
    old = portal.run(place.accounts.create(place.name, MASTER))
    row = portal.run(place.store.account_keys.read(old.key_id))
    assert row is not None
    portal.run(place.accounts.delete(place.name))
    portal.run(place.accounts.create(place.name, MASTER))
    portal.run(place.store.account_keys.insert(row.value))  # it comes back from the dead
    assert is_refused(place.authenticator(), old)


def test_a_secret_that_was_moved_to_another_row_is_refused_and_logged(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    mine = portal.run(place.accounts.create(place.name, MASTER))
    theirs = portal.run(place.accounts.rotate(place.name, mine.key_id, MASTER))
    row = portal.run(place.store.account_keys.read(mine.key_id))
    target = portal.run(place.store.account_keys.read(theirs.key_id))
    assert row is not None
    assert target is not None
    portal.run(place.store.account_keys.delete(theirs.key_id))
    moved = replace(target.value, sealed_secret=row.value.sealed_secret)
    portal.run(place.store.account_keys.insert(moved))
    with caplog.at_level(logging.ERROR, "cassieq_spark"):
        assert is_refused(place.authenticator(), replace(theirs, secret=mine.secret))
        assert is_refused(place.authenticator(MasterKey(b"n" * 32)), mine)
    assert "altered, or moved" in caplog.text
    assert "another master key" in caplog.text


def test_the_last_use_is_recorded_once_a_minute(place: Place) -> None:
    key = portal.run(place.accounts.create(place.name, MASTER))
    authenticator = place.authenticator()
    assert [None] == [one.used_us for one in portal.run(place.accounts.keys(place.name))]
    for _ in range(3):
        assert not is_refused(authenticator, key)
    assert 1 == place.faults._seen["write_key_use"]
    (one,) = portal.run(place.accounts.keys(place.name))
    assert one.used_us is not None
    assert abs(place.clock.now_us() - one.used_us) < 60_000_000
    # A use that cannot be recorded is no reason to refuse.
    place.clock.advance(61)
    place.faults.plan("write_key_use", Fault.TIMEOUT_BEFORE, times=100)
    assert not is_refused(authenticator, key)
    place.clock.advance(61)
    place.faults.plan("write_key_use", Fault.REFUSE)
    assert not is_refused(authenticator, key)
    assert 3 == place.faults._seen["write_key_use"]  # each was sent once


def test_a_request_with_a_known_key_costs_the_store_nothing(place: Place) -> None:
    key = portal.run(place.accounts.create(place.name, MASTER))
    authenticator = place.authenticator()
    assert not is_refused(authenticator, key)
    before = sum(place.faults._seen.values())
    for _ in range(20):
        assert not is_refused(authenticator, key)
        shower(authenticator, token_of(key, "read"))
    assert before == sum(place.faults._seen.values())


def test_no_secret_is_shown_or_logged_or_stored_in_clear(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        key = portal.run(place.accounts.create(place.name, MASTER))
        authenticator = place.authenticator()
        assert not is_refused(authenticator, key)
        infos = portal.run(place.accounts.keys(place.name))
        token = token_of(key, "read")
        shower(authenticator, token)
        with pytest.raises(AuthenticationFailed) as refused:
            shower(authenticator, token[:-4] + "AAAA")
    secret = key.secret.reveal()
    live = portal.run(authenticator.key(key.key_id))
    shown: list[Any] = [repr(key), repr(infos), str(refused.value), repr(live), caplog.text]
    shown += [repr(MASTER), repr(pickle.dumps(infos)), repr(pickle.dumps(refused.value))]
    assert [] == [text for text in shown if secret in text or token in text]


@pytest.mark.parametrize("has_account", [True, False])
def test_a_made_up_source_queue_redrives_nothing_into_another_account(
    place: Place, has_account: bool
) -> None:
    theirs = f"other-{place.name}/orders"
    mine = f"{place.name}/dead" if has_account else f"{place.name}.dead"
    place.client.create_queue(theirs)
    place.client.create_queue(mine).put(b"x", headers={"cassieq-source-queue": theirs})
    place.client.create_queue(
        mine.replace("dead", "orders"), max_deliveries=1, dead_letter_queue=mine
    )
    done = place.client.redrive(mine)
    assert (0, 1) == (done.moved, done.homeless)
    assert "queue of another account" in " ".join(done.problems)
    assert [] == place.client.queue(theirs).peek()


def test_queues_of_two_accounts_that_a_setting_joins_have_their_dead_letters_back(
    place: Place,
) -> None:
    """Only whoever reaches Cassandra sets it: operators have one dead-letter queue for several."""
    shared, theirs = f"{place.name}.dead", f"{place.name}/orders"
    place.client.create_queue(shared)
    source = place.client.create_queue(theirs, max_deliveries=5, dead_letter_queue=shared)
    source.put(b"x")
    source.reject(source.get(1, wait=5))
    place.client.repair(theirs)

    assert 0 == place.client.redrive(shared, may=lambda queue: queue != theirs).moved
    assert {theirs: 1} == place.client.redrive(shared).by_target
    assert [b"x"] == [one.body for one in source.peek()]
