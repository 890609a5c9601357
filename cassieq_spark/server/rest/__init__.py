"""The REST door, `/v1`: resources of queues and messages, for curl and programs of any language.

`messages` and `admin` do what is asked; `server/operations.py` says by which address, with which
right and which forms. Checks and the OpenAPI document are made of that. `door` reads a request and
writes its answer, `call` has what it is made of, and the problems that may be the answer. `models`
has the forms of bodies and queries, `answers` those of answers.

It is like FastAPI, but stands on Starlette and pydantic alone: ADR 46 says why.
"""
