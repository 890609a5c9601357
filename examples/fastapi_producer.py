"""A producer in FastAPI: it answers when the order is stored, and a retry stores nothing twice.

Run it: pip install fastapi uvicorn; cd examples; uvicorn fastapi_producer:app
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Request
from pydantic import BaseModel

# By name: the modules load here, and not while the event loop waits.
from cassieq_spark import AsyncQueue, StoreError, connect_async


class Order(BaseModel):
    """The body of a request."""

    customer: str
    amount: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client for all requests."""
    async with connect_async(
        os.environ.get("CASSIEQ_CONTACT_POINTS", "127.0.0.1:9042"),
        keyspace=os.environ.get("CASSIEQ_KEYSPACE", "cassieq"),
    ) as client:
        await client.bootstrap()
        app.state.orders = await client.create_queue("api.orders", dedup_window=3600)
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def put_order(
    order: Order,
    request: Request,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> dict[str, str]:
    """Store an order. With the header Idempotency-Key, a client may safely try again."""
    queue: AsyncQueue = request.app.state.orders
    try:
        message_id = await queue.put(
            order.model_dump_json().encode(),
            key=order.customer,  # orders of one customer stay in order
            dedup_key=idempotency_key,
        )
    except StoreError as error:
        raise HTTPException(503, str(error)) from error
    return {"message_id": message_id}
