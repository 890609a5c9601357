"""nginx with the configuration of the guide, in front of a gateway with accounts."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

import cassieq_spark as cassieq
from cassieq_spark.server.settings import GatewaySettings
from cassieq_spark.testing import wait_until
from tests.fixtures.accounts import Account
from tests.fixtures.certificates import Authority
from tests.fixtures.ui import Visitor
from tests.server.conftest import Gateway, sqs_at

CONFIGURATION = Path(__file__).resolve().parents[2] / "conf" / "nginx" / "cassieq.conf"
BESIDE = Path(sys.executable).with_name("nginx")
"""Where `make nginx` puts it."""
NGINX = shutil.which("nginx") or shutil.which(str(BESIDE))

pytestmark = pytest.mark.skipif(
    NGINX is None, reason="nginx is not installed (package nginx). Run: make nginx"
)

MAIN = """
daemon off;
user root;
pid nginx.pid;
worker_processes 1;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include cassieq.conf;
}
"""
"""What a distribution's own nginx.conf has around the configuration."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """(CA, certificate, key) of the proxy."""
    folder = tmp_path_factory.mktemp("certificate")
    authority = Authority("proxy's CA")
    return (
        authority.write(folder / "ca.pem"),
        *authority.sign("proxy", address="127.0.0.1").write(folder, "proxy"),
    )


@pytest.fixture(scope="module")
def proxy(
    guarded: Gateway,
    certificate: tuple[str, str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, str]]:
    """The addresses of nginx by scheme."""
    folder = tmp_path_factory.mktemp("nginx")
    _, cert, key = certificate
    ports = {"http": free_port(), "https": free_port()}
    text = CONFIGURATION.read_text("utf-8")
    for there, here in {
        "server 127.0.0.1:8080": f"server {urlsplit(guarded.url).netloc}",
        "listen 80;": f"listen 127.0.0.1:{ports['http']};",
        "listen 443 ssl;": f"listen 127.0.0.1:{ports['https']} ssl;",
        "/etc/nginx/cassieq.crt": cert,
        "/etc/nginx/cassieq.key": key,
    }.items():
        assert 1 == text.count(there), there
        text = text.replace(there, here)
    (folder / "cassieq.conf").write_text(text, encoding="utf-8")
    (folder / "nginx.conf").write_text(MAIN, encoding="utf-8")
    assert NGINX is not None
    said = folder / "said"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [NGINX, "-e", "stderr", "-p", str(folder), "-c", "nginx.conf"],
            stdin=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        wait_until(
            lambda: process.poll() is not None or is_open(ports["https"]),
            deadline_s=30,
        )
        assert process.poll() is None, said.read_text("utf-8")
        yield {scheme: f"{scheme}://127.0.0.1:{port}" for scheme, port in ports.items()}
    finally:
        process.terminate()
        process.wait(30)
    assert "[emerg]" not in said.read_text("utf-8")


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def visitor(proxy: dict[str, str], certificate: tuple[str, str, str]) -> Iterator[Visitor]:
    with Visitor(proxy["https"], verify=certificate[0]) as one:
        yield one


def test_a_signed_request_arrives_as_it_was_signed(
    proxy: dict[str, str], certificate: tuple[str, str, str], account: Account
) -> None:
    sqs = sqs_at(proxy["https"], key=account.key, ca=certificate[0])
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    assert url.startswith(proxy["https"])
    assert [] == sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1).get("Messages", [])
    sqs.send_message(QueueUrl=url, MessageBody="hello")

    (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    assert "hello" == message["Body"]
    sqs.close()


@pytest.mark.parametrize("claimed", ["http", "https"])
def test_the_page_knows_that_its_visitor_has_tls_whatever_the_visitor_says(
    visitor: Visitor, account: Account, claimed: str
) -> None:
    visitor.http.headers["X-Forwarded-Proto"] = claimed
    assert "The gateway sees no TLS" not in visitor.get("/ui/login").text

    cookie = visitor.log_in(account.key).headers["set-cookie"]

    assert cookie.startswith("__Host-cassieq-ui=")
    assert "secure" in cookie.lower()


def test_a_body_may_be_as_long_as_at_the_gateway_itself(
    proxy: dict[str, str], visitor: Visitor, account: Account, client: cassieq.Client
) -> None:
    client.create_queue(f"{account.name}/orders")
    token = account.token("put", now_us=client.now_us())

    def put(size: int) -> int:
        return visitor.http.post(
            f"{proxy['https']}/v1/queues/orders/messages",
            content=b"x" * size,
            headers={"Authorization": f"Bearer {token}"},
        ).status_code

    most = GatewaySettings().max_body_bytes
    assert (413, 201) == (put(most + 1), put(most // 2))


def test_health_is_asked_through_it_and_nothing_goes_in_the_clear(
    proxy: dict[str, str], visitor: Visitor
) -> None:
    assert 200 == visitor.http.get("/readyz").status_code
    assert 403 == httpx.get(f"{proxy['http']}/readyz").status_code
