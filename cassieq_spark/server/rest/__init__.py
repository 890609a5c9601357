"""The REST door, `/v1`: resources of queues and messages, for curl and programs of any language.

`queues`, `messages`, `receipts` and `keys` do what is asked: a decorator says for each function by
which address, with which right and which forms. `operations` lists them; checks and the OpenAPI
document are made of that. `door` reads a request and writes its answer. `models` has the forms of
bodies and queries, `answers` those of answers, and `problems` the errors.

It is like FastAPI, but stands on Starlette and pydantic alone. FastAPI reads and parses a body
before a dependency can ask who sends it, takes names and parameters that are there twice, and needs
twice the time for a request (86 us beside 43, 75 beside 30); with what had to be added, it would
have spared few lines.
"""
