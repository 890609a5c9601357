"""The examples of the guide to REST run as they stand, but for the address and the queue."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.server.conftest import Gateway

EXAMPLE = re.compile(r"<!-- example:begin -->\n```sh\n(.*?)```\n<!-- example:end -->", re.DOTALL)


def test_the_guides_commands_put_lease_and_ack(
    pytestconfig: pytest.Config,
    gateway: Gateway,
    rest: httpx.Client,
    name: str,
    tmp_path: Path,
) -> None:
    bash = shutil.which("bash")
    if bash is None or shutil.which("curl") is None:
        pytest.skip("needs bash and curl")
    found = EXAMPLE.search((pytestconfig.rootpath / "docs" / "guides" / "rest.md").read_text())
    assert found is not None
    script = found[1]
    for old, new in {"http://127.0.0.1:8080": gateway.url, "/orders": f"/{name}"}.items():
        assert old in script
        script = script.replace(old, new)

    ended = subprocess.run(
        [bash, "-euc", script.replace("curl ", "curl --silent --show-error -w '\\n' ", )],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120,
    )  # fmt: skip

    assert (0, "") == (ended.returncode, ended.stderr)
    created, put, acked, batch, leased, counts = ended.stdout.splitlines()
    assert {"owner": "shop"} == json.loads(created)["labels"]
    assert json.loads(put)["message_id"]
    assert "" == acked
    assert b"one order" == (tmp_path / "order").read_bytes()
    assert 2 == len(json.loads(batch)["results"])
    assert ["two"] == [one["body"] for one in json.loads(leased)["messages"]]
    found_counts = json.loads(counts)
    assert (1, 1) == (found_counts["in_flight"], found_counts["scheduled"])
    rest.delete(f"/queues/{name}")
