"""``cassieq account`` makes accounts and keys, and signs tokens.

It needs the extra ``accounts``, which is imported when a command needs it: `cassieq` runs without.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from cassieq_spark.cli.flags import Connected, Connection, Seconds, command
from cassieq_spark.cli.queue import Yes, make_sure
from cassieq_spark.cli.shell import Out, Printed, extra, print_note
from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import UsageError
from cassieq_spark.model.moments import show_time, time_of
from cassieq_spark.model.rights import LONGEST_TOKEN_S, Grant, Right, parse_grant
from cassieq_spark.options.values import Secret
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from cassieq_spark.accounts.admin import AccountAdmin, NewKey
    from cassieq_spark.accounts.keys import MasterKey

T = TypeVar("T")

app = typer.Typer(
    help="Create accounts for the HTTP gateway, make and disable their keys, and sign tokens.",
    no_args_is_help=True,
)

MASTER_KEY_VARIABLE: Final = "CASSIEQ_MASTER_KEY_FILE"

Account = Annotated[str, typer.Argument(metavar="ACCOUNT", help="The name of the account.")]
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="The access key id.")]
MasterKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--master-key-file",
        envvar=MASTER_KEY_VARIABLE,
        show_default=False,
        help="The file of the master key, under which secrets of keys are stored encrypted.",
    ),
]
Rights = Annotated[
    str,
    typer.Option(
        metavar="RIGHT,RIGHT",
        help="Rights: read, put, ack, update, info, create, purge, delete, redrive, admin; or all.",
    ),
]
Queues = Annotated[
    str,
    typer.Option(
        metavar="PATTERN,PATTERN",
        help="Names of queues, without the account. '*' is any characters, and '?' is one.",
    ),
]


@command(app, "master-key")
def master_key(printed: Printed, *, out: Path) -> None:
    """Make a file with a new master key, which only its owner can read.

    Args:
        out: The file to make. It must not exist.

    Example:
        cassieq account master-key --out master.key
    """
    with extra("accounts", "accounts need"):
        from cassieq_spark.accounts.keys import write_new  # noqa: PLC0415 - an extra
    write_new(out)
    printed.result({"master_key_file": str(out)})


@command(app)
def create(
    account: Account, connection: Connected, out: Printed, *, master_key_file: MasterKeyFile = None
) -> None:
    """Create an account, with a key that has all rights in it. Its secret is shown this once.

    Example:
        cassieq account create shop --master-key-file master.key
    """
    key = load_master_key(master_key_file)
    _print_key(_ask(connection, lambda accounts: accounts.create(account, key)), out)


@command(app, "list")
def list_accounts(connection: Connected, out: Printed) -> None:
    """List all accounts by name.

    Example:
        cassieq account list
    """
    found = _ask(connection, lambda accounts: accounts.all())
    shown = [
        {
            "account": one.name,
            "status": one.status.value,
            "keys": len(one.key_ids),
            "created_at": show_time(time_of(one.created_us)),
        }
        for one in found
    ]
    out.all(shown)


@command(app)
def keys(account: Account, connection: Connected, out: Printed) -> None:
    """List the keys of an account: their rights, and when they were last used.

    Example:
        cassieq account keys shop
    """
    found = _ask(connection, lambda accounts: accounts.keys(account))
    shown = [one.to_plain() for one in found]
    if not out.as_json:
        shown = [{**one, "grants": _in_words(one["grants"])} for one in shown]
    out.all(shown)


@command(app, "new-key")
def new_key(
    account: Account,
    connection: Connected,
    out: Printed,
    *,
    rights: Rights = "all",
    queues: Queues = "*",
    master_key_file: MasterKeyFile = None,
) -> None:
    """Make a further key of an account. The others stay valid. Its secret is shown this once.

    Example:
        cassieq account new-key shop --rights put,info --queues 'orders*'
    """
    grants = (_grant(rights, queues),)
    key = load_master_key(master_key_file)
    _print_key(_ask(connection, lambda accounts: accounts.new_key(account, grants, key)), out)


@command(app)
def rotate(
    account: Account,
    key_id: KeyId,
    connection: Connected,
    out: Printed,
    *,
    master_key_file: MasterKeyFile = None,
) -> None:
    """Make a key with the rights of another one, which stays valid until you delete it.

    Example:
        cassieq account rotate shop AKIDEXAMPLE
    """
    key = load_master_key(master_key_file)
    _print_key(_ask(connection, lambda accounts: accounts.rotate(account, key_id, key)), out)


_KeyFlag = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Only this key of the account.")
]


@command(app)
def disable(account: Account, connection: Connected, out: Printed, *, key: _KeyFlag = None) -> None:
    """Disable an account or one of its keys. Servers refuse it within ten seconds.

    Example:
        cassieq account disable shop --key AKIDEXAMPLE
    """
    _set_enabled(connection, account, key, out, is_enabled=False)


@command(app)
def enable(account: Account, connection: Connected, out: Printed, *, key: _KeyFlag = None) -> None:
    """Enable an account or one of its keys again.

    Example:
        cassieq account enable shop
    """
    _set_enabled(connection, account, key, out, is_enabled=True)


@command(app, "delete-key")
def delete_key(
    account: Account, key_id: KeyId, connection: Connected, out: Printed, *, yes: Yes = False
) -> None:
    """Delete a key for good. Servers refuse it within ten seconds.

    Example:
        cassieq account delete-key shop AKIDEXAMPLE --yes
    """
    make_sure(f"Delete key {key_id} of account {account!r}?", yes=yes)
    _ask(connection, lambda accounts: accounts.delete_key(account, key_id))
    out.result({"account": account, "access_key_id": key_id, "deleted": True})


@command(app)
def delete(
    account: Account,
    connection: Connected,
    out: Printed,
    *,
    with_queues: bool = False,
    yes: Yes = False,
) -> None:
    """Delete an account with its keys. If it has queues, this needs --with-queues.

    Args:
        with_queues: Delete its queues too, with all they hold.

    Example:
        cassieq account delete shop --with-queues
    """
    queues = _ask(connection, lambda accounts: accounts.queues(account)) if with_queues else []
    and_queues = f", {len(queues)} queues and all they hold" if queues else ""
    make_sure(f"Delete account {account!r} with its keys{and_queues}?", yes=yes)
    deleted = _ask(connection, lambda accounts: accounts.delete(account, with_queues=with_queues))
    out.result({"account": account, "deleted": True, "deleted_queues": deleted})


@command(app)
def sign(
    out: Printed,
    *,
    queue: Annotated[str, typer.Option(metavar="PATTERN,PATTERN")],
    rights: Rights,
    expires: Annotated[float, Seconds(1.0, LONGEST_TOKEN_S)] = 3_600.0,
    starts_in: Annotated[float, Seconds(0.0, LONGEST_TOKEN_S)] = 0.0,
) -> None:
    """Print a bearer token for some queues and rights. It needs no connection.

    The key is read from CASSIEQ_ACCESS_KEY_ID and CASSIEQ_SECRET_ACCESS_KEY, or from the variables
    of the same names that begin with AWS_. A token never allows more than its key does.

    Args:
        queue: Names of queues, without the account.
        expires: The time for which the token is valid.
        starts_in: The time from now until the token becomes valid.

    Example:
        cassieq account sign --queue 'orders*' --rights put --expires 8h
    """
    grants = (_grant(rights, queue),)
    key_id, secret = _own_key()
    with extra("accounts", "accounts need"):
        from cassieq_spark.accounts import tokens  # noqa: PLC0415 - an extra
    begins_us = SystemClock().now_us() + round(starts_in * 1e6)
    ends_us = begins_us + round(expires * 1e6)
    token = tokens.sign(key_id, secret, grants, begins_us=begins_us, ends_us=ends_us)
    # Alone, as a text: it goes into a variable of the shell.
    out.lines([{"token": token, "expires_at": show_time(time_of(ends_us))}], [token])


def load_master_key(path: Path | None) -> MasterKey:
    """Read the master key that a command was given.

    Raises:
        UsageError: None was given, or the extra is not installed.
        MasterKeyInvalid: The file cannot be used.
    """
    with extra("accounts", "accounts need"):
        from cassieq_spark.accounts.keys import MasterKey  # noqa: PLC0415 - an extra
    if path is None:
        raise UsageError(
            "no master key: secrets of keys are stored encrypted under one. Give "
            f"--master-key-file FILE, or set {MASTER_KEY_VARIABLE}. To make the file, run: "
            "cassieq account master-key --out FILE"
        )
    return MasterKey.load(path)


def _ask(connection: Connection, call: Callable[[AccountAdmin], Coroutine[Any, Any, T]]) -> T:
    with extra("accounts", "accounts need"):
        from cassieq_spark.accounts.admin import AccountAdmin  # noqa: PLC0415 - an extra
    with connection.open() as client:
        return portal.run(call(AccountAdmin(client.store)))


def _set_enabled(
    connection: Connected, account: str, key: str | None, out: Out, *, is_enabled: bool
) -> None:
    _ask(
        connection,
        lambda accounts: accounts.set_enabled(account, is_enabled=is_enabled, key_id=key),
    )
    named = {"account": account} if key is None else {"account": account, "access_key_id": key}
    out.result({**named, "enabled": is_enabled})


def _own_key() -> tuple[str, Secret]:
    for prefix in ("CASSIEQ", "AWS"):
        key_id = os.environ.get(f"{prefix}_ACCESS_KEY_ID")
        secret = os.environ.get(f"{prefix}_SECRET_ACCESS_KEY")
        if key_id and secret:
            return key_id, Secret(secret)
    raise UsageError(
        "no key to sign with. Set CASSIEQ_ACCESS_KEY_ID and CASSIEQ_SECRET_ACCESS_KEY; secrets "
        "have no flag, because everybody on a machine can read its processes' arguments"
    )


def _grant(rights: str, queues: str) -> Grant:

    wanted = [right.value for right in Right] if rights.strip() == "all" else rights.split(",")
    return parse_grant([one.strip() for one in wanted], [one.strip() for one in queues.split(",")])


def _in_words(grants: list[dict[str, list[str]]]) -> str:
    return "; ".join(f"{','.join(one['rights'])} on {','.join(one['queues'])}" for one in grants)


def _print_key(key: NewKey, out: Out) -> None:
    result = {
        "account": key.account,
        "access_key_id": key.key_id,
        "secret_access_key": key.secret.reveal(),
    }
    out.result(result)
    if not out.as_json:
        print_note("Keep the secret now: it is not shown again.")
