"""The gateway: queues over HTTP. It translates requests into calls of the client, and has no rules.

Every promise is the client's. The process keeps nothing that another one would miss, so any number
of gateways serve one keyspace.

`serve` runs it, `app` has its addresses, and `operations` lists what can be asked. `entrance` and
`connection` bound what clients hold, `guards` says what every request passes, `principal` who asks,
`door` what all doors share. `backend` awaits the client, and `batches` puts and settles what comes
together. `sqs/` speaks SQS, `rest/` has resources for curl, `ui/` pages for people.
"""
