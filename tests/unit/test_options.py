"""Options are strict, name what is wrong with them, and mean one thing however they are written."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from cassieq_spark import AsyncClient, Client, connect, connect_async
from cassieq_spark.errors import OptionInvalid, OptionUnknown, UsageError
from cassieq_spark.options import (
    OPTIONS,
    ConnectionArguments,
    ConnectionOptions,
    QueueArguments,
    QueueSelection,
    ReadOptions,
    Scope,
    SinkOptions,
    SourceOptions,
    Spelling,
    parse_connection,
    parse_read,
    parse_sink,
    parse_source,
    parse_view,
    queue_name,
)
from cassieq_spark.options.option import by_option
from cassieq_spark.spark import foreach_batch

HERE = {"contactPoints": "127.0.0.1", "queue": "orders"}
ORDERS = QueueSelection(names=(queue_name("orders"),), is_one=True)
CONNECTION = ConnectionOptions(
    contact_points=(("127.0.0.1", 9042),),
    keyspace="cassieq",
    datacenter=None,
    connect_timeout_s=10.0,
)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)


# --- the parsed values


IN_ANY_CASE = [
    ("minpartitions", "8", "min_partitions", 8),
    ("maxMessagesPerTrigger", "1000", "max_messages_per_trigger", 1_000),
    ("MAXBYTESPERTRIGGER", "1m", "max_bytes_per_trigger", 1_048_576),
    ("minmessagespertrigger", "100", "min_messages_per_trigger", 100),
    ("maxtriggerdelay", "2m", "max_trigger_delay_s", 120.0),
    ("laginterval", "5s", "lag_interval_s", 5.0),
    ("ackmode", "MANUAL", "ack_mode", "manual"),
    ("minpriority", "2", "min_priority", 2),
    ("visibilitytimeout", "90s", "visibility_timeout_s", 90.0),
    ("consumer", "billing", "consumer", "billing"),
    ("onleaselost", "FAIL", "on_lease_lost", "fail"),
    ("failondataloss", "False", "fail_on_data_loss", False),
    ("maxbatchduration", "12h", "max_batch_duration_s", 43_200.0),
]
"""An option, its text, and the field and value that it becomes."""


def test_a_source_takes_all_its_options_as_text_in_any_case() -> None:
    given = {"CONTACTPOINTS": "a:1,b:2", "keyspace": "other", "datacenter": "dc1"}
    given |= {"connecttimeout": "2.5", "queue": "orders"}
    given |= {name: text for name, text, _, _ in IN_ANY_CASE}
    connection = ConnectionOptions(
        contact_points=(("a", 1), ("b", 2)),
        keyspace="other",
        datacenter="dc1",
        connect_timeout_s=2.5,
    )
    expected: dict[str, Any] = {field: value for _, _, field, value in IN_ANY_CASE}

    assert SourceOptions(connection=connection, queues=ORDERS, **expected) == parse_source(given)


def test_a_batch_reader_has_these_options() -> None:
    assert ReadOptions(connection=CONNECTION, queues=ORDERS, min_partitions=5) == parse_read(
        {**HERE, "minPartitions": "5"}
    )


def test_a_view_of_many_queues_needs_none_and_one_of_messages_does() -> None:
    for view in ("queues", "STATS"):
        options = parse_read({"contactPoints": "127.0.0.1", "View": view})
        assert (view.lower(), False) == (options.view, options.push_filters)
        assert options.queues.is_all
        assert parse_read({**HERE, "view": view}).queues == ORDERS
    for view in (None, "messages", "buckets", "leases", "dead"):
        with pytest.raises(OptionInvalid, match="option 'queue' of the cassieq batch reader is"):
            parse_read({"contactPoints": "127.0.0.1", "view": view})


@pytest.mark.parametrize("parse", [parse_source, parse_read])
def test_several_queues_are_named_or_found_by_a_pattern(parse: Callable[[Any], Any]) -> None:
    here = {"contactPoints": "127.0.0.1"}
    several = parse({**here, "queues": "orders, shop/invoices"}).queues
    assert QueueSelection(names=("orders", "shop/invoices")) == several  # type: ignore[arg-type]
    assert several.has(queue_name("orders"))
    assert not several.has(queue_name("order"))

    found = parse({**here, "queuePattern": r"orders\..*"}).queues
    assert QueueSelection(pattern=r"orders\..*") == found
    assert [True, False, False] == [
        found.has(queue_name(name)) for name in ("orders.de", "orders", "my.orders.de")
    ]


@pytest.mark.parametrize("parse", [parse_source, parse_read])
def test_queues_are_named_in_one_way(parse: Callable[[Any], Any]) -> None:
    for two in ({"queue": "a", "queues": "b"}, {"queues": "b", "queuePattern": "c"}):
        with pytest.raises(OptionInvalid, match=r"options '\w+' and '\w+' of .* are set, and each"):
            parse({"contactPoints": "127.0.0.1", **two})


def test_an_argument_that_names_queues_counts_before_a_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = {"contactPoints": "127.0.0.1"}
    monkeypatch.setenv("CASSIEQ_QUEUE", "orders")
    assert parse_source(here).queues == ORDERS
    assert ("a", "b") == parse_source({**here, "queues": "a,b"}).queues.names
    assert "a.*" == parse_source({**here, "queuePattern": "a.*"}).queues.pattern
    assert () == parse_source({**here, "queuePattern": "a.*"}).queues.names
    monkeypatch.setenv("CASSIEQ_QUEUES", "a,b")
    with pytest.raises(OptionInvalid, match="'queue' and 'queues'"):
        parse_source(here)


def test_the_view_is_known_before_the_other_options_are_looked_at() -> None:
    assert ["messages", "leases"] == [parse_view({"x": 1}), parse_view({"x": 1, "VIEW": "leases"})]


def test_a_sink_takes_all_its_options_as_text() -> None:
    sizes = {"chunkMessages": "4096", "chunkBytes": "4k", "bucketBytes": "256M"}
    more = {"sinkId": "s", "batchId": "0", "writesInFlight": "64"}

    assert SinkOptions(
        connection=CONNECTION,
        queue=queue_name("orders"),
        sink_id="s",
        batch_id=0,
        chunk_messages=4_096,
        chunk_bytes=4_096,
        bucket_bytes=268_435_456,
        writes_in_flight=64,
    ) == parse_sink({**HERE, **sizes, **more})


def test_a_connection_needs_no_queue() -> None:
    assert CONNECTION == parse_connection({"contactPoints": ["127.0.0.1:9042"]})


@pytest.mark.parametrize("parse", [parse_source, parse_read, parse_sink])
def test_parsed_options_are_frozen_hashable_and_pickle(parse: Callable[[Any], Any]) -> None:
    options = parse(HERE)

    assert options == pickle.loads(pickle.dumps(options))  # noqa: S301 - our own bytes
    assert hash(options) == hash(parse(HERE))
    with pytest.raises(AttributeError):
        options.connection = "other"


# --- names


def test_a_misspelt_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(OptionUnknown) as refused:
        parse_source({**HERE, "maxMesagesPerTrigger": "5"})

    assert (
        "[cassieq:option_unknown] 'maxMesagesPerTrigger' is not an option of the cassieq source. "
        "Did you mean 'maxMessagesPerTrigger'?"
    ) == str(refused.value)


def test_an_option_of_another_scope_is_refused_with_its_owner() -> None:
    with pytest.raises(OptionUnknown) as refused:
        parse_source({**HERE, "sinkid": "s"})

    assert (
        "[cassieq:option_unknown] 'sinkid' is not an option of the cassieq source. 'sinkId' "
        "belongs to the cassieq sink: leave it out here"
    ) == str(refused.value)


def test_an_option_like_no_other_is_refused_with_all_there_are() -> None:
    with pytest.raises(OptionUnknown, match="Its options are: connectTimeout, contactPoints, "):
        parse_connection({"zzz": "1"})


@pytest.mark.parametrize("parse", [parse_source, parse_read, parse_sink])
def test_sparks_own_options_are_left_to_spark(parse: Callable[[Any], Any]) -> None:
    # What Spark 4.2.1 and 4.3.0 add to a source's and a sink's own options: nothing else.
    sparks = {"path": "p", "paths": '["p"]', "checkpointlocation": "/tmp/c", "queryname": "q"}  # noqa: S108 - not opened

    assert parse(HERE) == parse({**HERE, **sparks})


def test_a_plain_client_knows_nothing_of_sparks_options() -> None:
    with pytest.raises(OptionUnknown, match=r"'path' is not an option of connect\(\)"):
        parse_connection({"contactPoints": "a", "path": "p"})


def test_an_option_given_in_two_spellings_is_refused() -> None:
    with pytest.raises(OptionInvalid, match="given twice, as 'queue' and as 'Queue'"):
        parse_read({**HERE, "Queue": "other"})


def test_a_required_option_that_is_missing_is_named_with_what_it_may_be() -> None:
    with pytest.raises(OptionInvalid) as refused:
        parse_sink({"contactPoints": "a"})

    assert (
        "[cassieq:option_invalid] option 'queue' of the cassieq sink is not set. The queue to read "
        "from or to write to. Set it, or the variable CASSIEQ_QUEUE, to 1 to 200 letters (a-z, "
        "A-Z), digits, '.', '-' or '_'; before it may be an account and '/'"
    ) == str(refused.value)


# --- where a value comes from


def test_an_argument_wins_over_a_variable_and_that_over_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CASSIEQ_MIN_PARTITIONS", "7")
    monkeypatch.setenv("CASSIEQ_CONTACT_POINTS", "from-variable")

    by_variable = parse_read({"queue": "orders"})
    by_argument = parse_read({**HERE, "minPartitions": 9})

    assert (7, (("from-variable", 9042),)) == (
        by_variable.min_partitions,
        by_variable.connection.contact_points,
    )
    assert (9, (("127.0.0.1", 9042),)) == (
        by_argument.min_partitions,
        by_argument.connection.contact_points,
    )


def test_none_is_as_good_as_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASSIEQ_DATACENTER", "dc7")

    assert "dc7" == parse_connection({"contactPoints": "a", "datacenter": None}).datacenter


def test_a_variable_with_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASSIEQ_FAIL_ON_DATA_LOSS", "ture")

    with pytest.raises(OptionInvalid) as refused:
        parse_source(HERE)

    assert (
        "[cassieq:option_invalid] variable CASSIEQ_FAIL_ON_DATA_LOSS is 'ture', allowed: true or "
        "false"
    ) == str(refused.value)


def test_what_names_one_writers_transaction_has_no_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Two writers of one environment would share it: the second one's batches would be skipped.
    monkeypatch.setenv("CASSIEQ_SINK_ID", "s")
    monkeypatch.setenv("CASSIEQ_BATCH_ID", "1")

    assert parse_sink(HERE).sink_id is None
    assert parse_sink(HERE).batch_id is None


# --- rules between options


def test_a_batch_id_without_a_sink_id_is_refused_and_both_are_named() -> None:
    with pytest.raises(OptionInvalid) as refused:
        parse_sink({**HERE, "batchId": "7"})

    assert (
        "[cassieq:option_invalid] option 'batchId' is 7, but 'sinkId' is not set: a batch id means "
        "nothing without a sink id. Set both, or neither"
    ) == str(refused.value)


def test_every_connection_option_is_a_keyword_and_no_other() -> None:
    options = {option.name for option in OPTIONS if Scope.CONNECTION in option.scopes}
    keywords = dict.fromkeys(ConnectionArguments.__annotations__)
    assert options == {"contactPoints", *by_option(keywords, {}, of="connect")}


def test_connect_finds_the_contact_points_in_their_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CASSIEQ_CONTACT_POINTS", raising=False)
    says = r"'contact_points' of connect\(\) is not set\. .*the variable CASSIEQ_CONTACT_POINTS, to"
    with pytest.raises(OptionInvalid, match=says):
        connect()

    monkeypatch.setenv("CASSIEQ_CONTACT_POINTS", "10.0.0.1:9043,[::1]:9044")
    own = "keyspace='cassieq'"
    assert f"AsyncClient('10.0.0.1:9043, [::1]:9044', {own})" == repr(connect_async())
    assert f"AsyncClient('10.0.0.2:9042', {own})" == repr(connect_async("10.0.0.2"))


@pytest.mark.parametrize(
    ("keyword", "told"),
    [
        ("conect_timeout", "Did you mean 'connect_timeout'"),
        ("contactPoints", "Did you mean 'contact_points'"),
        ("sslCaFile", "Did you mean 'ssl_ca_file'"),
        ("path", "It has: connect_timeout, contact_points, "),
    ],
)
def test_what_is_no_keyword_of_connect_is_refused_with_the_nearest(keyword: str, told: str) -> None:
    with pytest.raises(OptionUnknown, match=rf"connect\(\) has no keyword '{keyword}'\. {told}"):
        connect("127.0.0.1", **{keyword: 3})  # type: ignore[arg-type, misc, unused-ignore]


@pytest.mark.parametrize(
    ("keyword", "told"),
    [
        ("sinkId", "Did you mean 'sink_id'"),
        ("chunkMessages", "Did you mean 'chunk_messages'"),
        ("checkpoint_location", "It has: "),
    ],
)
def test_an_options_spelling_is_not_swallowed_by_foreach_batch(keyword: str, told: str) -> None:
    """Else the sink id that was asked for would be another one, and a replay written twice."""
    with pytest.raises(OptionUnknown, match=f"has no keyword '{keyword}'. {told}"):
        foreach_batch(queue="q", contact_points="h", **{keyword: "7"})  # type: ignore[arg-type, misc, unused-ignore]


def test_the_keywords_of_a_queue_are_its_settings() -> None:
    known = [one.name for one in OPTIONS if Scope.QUEUE in one.scopes]
    assert known == list(QueueArguments.__annotations__)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_that_is_made_by_its_class_names_the_functions(kind: Any) -> None:
    with pytest.raises(UsageError, match=r"call cassieq_spark\.connect\(\) or connect_async\(\)"):
        kind("127.0.0.1:9042")


@pytest.mark.parametrize(
    ("spelling", "points", "needs"),
    [
        (
            Spelling.PYTHON,
            "option 'contact_points' of connect() is 5, allowed: ",
            "option 'ssl_cert_file' is 'c.pem', but 'ssl_ca_file' is not set: ",
        ),
        (
            Spelling.SPARK,
            "option 'contactPoints' of connect() is 5, allowed: ",
            "option 'sslCertFile' is 'c.pem', but 'sslCaFile' is not set: ",
        ),
        (
            Spelling.SHELL,
            "--contact-points is 5, allowed: ",
            "--ssl-cert-file is 'c.pem', but --ssl-ca-file is not set: ",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Spelling) else "",
)
def test_each_door_names_options_as_its_users_write_them(
    spelling: Spelling, points: str, needs: str
) -> None:
    for given, says in (
        ({"contactPoints": 5}, points),
        ({"contactPoints": "a", "sslCertFile": "c.pem"}, needs),
    ):
        with pytest.raises(OptionInvalid) as refused:
            parse_connection(given, spelling)
        assert str(refused.value).startswith(f"[cassieq:option_invalid] {says}")


def test_a_secret_is_its_variable_in_a_shell() -> None:
    of = Spelling.SHELL.of
    secrets = {one.name for one in OPTIONS if one.is_secret}

    assert {"CASSIEQ_PASSWORD", "CASSIEQ_SSL_KEY_PASSWORD"} == {of(name) for name in secrets}
    assert all(of(one.name).startswith("--") for one in OPTIONS if not one.is_secret)


def test_the_spelling_makes_no_other_connection() -> None:
    given = {"contactPoints": "a", "sslCaFile": "ca.pem"}
    python, shell = (parse_connection(given, one) for one in (Spelling.PYTHON, Spelling.SHELL))

    assert (python, hash(python)) == (shell, hash(shell))
    assert Spelling.SHELL is pickle.loads(pickle.dumps(shell)).spelling  # noqa: S301 - our own
