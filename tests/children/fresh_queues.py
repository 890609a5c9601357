"""A plugin of pytest for another project's tests: no queue is left when a test begins.

Moto's server forgets everything between tests. A queue of the gateway stays, so it is deleted here.
"""

from __future__ import annotations

import os
import re
from typing import Any

import boto3
import moto.core
import pytest

NUMBER = "000000000000"
"""The number of the only account that a gateway without accounts has."""

moto.core.DEFAULT_ACCOUNT_ID = NUMBER


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> str | None:
    """Answer for ``account_id``, which asks another service of AWS."""
    if fixturedef.argname != "account_id":
        return None
    fixturedef.cached_result = (NUMBER, fixturedef.cache_key(request), None)
    return NUMBER


@pytest.fixture(autouse=True)
def _no_queues() -> None:
    url = os.environ["TEST_SERVER_MODE_ENDPOINT"]
    key = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    client = boto3.client("sqs", region_name="us-east-1", endpoint_url=url, **key)
    for queue in client.list_queues().get("QueueUrls", []):
        client.delete_queue(QueueUrl=re.sub("^https?://[^/]+", url, queue))
    client.close()
