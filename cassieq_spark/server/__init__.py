"""The gateway: queues over HTTP. It translates requests into calls of the client, and has no rules.

Every promise is the client's. The process keeps nothing that another one would miss, so any number
of gateways serve one keyspace. The rooms: `serve` runs it, `app` has its routes, `principal` says
who asks, `backend` calls the client in threads, `waiting` hands out messages, `sending` groups
puts, `sqs/` speaks SQS, `rest/` has resources for curl.
"""
