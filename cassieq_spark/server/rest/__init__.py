"""The REST door, `/v1`: resources of queues and messages, for curl and programs of any language.

`queues`, `messages`, `receipts` and `keys` do what is asked; `server/operations.py` says by which
address, with which right and which forms. Checks and the OpenAPI document are made of that. `door`
reads a request and writes its answer. `models` has the forms of bodies and queries, `answers` those
of answers, and `problems` the errors.

It is like FastAPI, but stands on Starlette and pydantic alone: ADR 46 says why.
"""
