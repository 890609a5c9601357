"""What `load()` refuses, when nobody knows yet whether it is a stream or a batch."""

from __future__ import annotations

from typing import Any

import pytest

from cassieq_spark.errors import OptionInvalid, OptionUnknown, UsageError
from cassieq_spark.options.option import did_you_mean
from cassieq_spark.options.parse import check_load

HERE = {"contactpoints": "127.0.0.1", "queue": "orders"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"maxmessagespertrigger": "5"},
        {"view": "leases"},
        {"pushfilters": "true"},
        {"queryname": "q", "checkpointlocation": "/c"},
    ],
)
def test_what_fits_a_stream_or_a_batch_passes(more: dict[str, str]) -> None:
    check_load({**HERE, **more})


def test_a_view_of_all_queues_needs_no_queue() -> None:
    check_load({"contactpoints": "127.0.0.1", "view": "stats"})


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        (
            {**HERE, "maxmesages": "1"},
            OptionUnknown,
            "'maxmesages' is not an option of the cassieq source or the cassieq batch reader. Did "
            "you mean 'maxMessagesPerTrigger'?",
        ),
        ({**HERE, "veiw": "dead"}, OptionUnknown, "Did you mean 'view'?"),
        ({**HERE, "sinkid": "s"}, OptionUnknown, "'sinkId' belongs to the cassieq sink"),
        (
            {**HERE, "maxmessagespertrigger": "many"},
            OptionInvalid,
            "option 'maxMessagesPerTrigger' of the cassieq source is 'many', allowed:",
        ),
        (
            {**HERE, "view": "messagse"},
            OptionInvalid,
            "option 'view' of the cassieq batch reader is 'messagse', allowed:",
        ),
        (
            {**HERE, "view": "dead", "maxmessagespertrigger": "5"},
            OptionUnknown,
            "'view' belongs to the cassieq batch reader: leave it out here",
        ),
        ({**HERE, "queues": "a, b"}, OptionInvalid, "options 'queue' and 'queues'"),
        ({"contactpoints": "127.0.0.1"}, OptionInvalid, "option 'queue' of the cassieq source"),
        ({"queue": "orders"}, OptionInvalid, "option 'contactPoints' of the cassieq source"),
        ({**HERE, "password": "p"}, OptionInvalid, "option 'password' is ***, but 'username' is"),
        ({**HERE, "path": "orders"}, OptionInvalid, "option 'path' is 'orders', but a path means"),
        ({**HERE, "paths": '["a"]'}, OptionInvalid, "option 'paths' is '[\"a\"]', but a path"),
    ],
)
def test_what_fits_neither_is_refused_by_name_value_and_combination(
    given: dict[str, Any], kind: type[UsageError], says: str
) -> None:
    with pytest.raises(kind) as refused:
        check_load(given)
    assert says in str(refused.value)


def test_a_near_name_is_suggested_whatever_its_case() -> None:
    assert " Did you mean 'Body'?" == did_you_mean("BODDY", ["tag", "Body"])
    assert "" == did_you_mean("nothing", ["tag", "body"])
