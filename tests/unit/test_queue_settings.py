"""A queue's settings: strict, the same however they are written, and stored for ever."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.errors import OptionInvalid, OptionUnknown, RowCorrupt, SchemaMismatch
from cassieq_spark.options import OPTIONS, QueueSettings, Scope

DEFAULT_SETTINGS = QueueSettings(
    bucket_size=100_000,
    priorities=1,
    shards=1,
    fairness=0.1,
    schedule_after_s=900.0,
    schedule_period_s=3600.0,
    visibility_timeout_s=30.0,
    max_deliveries=None,
    dead_letter_queue=None,
    repair_timeout_s=15.0,
    linger_s=0.02,
    gap_timeout_s=10.0,
    retention_s=None,
    dead_letter_expired=False,
    dedup_window_s=None,
)


def test_settings_have_these_defaults() -> None:
    assert DEFAULT_SETTINGS == QueueSettings.parse()
    assert DEFAULT_SETTINGS == QueueSettings.parse(max_deliveries=None, linger=None)


def test_settings_take_seconds_and_timedelta_alike() -> None:
    assert QueueSettings.parse(visibility_timeout=90, linger=0.05) == QueueSettings.parse(
        visibility_timeout=timedelta(seconds=90), linger=timedelta(milliseconds=50)
    )


def test_a_queues_settings_do_not_depend_on_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for option in OPTIONS:
        if Scope.QUEUE in option.scopes:
            monkeypatch.setenv(option.variable, "1")

    assert DEFAULT_SETTINGS == QueueSettings.parse()


@pytest.mark.parametrize(("priorities", "shards"), [(2, 33), (10, 7)])
def test_more_lanes_than_a_queue_may_have_are_refused(priorities: int, shards: int) -> None:
    with pytest.raises(OptionInvalid, match=rf"are {priorities} and {shards}: a queue has 64"):
        QueueSettings.parse(priorities=priorities, shards=shards)


@pytest.mark.parametrize("name", ["bucket_sise", "Bucket_Size", "visibility_timeout_s"])
def test_a_misspelt_setting_is_refused_with_the_nearest_name(name: str) -> None:
    with pytest.raises(
        OptionUnknown, match=rf"'{name}' is not an option of create_queue\(\)\. Did you"
    ):
        QueueSettings.parse(**{name: 5})


settings_given = st.fixed_dictionaries(
    {},
    optional={
        "bucket_size": st.integers(1, 100_000),
        "priorities": st.integers(1, 10),
        "shards": st.integers(1, 6),
        "schedule_after": st.floats(0, 86_400),
        "schedule_period": st.floats(60, 86_400),
        "fairness": st.floats(0, 0.5) | st.sampled_from([0, 0.1]),
        "visibility_timeout": st.floats(0.1, 2_592_000) | st.integers(1, 2_592_000),
        "max_deliveries": st.none() | st.integers(1, (1 << 31) - 1),
        "dead_letter_queue": st.none()
        | st.from_regex(r"([a-z0-9]{1,9}/)?[A-Za-z0-9._-]{1,200}", fullmatch=True),
        "repair_timeout": st.floats(0.2, 86_400),
        "linger": st.floats(0, 60),
        "gap_timeout": st.timedeltas(timedelta(seconds=0.1), timedelta(days=1)),
        "retention": st.none() | st.floats(60, 34_560_000),
        "dead_letter_expired": st.booleans(),
        "dedup_window": st.none() | st.floats(60, 2_592_000),
    },
)


@given(settings_given)
def test_settings_come_back_as_they_were_stored(given_: dict[str, Any]) -> None:
    settings = QueueSettings.parse(**given_)

    assert settings == QueueSettings.from_json(settings.to_json())
    assert [] == settings.differences(QueueSettings.from_json(settings.to_json()))


def test_the_stored_form_is_this() -> None:
    # A change of it is a change of stored state: a migration and a compat fixture come with it.
    assert (
        '{"bucket_size": 100000, "priorities": 1, "shards": 1, "fairness": 0.1, '
        '"schedule_after_s": 900.0, "schedule_period_s": 3600.0, '
        '"visibility_timeout_s": 30.0, "max_deliveries": null, "dead_letter_queue": null, '
        '"repair_timeout_s": 15.0, "linger_s": 0.02, "gap_timeout_s": 10.0, '
        '"retention_s": null, "dead_letter_expired": false, "dedup_window_s": null}'
    ) == DEFAULT_SETTINGS.to_json()


def test_a_setting_that_is_newer_than_the_row_is_as_it_was_before_there_was_one() -> None:
    # Whoever changes a default must not change what queues do that were created without it.
    assert replace(DEFAULT_SETTINGS, bucket_size=7) == QueueSettings.from_json('{"bucket_size": 7}')


def test_a_setting_that_is_newer_than_this_release_is_named() -> None:
    with pytest.raises(SchemaMismatch, match=r"does not know: colour\. Use the release"):
        QueueSettings.from_json('{"bucket_size": 7, "colour": 2}')


@pytest.mark.parametrize(
    "stored",
    ["", "{", "5", "null", "[]x", '{"bucket_size": 0}', '{"bucket_size": null}',
     '{"linger_s": NaN}', '{"bucket_size": "7"}', '{"dead_letter_queue": "a b"}', '[["a"]]'],
)  # fmt: skip
def test_settings_that_nobody_stored_are_refused(stored: str) -> None:
    with pytest.raises(RowCorrupt, match="the settings of a queue cannot be read"):
        QueueSettings.from_json(stored)


@given(st.text())
def test_whatever_is_stored_is_read_or_refused(stored: str) -> None:
    try:
        found = QueueSettings.from_json(stored)
    except (RowCorrupt, SchemaMismatch):
        return
    assert QueueSettings.parse() == found, "without any setting, as {} has none"


def test_differences_name_each_setting_with_both_values() -> None:
    here = QueueSettings.parse(bucket_size=7, visibility_timeout=1)
    there = QueueSettings.parse(bucket_size=8, dead_letter_queue="dead")

    assert [
        ("bucket_size", 7, 8),
        ("visibility_timeout", 1.0, 30.0),
        ("dead_letter_queue", None, "dead"),
    ] == here.differences(there)
