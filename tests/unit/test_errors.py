"""Errors survive what Spark does to them: pickled between processes, mere text at its edge."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

import cassieq_spark
from cassieq_spark import errors
from cassieq_spark.errors import CassieqError, StoreTimeout
from cassieq_spark.model.rows.events import Answer, End
from cassieq_spark.store import rows
from cassieq_spark.store.caller import copied

ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, CassieqError)
]
LEAVES = [kind for kind in ALL if "code" in vars(kind) and kind is not CassieqError]

# Never renamed after a release: programs and runbooks match on them. Only add to it.
CODES = {
    "access_denied", "account_exists", "account_in_use", "account_not_found",
    "authentication_failed", "body_invalid", "cas_ambiguous", "cas_contention",
    "cassandra_login_failed", "client_closed", "connector_missing", "data_loss",
    "dead_letter_cycle", "disk_full", "embedded_failed", "function_invalid", "java_not_found",
    "key_not_found", "lease_lost", "master_key_invalid", "offset_unreadable", "option_invalid",
    "option_unknown", "output_failed", "put_ambiguous", "queue_deleted", "queue_exists",
    "queue_in_use", "queue_not_found", "receipt_expired", "receipt_invalid",
    "replication_differs", "request_time_skewed", "row_corrupt", "schema_mismatch",
    "schedule_exists", "schedule_not_found",
    "schema_missing", "server_missing", "setting_fixed", "sink_diverged", "sink_fenced",
    "sink_id_reused", "spark_missing", "store_timeout", "store_unavailable", "stream_fenced",
    "tls_failed", "too_many_keys", "usage", "worker_environment",
}  # fmt: skip

DATA = {
    errors.AccessDenied: {"right": "put", "queue": "acme/orders"},
    errors.AuthenticationFailed: {"reason": "expired"},
    errors.RequestTimeSkewed: {"reason": "skewed"},
    errors.QueueExists: {"queue": "orders", "differences": ("bucket_size", "linger")},
    errors.ReceiptExpired: {"refused": ("a", "b")},
    errors.ReceiptInvalid: {"refused": ("a",), "expired": ("b",)},
    errors.PutAmbiguous: {"message_ids": ("0195", "0196"), "stored": ("m-2",)},
    errors.SinkError: {"sink_id": "s"},
    errors.SinkFenced: {"sink_id": "s"},
    errors.SinkIdReused: {"sink_id": "s"},
    errors.SinkDiverged: {"sink_id": "s"},
}


def keyword_data(kind: type[CassieqError]) -> dict[str, object]:
    parameters = inspect.signature(kind).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}


def test_a_code_is_the_name_of_its_class_and_stays() -> None:
    assert sorted(CODES) == sorted(kind.code for kind in LEAVES)
    for kind in set(LEAVES) - {errors.UsageError}:
        assert kind.code == re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_an_error_pickles_with_its_message_data_and_notes(kind: type[CassieqError]) -> None:
    error = kind("queue 'orders' is not there", **DATA.get(kind, {}))  # type: ignore[arg-type]  # table
    error.add_note("seen in task 3")

    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert kind is type(copy)
    assert vars(error) == vars(copy)
    assert str(error) == str(copy)
    assert ("queue 'orders' is not there",) == copy.args


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_data_is_keyword_only_with_defaults_and_kept_as_attributes(
    kind: type[CassieqError],
) -> None:
    defaults = keyword_data(kind)

    assert DATA.get(kind, {}).keys() == defaults.keys()
    assert {**defaults, "message": "text"} == vars(kind("text"))


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_the_text_begins_with_the_code(kind: type[CassieqError]) -> None:
    assert f"[cassieq:{kind.code}] it broke. Mend it" == str(kind("it broke. Mend it"))


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_every_error_says_in_the_reference_what_it_means_and_what_to_do(
    kind: type[CassieqError],
) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.code)
    for own in ("meaning", "remedy"):
        assert re.fullmatch(r"[A-Z][^\n]+\.", vars(kind)[own])


def test_the_errors_that_a_program_catches_are_exported_at_top_level() -> None:
    """All others are in `cassieq_spark.errors`; each is one of these."""
    exported = [kind for kind in ALL if hasattr(cassieq_spark, kind.__name__)]

    assert len(exported) == 18
    assert {kind.__name__ for kind in exported} <= set(cassieq_spark.__all__)


def test_mistakes_of_a_caller_are_value_errors() -> None:
    assert {
        errors.UsageError,
        errors.OptionUnknown,
        errors.OptionInvalid,
        errors.BodyInvalid,
        errors.ConnectorMissing,
        errors.FunctionInvalid,
        errors.DeadLetterCycle,
        errors.ServerMissing,
        errors.SettingFixed,
        errors.SparkMissing,
        errors.ReceiptInvalid,
    } == {kind for kind in ALL if issubclass(kind, ValueError)}


def test_a_timeout_and_a_lost_connection_are_what_python_calls_so() -> None:
    assert [errors.StoreTimeout] == [kind for kind in ALL if issubclass(kind, TimeoutError)]
    assert {errors.StoreUnavailable, errors.CassandraLoginFailed, errors.TlsFailed} == {
        kind for kind in ALL if issubclass(kind, ConnectionError)
    }


@pytest.mark.parametrize("kind", [kind for kind in ALL if issubclass(kind, OSError)])
def test_what_the_system_has_not_raised_has_no_number_and_no_file(kind: type[OSError]) -> None:
    """click, and whoever else looks at those, sees that it is none of the system's."""
    error = copied(kind("no answer"))
    assert [None] * 3 == [error.errno, error.strerror, error.filename]
    assert f"{kind.__name__}('no answer')" == repr(error)


def test_only_what_passes_by_itself_is_retriable() -> None:
    assert {
        errors.StoreUnavailable,
        errors.StoreTimeout,
        errors.CasContention,
    } == {kind for kind in ALL if kind.retriable}


def test_each_of_those_who_share_a_cas_raises_an_error_of_its_own() -> None:
    """One object in two threads would mix up their tracebacks."""
    shared = StoreTimeout("no answer")
    answer = Answer(ticket=1, end=End.NOT_SENT, error=shared)
    raised = [rows.error_of(answer, None) for _ in range(2)]
    assert [shared.message] * 2 == [one.message for one in raised]
    assert 3 == len({id(one) for one in (shared, *raised)})
