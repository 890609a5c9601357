"""The gateway: queues over HTTP. It translates requests into calls of the client, and has no rules.

Every promise is the client's. The process keeps nothing that another one would miss, so any number
of gateways serve one keyspace.

`serve` runs it and says who gets in, `app` has its addresses, and `operations` lists what can be
asked. `connection` bounds what clients hold, `guards` says what every request passes, and measures
it; `principal` says who asks, `door` has what all doors share. `backend` awaits the client,
accounts in turn; `batches` puts and settles what comes together, and `beside` has what runs beside
requests.
`sqs/` speaks SQS, `rest/` has resources for curl, `ui/` pages for people.
"""
