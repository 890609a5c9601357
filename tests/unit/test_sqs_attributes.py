"""The attributes of the SQS door that need no queue: what has no effect is said once."""

from __future__ import annotations

from typing import cast

import pytest

from cassieq_spark.server.sqs import attributes
from cassieq_spark.server.sqs.call import Call

NO_CALL = cast("Call", None)


def test_the_log_says_once_that_an_attribute_has_no_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    attributes._say_once.cache_clear()
    for policy, key in (("", ""), ("{}", "a"), ('{"a": 1}', "b"), ("", "")):
        given = {"Policy": policy, "KmsMasterKeyId": key, "SqsManagedSseEnabled": "false"}
        attributes.changes_of(NO_CALL, given)

    assert [
        "attribute_without_effect attribute=Policy",
        "attribute_without_effect attribute=KmsMasterKeyId",
    ] == [record.getMessage() for record in caplog.records]
