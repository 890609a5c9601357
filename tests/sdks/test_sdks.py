"""Programs by other SDKs of AWS, as their users write them, and the AWS CLI.

Each program checks for itself what it gets, and ends with 0 if all is as with Amazon SQS. A program
is skipped if its language, or a package that it needs, is not to be had.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from cassieq_spark.embedded.software import Program, find_java, jars_of
from cassieq_spark.errors import CassieqError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.accounts import Account
    from tests.server.conftest import Gateway

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

HERE: Final = Path(__file__).parent
JAVA_SDK: Final = Program(
    title="AWS-SDK",
    organisation="software.amazon.awssdk",
    module="sqs",
    version="2.57.8",
    megabytes=30,
)
CLI: Final = "awscli==1.46.3"
GO: Final = "/usr/local/go/bin"
"""Where Go's own packages install it, without a change of PATH."""


def tool(name: str, path: str | None = None) -> str:
    """A program of this machine, or a skip that says which one is missing."""
    found = shutil.which(name) or shutil.which(name, path=path or os.defpath)
    return found or pytest.skip(f"needs {name}, which is not on PATH")


def fetch(command: list[str], directory: Path) -> None:
    """Run what fetches packages, or skip with what it said."""
    ended = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=False, timeout=600
    )
    if ended.returncode != 0:
        pytest.skip(f"packages cannot be had: {(ended.stderr or ended.stdout)[-300:]}")


def node(directory: Path) -> list[str]:
    shutil.copytree(HERE / "node", directory, dirs_exist_ok=True)
    fetch([tool("npm"), "ci", "--silent"], directory)
    return [tool("node"), str(directory / "queue.mjs")]


def go(directory: Path) -> list[str]:
    go, program = tool("go", GO), directory / "queues"
    shutil.copytree(HERE / "go", directory, dirs_exist_ok=True)
    fetch([go, "mod", "download"], directory)
    subprocess.run([go, "build", "-o", str(program), "."], cwd=directory, check=True, timeout=800)
    return [str(program)]


def java(directory: Path) -> list[str]:  # noqa: ARG001 - it writes no file
    try:
        found = find_java()
        jars = jars_of(JAVA_SDK, found)
    except CassieqError as error:
        pytest.skip(str(error).partition(" Check that")[0])
    command = str(found.executable)
    modules = subprocess.run(
        [command, "--list-modules"], capture_output=True, text=True, check=True
    )
    if "jdk.compiler@" not in modules.stdout:
        pytest.skip(f"needs a JDK, and {command} has no compiler")
    return [command, "-cp", f"{jars}/*", str(HERE / "java" / "Queues.java")]


PROGRAMS: Final[dict[str, Callable[[Path], list[str]]]] = {"node": node, "go": go, "java": java}


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of a program, which is built, with the packages that it needs."""
    return PROGRAMS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(params=["unsigned", "accounts"])
def door(
    request: pytest.FixtureRequest,
    unsigned_door: Gateway,
    accounts_door: Gateway,
    account: Account,
    tmp_path: Path,
) -> tuple[str, dict[str, str]]:
    """Where a gateway is, and the environment of its clients: a key, if it checks accounts."""
    is_signed = request.param == "accounts"
    url = (accounts_door if is_signed else unsigned_door).url
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    return url, {
        **{key: text for key, text in os.environ.items() if not key.startswith("AWS_")},
        **(dict(zip(names, account.key, strict=True)) if is_signed else {}),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_PAGER": "",
    }


def test_a_program_finds_all_as_with_amazon_sqs(
    program: list[str], door: tuple[str, dict[str, str]], name: str
) -> None:
    url, environment = door
    ended = subprocess.run(
        [*program, url, name[-60:]],
        env=environment, capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert 0 == ended.returncode, f"{ended.stdout[-1_000:]}\n{ended.stderr[-4_000:]}"


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The AWS CLI, in an environment of its own: it names the versions of all that it needs."""
    directory = tmp_path_factory.mktemp("aws")
    fetch([sys.executable, "-m", "venv", "."], directory)
    fetch(["bin/python", "-m", "pip", "install", "--quiet", CLI], directory)
    return str(directory / "bin" / "aws")


def test_the_cli_finds_nothing_to_change_when_it_runs_again(
    aws: str, door: tuple[str, dict[str, str]], name: str
) -> None:
    endpoint, environment = door
    sign = () if "AWS_ACCESS_KEY_ID" in environment else ("--no-sign-request",)

    def run(verb: str, *arguments: str, fails: bool = False) -> Any:
        ended = subprocess.run(
            [aws, "--endpoint-url", endpoint, *sign, "sqs", verb, *arguments],
            env=environment, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert fails == (ended.returncode != 0), ended.stderr
        if fails:
            return ended.stderr
        return json.loads(ended.stdout) if ended.stdout.strip() else {}

    def queue(letter: str, attributes: dict[str, str]) -> tuple[str, dict[str, str]]:
        """Bring a queue to what is wanted, as a script does that may run at any time."""
        given = ("--queue-name", f"{name[-60:]}-{letter}")
        tags = json.dumps({"team": "a", "cost-centre": "7"})
        wanted = ("--attributes", json.dumps(attributes), "--tags", tags)
        url = run("create-queue", *given, *wanted)["QueueUrl"]
        assert url == run("get-queue-url", *given)["QueueUrl"]
        run("set-queue-attributes", "--queue-url", url, "--attributes", json.dumps(attributes))
        run("tag-queue", "--queue-url", url, "--tags", tags)
        assert json.loads(tags) == run("list-queue-tags", "--queue-url", url)["Tags"]
        found = run("get-queue-attributes", "--queue-url", url, "--attribute-names", "All")
        return url, {
            key: text for key, text in found["Attributes"].items() if key != "LastModifiedTimestamp"
        }

    def queues() -> tuple[str, str, list[dict[str, str]]]:
        dead, dead_attributes = queue("dead", {"KmsMasterKeyId": "alias/aws/sqs"})
        policy = {"deadLetterTargetArn": dead_attributes["QueueArn"], "maxReceiveCount": "4"}
        statement = {"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "*"}
        url, attributes = queue(
            "a",
            {
                "RedrivePolicy": json.dumps(policy),
                "Policy": json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
                "SqsManagedSseEnabled": "true",
                "VisibilityTimeout": "60",
            },
        )
        return url, dead, [attributes, dead_attributes]

    first = queues()
    assert first == queues()

    url, dead, _ = first
    body, attribute = "Grüße, 世界", {"n": {"DataType": "Number", "StringValue": "7"}}
    more = ("--message-attributes", json.dumps(attribute))
    sent = run("send-message", "--queue-url", url, "--message-body", body, *more)
    asked = ("--wait-time-seconds", "5", "--message-attribute-names", "All")
    (got,) = run("receive-message", "--queue-url", url, *asked)["Messages"]
    assert (sent["MessageId"], body, attribute) == (
        got["MessageId"], got["Body"], got["MessageAttributes"]
    )  # fmt: skip
    run("delete-message", "--queue-url", url, "--receipt-handle", got["ReceiptHandle"])
    assert {} == run("receive-message", "--queue-url", url)
    for one in (url, dead):
        run("delete-queue", "--queue-url", one)
    assert "NonExistentQueue" in run("purge-queue", "--queue-url", url, fails=True)
