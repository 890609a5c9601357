"""Build the ASGI application of a gateway: its routes, and what runs beside the requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cassieq_spark.accounts.keys import MasterKey
from cassieq_spark.client import Client
from cassieq_spark.errors import CassandraLoginFailed, CassieqError
from cassieq_spark.exporter.collector import registry_of
from cassieq_spark.exporter.scan import Scanner
from cassieq_spark.schedules import PASS_EVERY_S
from cassieq_spark.server import guards
from cassieq_spark.server.backend import Backend, Busy
from cassieq_spark.server.beside import Rates, RepairLog, dispatch_every, repair_every
from cassieq_spark.server.door import Door
from cassieq_spark.server.guards import OWN_PATHS, UI, Refusal, door_of
from cassieq_spark.server.principal import Gate
from cassieq_spark.server.rest.door import RestDoor, docs, openapi_json
from cassieq_spark.server.settings import GatewaySettings
from cassieq_spark.server.sqs.door import QUEUE_PATH, SqsDoor
from cassieq_spark.server.ui.door import UiDoor, to_home

READY_S = 5.0
"""The time that `/readyz` waits for Cassandra."""

SCAN_ENDS_S = 1.0
"""The time for which a scan of the queues may delay the end."""


class Gateway:
    """The state that all requests of a process share.

    Attributes:
        failure: What has ended the gateway by itself, such as a wrong password for Cassandra.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        open_client: Callable[[], Client],
        master_key: MasterKey | None = None,
    ) -> None:
        """Prepare; nothing runs before the application does.

        Args:
            master_key: Checks accounts; None: everybody has all rights.
        """
        self.settings = settings
        self.backend = Backend(open_client, calls=settings.calls)
        self.gate = Gate(self.backend, master_key)
        self.repairs = RepairLog(settings.repairs_every_s)
        self.rates = Rates()
        self.scanner = Scanner(settings.scans_every_s, on_gone=self.backend.forget)
        self.registry = registry_of(self.scanner)
        self.requests = guards.RequestMetrics(self.registry, self.backend)
        self.failure: CassieqError | None = None
        self.on_failure: Callable[[], None] = lambda: None

    def app(self) -> Starlette:
        """The ASGI application."""
        self._doors: dict[str, Door] = {
            "sqs": SqsDoor(self.backend, self.gate),
            "rest": RestDoor(self.backend, self.gate),
            "ui": UiDoor(self.backend, self.gate, self.repairs, self.rates),
        }

        def refused(refusal: Refusal, scope: Scope) -> Response:
            """The answer to a request that is refused, as its door answers."""
            if scope["path"] in OWN_PATHS:
                return PlainTextResponse(
                    f"{refusal.detail}\n", status_code=refusal.status, headers=refusal.headers
                )
            return self._doors[door_of(scope["path"])].failure(refusal, scope)

        own = [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/openapi.json", openapi_json),
            Route("/docs", docs),
            Route(UI, to_home),
        ]
        if not self.settings.checks_accounts:
            # It names the queues of all accounts. With accounts it is served on a port of its own
            # only, which is for operators (`--metrics-port`).
            own.append(Route("/metrics", self._metrics))
        return Starlette(
            routes=[*own, Route("/", self._doors["sqs"]), Route(QUEUE_PATH, self._doors["sqs"])],
            middleware=[
                Middleware(guards.Measured, requests=self.requests),
                Middleware(
                    guards.BodyLimit,
                    most_bytes=self.settings.max_body_bytes,
                    guard=guards.Guards(self.settings, self._methods).check,
                    refused=refused,
                ),
                Middleware(self._past_routes),
            ],
            lifespan=self._running,
        )

    def _methods(self, path: str) -> Iterable[str] | None:
        """The methods of an address, GET for HEAD, too; None: there is nothing."""
        if path == "/metrics" and self.settings.checks_accounts:
            return None
        if path in OWN_PATHS or path == UI:
            return ("GET",)
        return self._doors[door_of(path)].methods(path)

    def _past_routes(self, app: ASGIApp) -> ASGIApp:
        """ASGI middleware: most requests go to their door past all routes, which takes longer."""

        async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
            found = app
            if scope["type"] == "http" and scope["path"] not in (*OWN_PATHS, UI):
                name = door_of(scope["path"])
                if name != "sqs" or scope["path"] == "/":
                    found = self._doors[name]
            await found(scope, receive, send)

        return pass_on

    @asynccontextmanager
    async def _running(self, _: Starlette) -> AsyncIterator[None]:
        beside = [asyncio.create_task(one) for one in (self._beside(), self.rates.run())]
        try:
            yield
        finally:
            for one in beside:
                one.cancel()
            for one in beside:
                with suppress(asyncio.CancelledError):
                    await one
            self.gate.close()
            await run_in_threadpool(self.scanner.close, SCAN_ENDS_S)
            await self.backend.close()

    async def _beside(self) -> None:
        try:
            await self.backend.connect()
        except CassieqError as error:
            self.failure = error
            self.on_failure()
            return
        self.scanner.start(self.backend.store)
        if self.settings.repairs_every_s is not None:
            await asyncio.gather(
                repair_every(self.backend, self.settings.repairs_every_s, self.repairs),
                dispatch_every(self.backend, PASS_EVERY_S),
            )

    async def _metrics(self, request: Request) -> Response:
        """All metrics, as Prometheus reads them."""
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        text = await run_in_threadpool(encode, self.registry)
        return Response(text, headers={"Content-Type": media_type})

    async def _healthz(self, _: Request) -> Response:
        """The process is alive, whatever Cassandra does, unless it refuses the login.

        The gateway was given its password when it started. If the role has another one now, only a
        restart brings that one; if it is set back, the client recovers by itself.
        """
        refusal = self.backend.refusal
        if isinstance(refusal, CassandraLoginFailed):
            return PlainTextResponse(f"{refusal.code}\n", status_code=503)
        return PlainTextResponse("alive\n")

    async def _readyz(self, _: Request) -> Response:
        """Whether Cassandra answers, with the tables of this release."""
        try:
            async with asyncio.timeout(READY_S):
                await self.backend.check()
        except (CassieqError, Busy, TimeoutError) as error:
            code = error.code if isinstance(error, CassieqError) else "store_timeout"
            return PlainTextResponse(
                f"not ready: {code}\n", status_code=503, headers={"Retry-After": "1"}
            )
        return PlainTextResponse("ready\n")
