"""The SQS door: requests of Amazon SQS, in the JSON protocol and in the older query protocol.

`door` reads a request and writes its answer, `protocol` tells the two protocols apart and checks
parameters, and `queues`, `messages` and `moves` do what is asked. `call` has what they are asked,
and the errors that may be the answer.
"""
