"""The SQS door by AWS's SDK for JavaScript; the same program runs against moto's server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.accounts import Account
from tests.server.conftest import Gateway
from tests.server.test_sqs import moto

__all__ = ["moto"]  # a fixture

OLDEST_NODE = 20
PROGRAM = Path(__file__).parent / "javascript"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with the packages that it needs."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("needs Node.js with npm")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.strip().removeprefix("v").partition(".")[0]) < OLDEST_NODE:
        pytest.skip(f"the SDK needs Node.js {OLDEST_NODE} or later, and this is {version}")
    directory = tmp_path_factory.mktemp("javascript")
    shutil.copytree(PROGRAM, directory, dirs_exist_ok=True)
    ended = subprocess.run(
        [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent"],
        cwd=directory, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    if ended.returncode != 0:
        pytest.skip(f"npm cannot install the SDK: {(ended.stderr or ended.stdout)[-300:]}")
    return directory


def said_by(program: Path, url: str, name: str, key: tuple[str, str]) -> dict[str, Any]:
    credentials = dict(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), key, strict=True))
    ended = subprocess.run(
        ["node", "sqs.mjs", url, name],  # noqa: S607 - wherever it is
        cwd=program, env={**os.environ, **credentials}, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert 0 == ended.returncode, ended.stderr[-3_000:]
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.fixture(params=["ours", "accounts", "moto"])
def server(
    request: pytest.FixtureRequest, gateway: Gateway, guarded: Gateway, account: Account, moto: str
) -> tuple[str, tuple[str, str]]:
    """Where it is, and a key for it."""
    nobodys = ("key", "secret")
    found = {
        "ours": (gateway.url, nobodys),
        "accounts": (guarded.url, account.key),
        "moto": (moto, nobodys),
    }
    return found[request.param]


def test_a_program_in_javascript_sends_receives_and_deletes(
    program: Path, server: tuple[str, tuple[str, str]], name: str
) -> None:
    url, key = server

    said = said_by(program, url, name[-60:], key)

    assert said.pop("first") == {
        "body": "one \u00e9 \U0001f600",
        "text": "t",
        "number": {"DataType": "Number.int", "StringValue": "7"},
        "bytes": [0, 255, 7],
        "receives": "1",
    }
    assert {
        "sameUrl": True,
        "again": [True, "2"],
        "sent": [10, 0],
        "bodies": [f"m-{at}" for at in range(10)],
        "deleted": [10, 0],
        "left": 0,
        "attributes": ["5", "0"],
        "pages": [["-a", "-b"], ["-c"]],
        "noQueue": {"name": "QueueDoesNotExist", "status": 400},
        "noReceipt": {"name": "ReceiptHandleIsInvalid", "status": 400},
    } == {name: value for name, value in said.items() if name != "tooLong"}
    # AWS answers "InvalidParameterValue", for which the SDK has no class of its own.
    assert 400 == said["tooLong"]["status"]
