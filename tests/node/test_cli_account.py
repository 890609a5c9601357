"""``cassieq account ...`` on the real node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.accounts.authenticator import Authenticator
from cassieq_spark.accounts.keys import MasterKey
from cassieq_spark.entropy import new_uuid
from cassieq_spark.model.rights import Right
from tests.fixtures.accounts import shower
from tests.fixtures.commands import CommandLine, end

if TYPE_CHECKING:
    from pathlib import Path

    from cassieq_spark.testing import EmbeddedCassandra


@pytest.fixture
def cli(cassandra: EmbeddedCassandra, client: cassieq.Client, tmp_path: Path) -> CommandLine:
    """With a master key in its environment, and the tables made."""
    assert client.queues() is not None
    found = CommandLine(cassandra.contact_points)
    master = tmp_path / "master.key"
    made = found("account", "master-key", "--out", str(master), "--json")
    assert (0, {"master_key_file": str(master)}) == (made.code, made.object)
    assert 0o600 == master.stat().st_mode & 0o777
    found.variables["CASSIEQ_MASTER_KEY_FILE"] = str(master)
    return found


@pytest.fixture
def name() -> str:
    return f"acme-{new_uuid().hex[:12]}"


def test_create_prints_one_object_with_a_key_that_has_all_rights(
    cli: CommandLine, client: cassieq.Client, name: str
) -> None:
    made = end(cli.start("account", "create", name, "--json"))

    assert 0 == made.code, made.err
    assert {"account", "access_key_id", "secret_access_key"} == made.object.keys()
    assert 40 == len(made.object["secret_access_key"])
    again = cli("account", "create", name, "--json")
    assert (1, "") == (again.code, again.out)
    assert again.err.startswith("[cassieq:account_exists] ")
    (key,) = cli("account", "keys", name, "--json").objects
    assert (made.object["access_key_id"], "active") == (key["access_key_id"], key["status"])
    # ``delete`` includes ``purge``, which older gateways would refuse to read.
    assert {"rights": sorted({*Right} - {Right.PURGE}), "queues": ["*"]} == key["grants"][0]
    assert made.object["secret_access_key"] not in cli("account", "keys", name).out
    assert name in {one["account"] for one in cli("account", "list", "--json").objects}
    assert name in cli("account", "list").out
    assert client.datacenter


def test_a_token_is_signed_without_a_connection(
    cli: CommandLine, client: cassieq.Client, name: str
) -> None:
    key = cli("account", "create", name, "--json").object
    for prefix in ("CASSIEQ", "AWS"):
        alone = CommandLine("127.0.0.1:1")
        alone.variables[f"{prefix}_ACCESS_KEY_ID"] = key["access_key_id"]
        alone.variables[f"{prefix}_SECRET_ACCESS_KEY"] = key["secret_access_key"]
        signed = alone(
            *("account", "sign", "--queue", "orders", "--rights", "read,ack", "--expires", "1h"),
            "--json",
        )
        assert 0 == signed.code, signed.err
        master = MasterKey.load(cli.variables["CASSIEQ_MASTER_KEY_FILE"])
        who = shower(Authenticator(client.store, master), signed.object["token"])
        assert who.may(Right.READ, f"{name}/orders")
        assert not who.may(Right.PUT, f"{name}/orders")
        assert not who.may(Right.READ, f"{name}/others")
        assert key["secret_access_key"] not in signed.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--rights", "reed", "--queue", "a"), "'reed' is not a right"),
        (("--rights", "read", "--queue", "a/b"), "'a/b' is not a pattern"),
        (("--rights", "read", "--queue", "a", "--expires", "0"), "--expires is '0'"),
        (("--rights", "read", "--queue", "a", "--expires", "soon"), "--expires is 'soon'"),
        (("--rights", "read", "--queue", "a", "--expires", "366d"), "--expires is '366d'"),
        (("--rights", "read", "--queue", "a"), "no key to sign with"),
    ],
)
def test_what_cannot_be_signed_is_a_usage_error(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], told: str
) -> None:
    for variable in ("CASSIEQ_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(variable, raising=False)
    ended = cli("account", "sign", *arguments)
    assert (2, "") == (ended.code, ended.out)
    assert told in ended.err


def test_keys_are_made_rotated_disabled_and_deleted(cli: CommandLine, name: str) -> None:
    first = cli("account", "create", name, "--json").object["access_key_id"]
    made = cli(
        *("account", "new-key", name, "--rights", "put", "--queues", "in-*,orders", "--json")
    ).object["access_key_id"]
    rotated = cli("account", "rotate", name, made)
    assert 0 == rotated.code
    assert "not shown again" in rotated.err
    found = cli("account", "keys", name, "--json").objects
    assert [["put"], ["put"]] == [one["grants"][0]["rights"] for one in found[1:]]
    assert "put on in-*,orders" in cli("account", "keys", name).out

    assert {"account": name, "access_key_id": made, "enabled": False} == cli(
        "account", "disable", name, "--key", made, "--json"
    ).object
    statuses = [one["status"] for one in cli("account", "keys", name, "--json").objects]
    assert ["active", "disabled", "active"] == statuses
    assert 0 == cli("account", "enable", name, "--key", made).code
    assert 2 == cli("account", "delete-key", name, made).code  # nobody to ask
    assert 0 == cli("account", "delete-key", name, made, "--yes").code
    assert 1 == cli("account", "delete-key", name, made, "--yes").code
    assert first in cli("account", "keys", name).out
    assert 0 == cli("account", "disable", name).code
    (listed,) = (one for one in cli("account", "list", "--json").objects if one["account"] == name)
    assert ("disabled", 2) == (listed["status"], listed["keys"])


def test_an_account_with_queues_is_deleted_with_them_only_if_that_is_said(
    cli: CommandLine, name: str
) -> None:
    cli("account", "create", name)
    assert 0 == cli("queue", "create", f"{name}/orders").code
    assert 0 == cli("put", f"{name}/orders", "hello").code
    assert "hello" in cli("get", f"{name}/orders", "--ack").out
    refused = cli("account", "delete", name, "--yes")
    assert (1, "") == (refused.code, refused.out)
    assert refused.err.startswith("[cassieq:account_in_use] ")
    unasked = cli("account", "delete", name, "--with-queues")
    assert 2 == unasked.code
    assert "1 queues and all they hold" in unasked.err
    deleted = cli("account", "delete", name, "--with-queues", "--yes", "--json")
    assert {"account": name, "deleted": True, "deleted_queues": 1} == json.loads(deleted.out)
    assert f"{name}/orders" not in cli("queue", "list").out


def test_without_a_master_key_or_with_one_that_others_can_read_no_account_is_made(
    cli: CommandLine, name: str, tmp_path: Path
) -> None:
    del cli.variables["CASSIEQ_MASTER_KEY_FILE"]
    missing = cli("account", "create", name)
    assert 2 == missing.code
    assert "--master-key-file FILE" in missing.err
    (tmp_path / "master.key").chmod(0o644)
    open_ = cli("account", "create", name, "--master-key-file", str(tmp_path / "master.key"))
    assert 1 == open_.code
    assert "chmod 600" in open_.err
    again = cli("account", "master-key", "--out", str(tmp_path / "master.key"))
    assert 1 == again.code
    assert name not in cli("account", "list").out
