"""The guards: each route and method of the running gateway refuses alike, and changes nothing."""

from __future__ import annotations

import json
import re
from http.client import HTTPConnection
from itertools import product
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import boto3
import pytest
from botocore import UNSIGNED
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from starlette.routing import Route

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.rights import Right
from cassieq_spark.server.app import Gateway as Application
from cassieq_spark.server.guards import OWN_PATHS, door_of
from cassieq_spark.server.operations import ACTIONS, OPERATIONS, PAGES
from cassieq_spark.server.settings import GatewaySettings
from cassieq_spark.server.ui.page import FILES
from tests.fixtures.ui import Visitor
from tests.server.conftest import running
from tests.server.test_serve import raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import cassieq_spark as cassieq
    from tests.fixtures.accounts import Account
    from tests.server.conftest import Gateway

    Asked = Callable[..., tuple[int, Mapping[str, str], bytes]]

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
FORM = "application/x-www-form-urlencoded"
PROBES = ("/healthz", "/readyz")
ELSEWHERE = (
    {"Host": "evil.example"},
    {"Host": "evil.example:8080"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost"},
    {"Origin": "http://127.0.0.1"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
)
METRICS = re.compile(r"Metrics are at http://(\S+)/metrics")
TARGET = "/000000000000/{queue}"


@pytest.fixture(scope="module")
def templates() -> list[str]:
    def never() -> cassieq.Client:
        raise AssertionError

    app = Application(GatewaySettings(), never).app()
    own = [one.path for one in app.routes if isinstance(one, Route)]
    assert len(own) == len(app.routes)
    files = [f"/{name}" for name in FILES]
    rest = dict.fromkeys(f"/v1{one.path}" for one in OPERATIONS)
    return [
        *own,
        *rest,
        *dict.fromkeys(f"/ui{path}" for path in [*(one.path for one in PAGES), *files]),
    ]


@pytest.fixture(scope="module")
def asked(gateway: Gateway) -> Iterator[Asked]:
    """``asked(method, path, body, headers)``, on one connection while the gateway keeps it.

    There are thousands of requests, so it does no more than it must.
    """
    address = urlsplit(gateway.url)
    http = HTTPConnection(address.hostname or "", address.port or 0, timeout=60)

    def ask(
        method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        http.request(method, path, body or None, headers or {})
        answer = http.getresponse()
        return answer.status, {key.lower(): one for key, one in answer.getheaders()}, answer.read()

    yield ask
    http.close()


@pytest.fixture
def kept(client: cassieq.Client, name: str) -> Iterator[str]:
    """A queue with a message; at the end both are as they were."""
    queue = client.create_queue(name, linger=0, labels={"owner": "me"})
    queue.put(b"one")
    before = {one.name for one in client.queues() if one.name.startswith(name)}
    yield name
    (message,) = client.queue(name).peek(5)
    assert (b"one", 0) == (message.body, message.delivery_count)
    assert {"owner": "me"} == client.queue(name).labels
    assert before == {one.name for one in client.queues() if one.name.startswith(name)}
    client.delete_queue(name)


def filled(template: str, queue: str) -> str:
    account = template.replace("{account:str}", "000000000000").replace("{queue:str}", queue)
    named = account.replace("{queue}", queue).replace("{schedule}", "s")
    return named.replace("{receipt}", "r").replace("{key}", "CQAKX")


def own_form(path: str, headers: Mapping[str, str], body: bytes, *, is_json: bool = False) -> bool:
    """Whether an error has the form of its door."""
    media_type = headers["content-type"].partition(";")[0]
    if path in OWN_PATHS:
        return media_type == "text/plain"
    match door_of(path):
        case "rest":
            return media_type == "application/problem+json" and "code" in json.loads(body)
        case "ui":
            return media_type == "text/html" and b"code <code>" in body
        case _ if is_json:
            return json.loads(body)["__type"].startswith("com.amazonaws.sqs#")
        case _:
            return b"<ErrorResponse" in body and b"<Code>" in body


def test_the_routes_are_those_of_the_tables(templates: list[str]) -> None:
    known = {f"/v1{one.path}" for one in OPERATIONS} | {f"/ui{one.path}" for one in PAGES}
    others = {one for one in templates if one not in known}
    files = {one for one in others if one.startswith("/ui/") and "." in one}

    assert known <= set(templates)
    assert {*OWN_PATHS, "/ui", "/", "/{account:str}/{queue:str}"} == others - files


def test_no_route_and_no_method_is_for_pages_of_others(
    asked: Asked, kept: str, templates: list[str]
) -> None:
    """Each route by each method and each way to come, and each method by each of these ways."""
    refused = set[tuple[str, str | int]]()
    for number, template in enumerate(templates):
        path = filled(template, kept)
        status, headers, body = asked("PROPFIND", path)
        assert 405 == status, path
        assert own_form(path, headers, body), (path, body)
        for at, method in enumerate(METHODS):
            one = (number + at) % len(ELSEWHERE)
            foreign = ELSEWHERE[one]
            if path in PROBES and "Host" in foreign:
                continue
            status, headers, body = asked(method, path, b"", foreign)
            assert status in (403, 405), (method, path, foreign, status)
            assert (status == 405) == ("allow" in headers)
            if method != "HEAD":
                assert own_form(path, headers, body), (method, path, body)
            refused |= {(path, method), (path, one), (method, one)}
    kinds = range(len(ELSEWHERE))
    others = {filled(one, kept) for one in templates} - set(PROBES)
    assert refused >= {*product(others, METHODS), *product(others, kinds), *product(METHODS, kinds)}


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_no_action_is_for_pages_of_others(
    gateway: Gateway, asked: Asked, kept: str, action: str
) -> None:
    fields = parameters(kept, gateway)
    form = urlencode({"Action": action, **fields}).encode()
    as_json = {"X-Amz-Target": f"AmazonSQS.{action}"}
    for foreign in ELSEWHERE:
        for path in ("/", TARGET.format(queue=kept)):
            status, headers, body = asked("POST", path, form, {"Content-Type": FORM, **foreign})
            assert 403 == status
            assert b"<Code>AccessDenied</Code>" in body
            status, headers, body = asked("GET", f"{path}?{form.decode()}", b"", foreign)
            assert 403 == status
            status, headers, body = asked(
                "POST", path, json.dumps(fields).encode(), {**as_json, **foreign}
            )
            assert 403 == status
            assert own_form(path, headers, body, is_json=True)


@pytest.mark.parametrize(
    "action", sorted(name for name, one in ACTIONS.items() if one.right is not Right.INFO)
)
def test_a_link_or_a_picture_changes_nothing(
    gateway: Gateway, asked: Asked, kept: str, action: str
) -> None:
    query = urlencode({"Action": action, **parameters(kept, gateway)})
    unsigned: tuple[tuple[str, dict[str, str]], ...] = (
        (query, {}),
        (f"{query}&X-Amz-Signature={'0' * 64}&X-Amz-Algorithm=AWS4-HMAC-SHA256", {}),
        (query, {"Authorization": "Basic YTpi"}),
        ("", {"X-Amz-Target": f"AmazonSQS.{action}"}),
    )
    for method in ("GET", "HEAD"):
        for text, headers in unsigned:
            status, found, _ = asked(method, f"/?{text}", b"", headers)
            assert (405, "POST") == (status, found["allow"]), (method, text)


def parameters(queue: str, gateway: Gateway) -> dict[str, str]:
    """What would let each action do something."""
    return {
        "QueueName": f"{queue}-more",
        "QueueUrl": f"{gateway.url}/000000000000/{queue}",
        "SourceArn": f"arn:aws:sqs:any:000000000000:{queue}",
        "MessageBody": "two",
        "Tag.1.Key": "a",
        "Tag.1.Value": "b",
        "TagKey.1": "owner",
    }


def test_a_request_that_is_signed_in_its_headers_may_be_a_get(gateway: Gateway, kept: str) -> None:
    signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/any/sqs/aws4_request"}
    form = urlencode({"Action": "DeleteMessage", "ReceiptHandle": "x", **parameters(kept, gateway)})

    status, _, body = gateway.ask("GET", f"/?{form}", b"", signed)

    assert 400 == status
    assert b"ReceiptHandleIsInvalid" in body


def test_reading_by_get_needs_no_signature(gateway: Gateway, kept: str) -> None:
    query = urlencode({"Action": "GetQueueUrl", "QueueName": kept})

    assert f"/{kept}</QueueUrl>".encode() in gateway.ask("GET", f"/?{query}")[2]


def test_people_may_follow_a_link_to_the_page(gateway: Gateway) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}

    assert [200, 200, 403] == [
        gateway.ask("GET", path, b"", link)[0] for path in ("/ui/", "/docs", "/v1/queues")
    ]


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:9", "[::1]:8080", "10.1.2.3", "LOCALHOST"]
)
def test_addresses_and_localhost_are_known_hosts(gateway: Gateway, host: str) -> None:
    assert 200 == gateway.ask("GET", "/v1/queues", b"", {"Host": host})[0]


def test_probes_ask_by_any_name_or_none(gateway: Gateway) -> None:
    for path in PROBES:
        assert 200 == gateway.ask("GET", path, b"", {"Host": "gateway-0.any.svc"})[0]
        assert 200 == raw(gateway, f"GET {path} HTTP/1.0\r\n\r\n".encode())[0]


@pytest.fixture(scope="module")
def named(cassandra: Any, client: cassieq.Client) -> Iterator[Gateway]:  # noqa: ARG001 - it has made the tables
    """A gateway with the name of a Service, behind a proxy with a name of its own."""
    names = ("--host-name", "gateway.apps.svc", "--host-name", "queues.example.com")
    with running(cassandra, "--metrics-port", "0", *names) as one:
        yield one


def test_sdks_without_a_signature_reach_it_by_the_name_of_a_service(
    named: Gateway, name: str
) -> None:
    sqs = boto3.client(
        "sqs",
        endpoint_url=named.url,
        region_name="any",
        config=Config(signature_version=UNSIGNED),
    )
    sqs.meta.events.register("before-send.sqs", as_service)
    try:
        url = sqs.create_queue(QueueName=name)["QueueUrl"]
        assert url.startswith("http://gateway.apps.svc/")
        sqs.send_message(QueueUrl=f"{named.url}{urlsplit(url).path}", MessageBody="x")
        service = {"Host": "gateway.apps.svc", "Content-Type": FORM}
        form = urlencode({"Action": "ReceiveMessage", "QueueUrl": url}).encode()
        status, _, body = named.ask("POST", "/", form, service)
        assert 200 == status
        assert b"<Body>x</Body>" in body
        sqs.delete_queue(QueueUrl=f"{named.url}{urlsplit(url).path}")
    finally:
        sqs.close()


def as_service(request: Any, **_: Any) -> None:
    request.headers["Host"] = "gateway.apps.svc"


def test_a_proxy_may_send_a_host_of_its_own(named: Gateway, kept: str) -> None:
    proxy = {"Host": "gateway.apps.svc:8080", "Origin": "https://queues.example.com"}
    with Visitor(named.url) as visitor:
        visitor.get(f"/ui/queues/{kept}/purge", headers=proxy)
        answer = visitor.post(f"/ui/queues/{kept}/purge", {"name": "another"}, headers=proxy)
        assert 403 != answer.status_code, answer.text
        other = {**proxy, "Origin": "https://example.com"}
        assert 403 == visitor.http.post(f"/ui/queues/{kept}/purge", headers=other).status_code


def test_the_port_for_metrics_knows_the_same_names(named: Gateway) -> None:
    address = next(found[1] for one in named.said if (found := METRICS.search(one)))
    seen = []
    for host in ("127.0.0.1", "localhost", "gateway.apps.svc", "evil.example"):
        http = HTTPConnection(address, timeout=60)
        http.request("GET", "/metrics", headers={"Host": host})
        seen.append(http.getresponse().status)
        http.close()
    assert [200, 200, 200, 403] == seen


def test_a_host_name_is_a_name() -> None:
    for wrong in ("http://a", "a:80", "a/b", "", "*.a"):
        with pytest.raises(OptionInvalid, match="--host-name"):
            GatewaySettings(host_names=(wrong,)).check()


# --- with accounts --------------------------------------------------------------------------------


def test_no_route_and_no_method_is_for_somebody_without_a_key(
    guarded: Gateway, account: Account, client: cassieq.Client, templates: list[str]
) -> None:
    client.create_queue(f"{account.name}/orders", linger=0).put(b"one")
    token = account.token("ack", "others", now_us=client.now_us())
    bearer = {"Authorization": f"Bearer {token}"}
    for template in templates:
        path = filled(template, "orders")
        door = door_of(path)
        if path in OWN_PATHS or path == "/ui" or path.endswith((".css", ".svg")):
            continue
        if door == "rest":
            operations = [one for one in OPERATIONS if f"/v1{one.path}" == template]
            for one in operations:
                nobody = unfinished(guarded, one.method, path, {})
                assert (401, "authentication_failed") == (nobody[0], json.loads(nobody[1])["code"])
                status, body = unfinished(guarded, one.method, path, bearer)
                if one.right is not Right.ACK or "{queue}" in template:
                    assert (403, "access_denied") == (status, json.loads(body)["code"]), one.name
        elif door == "sqs":
            for action, asked_for in ACTIONS.items():
                as_json = {"X-Amz-Target": f"AmazonSQS.{action}"}
                status, body = unfinished(guarded, "POST", path, as_json)
                assert 403 == status
                assert b"MissingAuthenticationToken" in body
                if asked_for.right is not Right.ACK:
                    status, body = unfinished(guarded, "POST", path, {**as_json, **bearer})
                    assert 403 == status, action
                    assert b"AccessDeniedException" in body
            assert 403 == unfinished(guarded, "POST", path, {})[0]
        else:
            for page in (one for one in PAGES if f"/ui{one.path}" == template and not one.is_open):
                status, _ = unfinished(guarded, page.method, path, {})
                assert (303 if page.method == "GET" else 403) == status, page.name
    (message,) = client.queue(f"{account.name}/orders").peek(5)
    assert (b"one", 0) == (message.body, message.delivery_count)


def unfinished(
    gateway: Gateway, method: str, path: str, headers: dict[str, str]
) -> tuple[int, bytes]:
    """Send a request whose body never comes: what its headers alone decide."""
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if method != "GET":
        more += "Content-Length: 1000\r\n"
    host = urlsplit(gateway.url).netloc
    status, _, body = raw(
        gateway, f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()
    )
    return status, body


def test_a_key_that_is_unknown_is_refused_before_the_body_comes(
    guarded: Gateway,
) -> None:
    request = AWSRequest("POST", f"{guarded.url}/", data=b"x" * 1_000)
    SigV4Auth(Credentials("CQAK" + "A" * 16, "s" * 40), "sqs", "any").add_auth(request)
    headers = {name: str(value) for name, value in request.headers.items()}

    status, body = unfinished(guarded, "POST", "/", headers)

    assert 403 == status
    assert b"InvalidClientTokenId" in body


def test_forms_of_the_page_are_not_for_pages_of_others(
    guarded: Gateway, account: Account, client: cassieq.Client
) -> None:
    client.create_queue(f"{account.name}/orders", linger=0).put(b"one")
    with Visitor(guarded.url) as visitor:
        visitor.log_in(account.key)
        visitor.get("/ui/")
        for page in (one for one in PAGES if one.method == "POST"):
            for foreign in ELSEWHERE[2:]:
                path = "/ui" + page.path.replace("{queue}", "orders").replace("{schedule}", "s")
                answer = visitor.http.post(
                    path, data={"csrf": visitor.csrf, "name": "orders"}, headers=foreign
                )
                assert 403 == answer.status_code, page.name
                assert "text/html" in answer.headers["content-type"]
    assert 1 == len(client.queue(f"{account.name}/orders").peek(5))


def test_each_door_says_413_and_400_in_its_own_form(
    start: Callable[..., Gateway],
) -> None:
    gateway = start("--no-repair", "--max-body", "2048")
    gateway.wait_until_ready()
    for path, media_type in (
        ("/", FORM),
        ("/v1/queues/q/messages/batch", "application/json"),
        ("/ui/queues/q/purge", FORM),
    ):
        status, headers, body = gateway.ask(
            "POST", path, b"x" * 4_096, {"Content-Type": media_type}
        )
        assert 413 == status
        assert own_form(path, headers, body)
        status, headers, body = gateway.ask("POST", path, b"\xff", {"Content-Type": media_type})
        assert 400 == status
        assert own_form(path, headers, body)
