"""The REST door, `/v1`: resources of queues and messages, for curl and programs of any language.

`operations` is the one list of what can be asked: routes, checks and the OpenAPI document are made
of it. `door` reads a request and writes its answer. `models` has the forms of bodies and queries,
`answers` those of answers, and `problems` the errors. `queues`, `messages`, `receipts` and
`letters` do what is asked.
"""
