"""The SQS door by moto's own SQS tests, from moto's package: the gateway in place of its server."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import cassieq_spark as cassieq
from cassieq_spark.entropy import new_uuid
from cassieq_spark.testing import EmbeddedCassandra
from tests.fixtures.commands import CommandLine
from tests.server.conftest import start_gateway

CHILDREN = Path(__file__).resolve().parents[1] / "children"
FILES = ("test_sqs.py", "test_sqs_message_attributes.py")
"""The files about SQS alone. Others need moto's Lambda, CloudFormation, IAM, or its web app."""

NEEDED = "freezegun"
"""What they import, and is not installed with moto."""

DIFFERS = {
    "There are no FIFO queues: their names are refused.": """
        create_fifo_queue create_fifo_queue_fail create_fifo_queue_with_dlq
        create_fifo_queue_with_high_throughput create_queue_with_different_attributes_fail
        dedupe_fifo fifo_dedupe_error_no_message_dedupe_id
        fifo_dedupe_error_no_message_dedupe_id_batch fifo_dedupe_error_no_message_group_id
        fifo_queue_deduplication_with_id fifo_queue_deduplication_withoutid
        fifo_queue_send_deduplicationid_same_as_sha256_of_old_message fifo_send_message_batch
        fifo_send_message_when_same_group_id_is_in_dlq
        fifo_send_receive_message_with_attribute_name
        get_queue_attributes_template_response_validation
        message_system_attributes_contains_all_attributes
        message_system_attributes_contains_system_attribute permissions
        purge_queue_before_delete_message receive_messages_with_message_group_id
        receive_messages_with_message_group_id_on_requeue send_message_delay_seconds_validation
        send_message_to_fifo_without_message_group_id send_message_with_message_group_id
        send_messages_to_fifo_without_message_group_id tags""",
    "Deduplication ids are refused, as these queues are no FIFO queues.": """
        message_delay_is_more_than_15_minutes""",
    "Permissions are not supported, and refused by name.": """
        add_permission_errors remove_permission_errors""",
    "The attribute that is set is named 'VisibilityTimeout ', with a space, which is unknown.": """
        change_message_visibility delete_batch_operation delete_message_after_visibility_timeout
        message_becomes_inflight_when_received queue_length
        receive_message_with_explicit_visibility_timeout""",
    "The text of an error says more.": """
        change_message_visibility_on_unknown_receipt_handle
        delete_message_batch_with_invalid_receipt_id delete_message_errors
        message_with_attributes_invalid_datatype message_with_invalid_attributes""",
    "A retention has 60 seconds or more, as AWS has it.": "message_retention_period",
    "A receipt of an earlier delivery deletes and changes nothing.": """
        delete_message_using_old_receipt_handle""",
    "Moto's address is a constant in the test.": """
        create_queues_in_multiple_region get_queue_with_prefix""",
    "A queue's URL is an address, and a name alone is none.": """
        get_queue_url_error_not_exists receive_message_using_name_should_return_name_as_url""",
}
"""Tests that must fail, by the reason. One that passes must go from the table, too."""

TOO_SOON = """
    batch_change_message_visibility_on_old_message change_message_visibility_on_old_message
    change_message_visibility_on_visible_message
    receive_message_that_becomes_visible_while_long_polling
"""
"""Tests that may fail: they wait a tenth of a second longer than a lease of one second, or for one
second more. A lease ends a quarter of a second late, and a long poll looks only now and then."""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests of the moto that is installed, from its source distribution."""
    directory = tmp_path_factory.mktemp("moto")
    wanted = f"moto=={version('moto')}"
    sources = ["download", "--no-deps", "--no-binary", "moto", "--dest", str(directory), wanted]
    needed = ["install", "--target", str(directory / NEEDED), NEEDED]
    for arguments in (sources, needed):
        ended = subprocess.run(
            [sys.executable, "-m", "pip", *arguments, "--quiet"],
            capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        if ended.returncode != 0:
            last = (ended.stderr.strip() or f"code {ended.returncode}").splitlines()[-1]
            pytest.skip(f"the tests of {wanted} cannot be had: {last}")
    found = list(directory.glob("moto-*.tar.gz"))
    with tarfile.open(found[0]) as archive:
        if hasattr(tarfile, "data_filter"):  # Python has filters since 3.11.4 only
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(directory)  # noqa: S202
    (root,) = directory.glob("moto-*/")
    return root


@pytest.fixture(scope="module")
def endpoint(cassandra: EmbeddedCassandra) -> Iterator[str]:
    """A gateway with a keyspace of its own: every test begins without queues."""
    keyspace = f"moto_{new_uuid().hex[:12]}"
    with cassieq.connect(cassandra.contact_points, keyspace=keyspace) as client:
        client.bootstrap()
    gateway = start_gateway(CommandLine(cassandra.contact_points, keyspace=keyspace), "--no-repair")
    try:
        gateway.wait_until_ready()
        yield gateway.url
    finally:
        gateway.kill()
        for stream in (gateway.process.stdout, gateway.process.stderr):
            assert stream is not None
            stream.close()


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_motos_own_sqs_tests_pass_but_those_that_are_listed(
    suite: Path, endpoint: str, tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    environment = {
        **os.environ,
        "TEST_SERVER_MODE": "true",
        "TEST_SERVER_MODE_ENDPOINT": endpoint,
        "MOTO_CALL_RESET_API": "false",
        "PYTHONPATH": os.pathsep.join([str(suite), str(suite.parent / NEEDED), str(CHILDREN)]),
    }
    ended = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "--tb=line", "--timeout=60",
            "-p", "fresh_queues", "-p", "no:cacheprovider", "--rootdir", str(suite),
            f"--junitxml={report}", *(f"tests/test_sqs/{name}" for name in FILES),
        ],
        cwd=suite, env=environment, capture_output=True, text=True, check=False, timeout=1_100,
    )  # fmt: skip
    assert ended.returncode in (0, 1), ended.stdout[-3_000:] + ended.stderr[-3_000:]
    passed, failed = set[str](), dict[str, str]()
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - our own
        name = case.attrib["name"].removeprefix("test_").partition("[")[0]
        if problems := [*case.iter("failure"), *case.iter("error")]:
            failed[name] = problems[0].attrib["message"]
        elif case.find("skipped") is None:
            passed.add(name)
    expected = {name for names in DIFFERS.values() for name in names.split()}
    surprises = (failed.keys() ^ expected) - set(TOO_SOON.split())
    assert {} == {name: failed.get(name, "it passes") for name in surprises}
    assert expected.isdisjoint(passed), "all of its cases differ"
    assert len(passed) > 60
