"""Each option's values are strict, and every refusal names option, value and range."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.options import (
    OPTIONS,
    Option,
    QueueSettings,
    Scope,
    Spelling,
    account_name,
    parse_connection,
    parse_read,
    parse_sink,
    parse_source,
    queue_name,
)
from cassieq_spark.options.values import (
    NotAllowed,
    contact_points,
    seconds,
    show_bytes,
    show_seconds,
    size_bytes,
    whole,
)

HERE = {"contactPoints": "127.0.0.1", "queue": "orders"}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)


def of(*scopes: Scope) -> list[Option]:
    return [option for option in OPTIONS if option.scopes & set(scopes)]


WRONG: dict[str, list[Any]] = {
    "contactPoints": ["", "a,", "a,,b", "a:0", "a:65536", "a:b", "a:", ":9042", "::1", "[::1",
                      "[a]", "a b", "http://a", [], [("a", 1)], [1], 5, b"a", "a:\u0661", {"a": 1},
                      "a..b", ".", ".a", "a." + "x" * 64],
    "keyspace": ["", "Orders", "1a", "a-b", "a" * 49, "_a", 5, "a\n"],
    "datacenter": ["", " dc", "dc ", "d\nc", "x" * 201, 5],
    "connectTimeout": [0.99, 61, "61s", True],
    "username": ["", " u", "u\n", "u" * 201, 5],
    "password": ["", "p\0", "p" * 1_001, 5, b"p", "\ud800"],
    "sslCaFile": ["", " ", "a\n", 5, b"ca.pem"],
    "sslCertFile": ["", 5],
    "sslKeyFile": ["", 5],
    "sslKeyPassword": ["", "p\0", 5],
    "sslVerifyHostname": ["ture", "yes", "", 1, 0],
    "queue": ["", "a b", "a/b/c", "q" * 201, "é", "a\n", 5],
    "queues": ["", "a,", ",a", "a,,b", "a,b,a", "a b", "a;b", ["a"], 5],
    "queuePattern": ["", "(", "[", "a{99999999999}", "(?P<a>.)(?P<a>.)", 5, b"a"],
    "view": ["message", "", "bucket", True, 5],
    "pushFilters": ["yes", "", 1],
    "maxMessagesPerTrigger": [0, -1, "0", "1.0", "1e3", "1_000", "", "\u0661", 1.0, True, 10**5000],
    "maxBytesPerTrigger": [0, "0", "1kb", 1.5, True],
    "minMessagesPerTrigger": [0, -1, "all"],
    "maxTriggerDelay": [0.05, "25h"],
    "lagInterval": [0.05, "25h"],
    "ackMode": ["auto", "", True],
    "minPriority": [-1, 10, "-1", "10", "high", "1.0", "", 1.0, True],
    "minPartitions": [0, 100_001],
    "visibilityTimeout": [0.09, 2_592_001, "31d", "-1s", "1 week", "1h30m", "s", "inf", "nan",
                          float("nan"), float("inf"), -0.1, True, [], timedelta(days=31), 10**400],
    "onLeaseLost": ["ignore", "", True, 0],
    "failOnDataLoss": ["ture", "yes", "1", "", 1, 0],
    "maxBatchDuration": [0.5, "500ms"],
    "consumer": ["", " ", "a\tb"],
    "sinkId": ["", "s" * 401, " s"],
    "batchId": [-1, "-1", 1 << 63, "9223372036854775808", "99999999999999999999", True, 1.5],
    "chunkMessages": [0, 4097],
    "chunkBytes": [4095, "3k", "2m", "1.5k", "k", "4kb", 4096.0, True],
    "bucketBytes": ["512k", "1g"],
    "writesInFlight": [0, 65],
    "bucket_size": [0, 100_001, "100", 10.0, True],
    "priorities": [0, 11, -1, "3", 3.0, True],
    "shards": [0, 65, -1, "3", 3.0, True],
    "schedule_after": [-0.01, 86_401, "900", True, float("nan")],
    "schedule_period": [59.9, 86_401, "3600", True, float("nan")],
    "fairness": [-0.01, 0.51, 1, "0.1", float("nan"), float("inf"), True],
    "visibility_timeout": [0.09, 2_592_001, "30", "30s", float("nan"), True],
    "max_deliveries": [0, -1, 1 << 31, "5", True],
    "dead_letter_queue": ["", "a b", 5],
    "repair_timeout": [0.19, 86_401, "15"],
    "linger": [-0.001, 60.5, "1"],
    "gap_timeout": [0.09, 86_401, "1"],
    "dedup_window": [59.9, 2_592_001, "1h", float("nan"), True],
    "retention": [59.9, 34_560_001, "4d", float("nan"), True],
    "dead_letter_expired": ["yes", 1, 0.0],
}  # fmt: skip

NEEDS: dict[str, dict[str, str]] = {
    "batchId": {"sinkId": "s"},
    "username": {"password": "p"},
    "password": {"username": "u"},
    "sslCertFile": {"sslCaFile": "ca.pem"},
    "sslKeyFile": {"sslCaFile": "ca.pem", "sslCertFile": "client.pem"},
    "sslKeyPassword": {"sslCaFile": "ca.pem", "sslCertFile": "client.pem"},
}

PARSERS: dict[Scope, Callable[[dict[str, Any]], object]] = {
    Scope.CONNECTION: lambda given_: parse_connection({"contactPoints": "a", **given_}),
    Scope.SOURCE: lambda given_: parse_source({**HERE, **given_}),
    Scope.READ: lambda given_: parse_read({**HERE, **given_}),
    Scope.SINK: lambda given_: parse_sink({**HERE, **given_}),
    Scope.QUEUE: lambda given_: QueueSettings.parse(**given_),
}


def test_wrong_values_are_tried_for_every_option() -> None:
    assert {option.name for option in of(*PARSERS)} == WRONG.keys()


@pytest.mark.parametrize(
    ("option", "value"),
    [(option, value) for option in of(*PARSERS) for value in WRONG[option.name]],
    ids=lambda one: one.name if isinstance(one, Option) else type(one).__name__,
)
def test_a_value_out_of_range_is_refused_with_option_value_and_range(
    option: Option, value: object
) -> None:
    for scope in option.scopes:
        with pytest.raises(OptionInvalid) as refused:
            PARSERS[scope]({option.name: value})

        text = str(refused.value)
        is_keyword = scope in {Scope.CONNECTION, Scope.QUEUE}
        named = (Spelling.PYTHON if is_keyword else Spelling.SPARK).named(option.name, scope)
        assert text.startswith(f"[cassieq:option_invalid] {named} is")
        assert text.endswith(f", allowed: {option.values.allowed}")
        assert len(text) < 400


@pytest.mark.parametrize("option", of(*PARSERS), ids=lambda option: option.name)
def test_every_default_and_example_is_allowed(option: Option) -> None:
    shown = option.example if option.default is None else option.default
    if option.default is not None:
        assert option.default == option.values.parse(option.default) or option.unit == "bytes"
    # They stand in for the queue that each scope has here.
    instead = {"queue": None} if option.name in {"queues", "queuePattern"} else {}
    for scope in option.scopes:
        PARSERS[scope]({option.name: shown, **instead} | NEEDS.get(option.name, {}))


def test_names_are_unique_and_in_the_case_of_their_scope() -> None:
    names = [option.name.lower() for option in OPTIONS]

    assert len(set(names)) == len(names)
    assert all("_" not in option.name for option in OPTIONS if Scope.QUEUE not in option.scopes)
    assert all(option.name.islower() for option in of(Scope.QUEUE))


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("a", (("a", 9042),)),
        ("a:1", (("a", 1),)),
        (" a:1 , b ", (("a", 1), ("b", 9042))),
        ("cassandra-0.svc_x.local:65535", (("cassandra-0.svc_x.local", 65535),)),
        ("[::1]", (("::1", 9042),)),
        ("[2001:DB8::1]:19042,10.0.0.1", (("2001:db8::1", 19042), ("10.0.0.1", 9042))),
        ("[fe80::1%eth0]:1", (("fe80::1%eth0", 1),)),
        (["a:1", "b"], (("a", 1), ("b", 9042))),
        (("a",), (("a", 9042),)),
    ],
)
def test_contact_points(given_: object, expected: tuple[tuple[str, int], ...]) -> None:
    assert expected == contact_points().parse(given_)


hosts = st.from_regex(r"[a-z0-9]+([.-][a-z0-9]+){0,5}", fullmatch=True).filter(
    lambda host: max(map(len, host.split("."))) <= 63
)
ports = st.integers(1, 65_535)


@given(st.lists(st.tuples(hosts | st.ip_addresses().map(str), ports), min_size=1, max_size=5))
def test_contact_points_come_back_as_they_were_written(points: list[tuple[str, int]]) -> None:
    written = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in points]

    assert tuple(points) == contact_points().parse(written)
    assert tuple(points) == contact_points().parse(",".join(written))


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (30, 30.0),
        (0.25, 0.25),
        ("30", 30.0),
        ("0.25", 0.25),
        ("300ms", 0.3),
        ("30s", 30.0),
        (" 30 S ", 30.0),
        ("5m", 300.0),
        ("1.5h", 5_400.0),
        ("7d", 604_800.0),
        (timedelta(minutes=5), 300.0),
        (timedelta(microseconds=1), 0.000001),
        (0.1 + 0.2, 0.3),
    ],
)
def test_times(given_: object, expected: float) -> None:
    assert expected == seconds(0, 1e6).parse(given_)


def test_a_time_of_minus_nothing_is_nothing() -> None:
    assert "0.0" == str(seconds(0, 1).parse(-0.0))


@given(st.timedeltas(timedelta(0), timedelta(days=30)))
def test_a_time_is_the_same_however_it_is_written(time: timedelta) -> None:
    kind = seconds(0, 30 * 86_400)

    parsed = kind.parse(time)

    assert time == timedelta(microseconds=round(parsed * 1e6))
    assert parsed == kind.parse(time.total_seconds())
    assert parsed == kind.parse(f"{time / timedelta(microseconds=1) / 1000:.3f}ms")
    assert parsed == kind.parse(json.loads(json.dumps(parsed)))


@given(st.integers(1, 1 << 40))
def test_bytes_come_back_as_they_are_shown(number: int) -> None:
    assert number == size_bytes(1, 1 << 40).parse(show_bytes(number))


@given(st.integers(1, 30 * 86_400))
def test_times_come_back_as_they_are_shown(number: int) -> None:
    assert number == seconds(0, 30 * 86_400).parse(show_seconds(number))


@given(st.integers())
def test_whole_numbers_are_those_of_the_range(number: int) -> None:
    kind = whole(-5, 1 << 20)

    if -5 <= number <= 1 << 20:
        assert (
            number == kind.parse(number) == kind.parse(f" {number} ") == kind.parse(f"{number:+}")
        )
    else:
        for given_ in (number, str(number)):
            with pytest.raises(NotAllowed):
                kind.parse(given_)


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.text(alphabet="0123456789.:,[]-+ smhdkg", max_size=12),
    st.binary(),
    st.timedeltas(),
    st.lists(st.text(max_size=5) | st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@pytest.mark.parametrize("option", of(*PARSERS), ids=lambda option: option.name)
@given(value=anything)
@example(value="0\x1f")  # str.strip() strips it, int() does not
@example(value="[[")  # Python warns of this regular expression, and tests make errors of warnings
def test_whatever_is_given_parses_or_is_not_allowed(option: Option, value: object) -> None:
    try:
        parsed = option.values.parse(value)
    except NotAllowed:
        return
    # What was let through is a value of the option: it stays what it is.
    if option.name not in {"contactPoints", "queues"}:
        assert parsed == option.values.parse(parsed)


@pytest.mark.parametrize(
    "name", ["a", "A.b-c_9", "q" * 200, "acme/a", "a" * 64 + "/" + "q" * 200, "0/..", "a_-/b"]
)
def test_queue_names(name: str) -> None:
    assert name == queue_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "a b", "q" * 201, "ä", None, 5),
        # An account's part has at most 64 lower-case characters, and there is one "/" at most.
        *("/", "/a", "acme/", "a/b/c", "a//b", "../a", "./a", "-a/b", "_a/b", "Acme/a"),
        *("a" * 65 + "/b", "acme/" + "q" * 201, "a.b/c", "a /b", "a/b\n", "acme\\a", "acme%2Fa"),
    ],
)
def test_what_is_no_queue_name_is_refused(name: object) -> None:
    with pytest.raises(OptionInvalid, match="is not a queue name, allowed: 1 to 200 letters"):
        queue_name(name)


@pytest.mark.parametrize("name", ["a", "0", "acme", "a-b_c", "a" * 64])
def test_account_names(name: str) -> None:
    assert name == account_name(name)
    assert f"{name}/q" == queue_name(f"{name}/q")


@pytest.mark.parametrize(
    "name", ["", "-a", "_a", "A", "a.b", "a/b", "a" * 65, "ä", ".", "..", " a", "a\n", None, 5]
)
def test_what_is_no_name_of_an_account_is_refused(name: object) -> None:
    with pytest.raises(OptionInvalid, match="is not the name of an account, allowed: 1 to 64"):
        account_name(name)
    with pytest.raises(OptionInvalid):
        queue_name(f"{name}/q" if isinstance(name, str) else name)


def test_a_value_too_long_for_a_line_is_shown_in_short() -> None:
    for value, shown in (("q" * 10_000, "'qqq"), (10**5000, "a very large int")):
        with pytest.raises(OptionInvalid) as refused:
            queue_name(value)

        assert str(refused.value).startswith(f"[cassieq:option_invalid] {shown}")
        assert len(str(refused.value)) < 200
