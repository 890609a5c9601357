"""The SQS door with accounts: who is let in, what a key may do, and what it never reaches."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

import cassieq_spark as cassieq
from cassieq_spark.accounts.admin import AccountAdmin
from cassieq_spark.entropy import new_uuid
from cassieq_spark.server.sqs.call import number_of
from cassieq_spark.store import portal
from cassieq_spark.testing import EmbeddedCassandra, wait_until
from tests.fixtures.accounts import Account, arn_of, pair, refusal, signed
from tests.fixtures.certificates import Authority
from tests.fixtures.commands import CommandLine
from tests.server.conftest import Gateway, sqs_at


@pytest.fixture
def url(acme: Any) -> str:
    found: str = acme.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "60"})[
        "QueueUrl"
    ]
    return found


def fetch(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - the gateway's own
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_a_key_sends_receives_and_deletes_in_its_account(
    client: cassieq.Client, account: Account, acme: Any, url: str
) -> None:
    assert f"/{number_of(account.name)}/orders" == urlsplit(url).path
    acme.send_message(QueueUrl=url, MessageBody="one")
    (message,) = acme.receive_message(
        QueueUrl=url, WaitTimeSeconds=5, MessageSystemAttributeNames=["SenderId"]
    )["Messages"]
    assert ("one", number_of(account.name)) == (message["Body"], message["Attributes"]["SenderId"])
    acme.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    assert [url] == acme.list_queues()["QueueUrls"]
    assert url == acme.get_queue_url(QueueName="orders")["QueueUrl"]
    assert f"arn:aws:sqs:eu-central-1:{number_of(account.name)}:orders" == arn_of(acme, url)
    queue = client.queue(f"{account.name}/orders")
    assert 0 == queue.stats().visible


@pytest.mark.parametrize(
    ("key_id", "secret", "expected"),
    [
        (None, "w" * 40, (403, "SignatureDoesNotMatch")),
        ("CQAKAAAAAAAAAAAAAAAA", None, (403, "InvalidClientTokenId")),
        ("AKIAIOSFODNN7EXAMPLE", None, (403, "InvalidClientTokenId")),
        ("x/../y", None, (400, "IncompleteSignature")),
    ],
)
def test_whoever_is_not_known_is_refused(
    guarded: Gateway,
    account: Account,
    key_id: str | None,
    secret: str | None,
    expected: tuple[int, str],
) -> None:
    own_id, own_secret = account.key
    sqs = sqs_at(guarded.url, key=(key_id or own_id, secret or own_secret))
    *found, text = refusal(sqs.list_queues)
    assert [*expected] == found
    assert own_secret not in text


def test_health_needs_no_key_and_the_start_says_that_requests_do(guarded: Gateway) -> None:
    assert (200, 200) == (guarded.status("/healthz"), guarded.status("/readyz"))
    (line,) = guarded.said
    assert "Requests need a key of an account" in line


def test_a_presigned_url_does_one_thing_for_whoever_has_it(
    guarded: Gateway, account: Account, acme: Any, url: str
) -> None:
    fields = [("Action", "SendMessage"), ("QueueUrl", url), ("MessageBody", "by-url")]
    given = signed(account.key, guarded.url, fields, presigned_for_s=60).url
    assert (200, 200) == (fetch(given)[0], fetch(given)[0])  # again, as AWS has it
    (message,) = acme.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert "by-url" == message["Body"]

    status, body = fetch(given.replace("by-url", "altered"))
    assert 403 == status
    assert b"SignatureDoesNotMatch" in body


def test_curl_and_tokens(
    guarded: Gateway, account: Account, client: cassieq.Client, acme: Any, url: str
) -> None:
    acme.send_message(QueueUrl=url, MessageBody="for the token")
    token = account.token("read,ack", "orders", now_us=client.now_us())

    def ask(action: str, shown: str = token) -> tuple[int, bytes]:
        status, _, body = guarded.ask(
            "POST",
            "/",
            f"Action={action}&QueueUrl={url}&MessageBody=x&WaitTimeSeconds=5".encode(),
            {"Authorization": f"Bearer {shown}"},
        )
        return status, body

    assert 200 == ask("ReceiveMessage")[0]
    status, body = ask("SendMessage")
    assert 403 == status
    assert b"lacks the right 'put'" in body.replace(b"&#x27;", b"'")
    past = account.token("read", now_us=client.now_us() - 10**9, lasts_us=10**6)
    assert (400, True) == (ask("ReceiveMessage", past)[0], b"Expired" in ask("x", past)[1])
    status, body = ask("ReceiveMessage", token[:-3] + "AAA")
    assert (403, True) == (status, b"InvalidClientTokenId" in body)


def test_what_is_too_old_or_proved_twice_is_refused(
    guarded: Gateway, account: Account, client: cassieq.Client
) -> None:
    fields = [("Action", "ListQueues")]
    short = str(signed(account.key, guarded.url, fields, presigned_for_s=1).url)
    wait_until(lambda: fetch(short)[0] == 400, deadline_s=30)
    assert b"<Code>RequestExpired</Code>" in fetch(short)[1]

    made = signed(account.key, guarded.url, fields)
    headers = {name: str(value) for name, value in made.headers.items()}
    day = headers["X-Amz-Date"][:8]
    old = {name: text.replace(day, "20200131") for name, text in headers.items()}
    status, _, body = guarded.ask("POST", "/", made.body, old)
    assert (400, True) == (status, b"<Code>RequestExpired</Code>" in body)

    token = account.token("info", now_us=client.now_us())
    long = urlsplit(str(signed(account.key, guarded.url, fields, presigned_for_s=60).url))
    status, _, body = guarded.ask(
        "GET", f"/?{long.query}", headers={"Authorization": f"Bearer {token}"}
    )
    assert (400, True) == (status, b"<Code>IncompleteSignature</Code>" in body)


@pytest.mark.long  # a gateway keeps keys for ten seconds; test_gate lets it forget one
def test_a_waiter_whose_key_is_disabled_meanwhile_gets_nothing(
    guarded: Gateway, account: Account, client: cassieq.Client, acme: Any, url: str
) -> None:
    made = account.new_key(*account.first.grants)
    waiting = sqs_at(guarded.url, key=pair(made), read_timeout=60)
    found: list[Any] = []

    def wait() -> None:
        found.append(refusal(waiting.receive_message, QueueUrl=url, WaitTimeSeconds=20))

    waiting.get_queue_url(QueueName="orders")  # its key is remembered from now on
    thread = threading.Thread(target=wait)
    thread.start()
    portal.run(account.admin.set_enabled(account.name, is_enabled=False, key_id=made.key_id))
    # The gateway remembers keys for ten seconds.
    probe = sqs_at(guarded.url, key=pair(made))
    wait_until(lambda: _is_refused(probe), deadline_s=20)
    acme.send_message(QueueUrl=url, MessageBody="not for you")
    thread.join()

    assert [(403, "InvalidClientTokenId")] == [one[:2] for one in found]
    queue = client.queue(f"{account.name}/orders")
    wait_until(lambda: queue.stats().visible == 1, deadline_s=30)
    (message,) = acme.receive_message(
        QueueUrl=url, WaitTimeSeconds=5, MessageSystemAttributeNames=["All"]
    )["Messages"]
    assert "1" == message["Attributes"]["ApproximateReceiveCount"]


def _is_refused(sqs: Any) -> bool:
    try:
        sqs.list_queues()
    except ClientError:
        return True
    return False


def test_a_gateway_for_the_network_needs_a_master_key_before_it_listens(
    cassandra: EmbeddedCassandra, tmp_path: Path
) -> None:
    command = CommandLine(cassandra.contact_points)
    ended = command("serve", "--auth", "--host", "0.0.0.0")  # noqa: S104 - it does not come to that
    assert 2 == ended.code
    assert "--master-key-file" in ended.err
    ended = command("serve", "--auth", "--master-key-file", str(tmp_path / "none"))
    assert 1 <= ended.code <= 2
    assert "cannot be read" in ended.err


def test_the_command_line_makes_an_account_and_a_gateway_with_tls_serves_it(
    cassandra: EmbeddedCassandra,
    start: Callable[..., Gateway],
    tmp_path: Path,
    master_key_file: Path,
    account: Account,
) -> None:
    given = ("--master-key-file", str(master_key_file))
    key = CommandLine(cassandra.contact_points)(
        "account", "new-key", account.name, *given, "--json"
    ).object
    authority = Authority("gateway ca")
    certificate, private = authority.sign("gateway", address="127.0.0.1").write(tmp_path, "gateway")
    ca = authority.write(tmp_path / "ca.pem")
    served = start(
        "--no-repair", "--auth", *given, "--host", "0.0.0.0",  # noqa: S104 - with accounts
        "--tls-cert", certificate, "--tls-key", private,
    )  # fmt: skip
    served.url = served.url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - as above
    context = ssl.create_default_context(cafile=ca)
    wait_until(lambda: _https(f"{served.url}/readyz", context) == 200, deadline_s=60)
    sqs = sqs_at(served.url, key=(key["access_key_id"], key["secret_access_key"]), ca=ca)
    url = sqs.create_queue(QueueName="by-tls")["QueueUrl"]
    assert url.startswith(served.url)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    sqs.close()


def _https(url: str, context: ssl.SSLContext) -> int:
    try:
        with urllib.request.urlopen(url, timeout=30, context=context) as answer:  # noqa: S310 - ours
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_an_account_from_the_command_line_works_with_boto3_and_with_curl(
    cassandra: EmbeddedCassandra, guarded: Gateway, master_key_file: Path, client: cassieq.Client
) -> None:
    name = f"acme-{new_uuid().hex[:12]}"
    command = CommandLine(cassandra.contact_points)
    key = command(
        "account", "create", name, "--master-key-file", str(master_key_file), "--json"
    ).object
    proof = key["access_key_id"], key["secret_access_key"]
    try:
        sqs = sqs_at(guarded.url, key=proof)
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        if (curl := shutil.which("curl")) is not None:
            ended = subprocess.run(
                [
                    curl, "--silent", "--show-error", "--aws-sigv4", "aws:amz:eu-central-1:sqs",
                    "--user", ":".join(proof), "-d", "Action=SendMessage",
                    "-d", "MessageBody=by curl", "--data-urlencode", f"QueueUrl={url}",
                    f"{guarded.url}/",
                ],
                capture_output=True, check=True, timeout=60,
            )  # fmt: skip
            assert b"<SendMessageResponse" in ended.stdout, ended.stdout
        else:
            sqs.send_message(QueueUrl=url, MessageBody="by curl")
        (message,) = client.queue(f"{name}/orders").get(1, wait=10)
        assert b"by curl" == message.body
        sqs.close()
    finally:
        portal.run(AccountAdmin(client.store).delete(name, with_queues=True))
