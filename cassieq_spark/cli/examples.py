"""One example of each command, which its --help ends with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import typer

EXAMPLES: Final[dict[str, str]] = {
    "put": "cassieq put orders 'one message' --delay 5m",
    "get": "cassieq get orders --max 10 --wait 5s --ack",
    "ack": "cassieq ack orders RECEIPT",
    "cancel": "cassieq cancel orders cdea1fa4-d829-8d47-b449-000000000000",
    "peek": "cassieq peek orders --max 10",
    "watch": "cassieq watch orders --interval 5s",
    "produce": "cassieq produce orders --rate 100 --count 1000",
    "consume": "cassieq consume orders --rate 100 --idle-timeout 10s",
    "queue create": "cassieq queue create orders --visibility-timeout 5m --max-deliveries 5",
    "queue list": "cassieq queue list --json",
    "queue show": "cassieq queue show orders",
    "queue alter": "cassieq queue alter orders --max-deliveries 10",
    "queue scheduled": "cassieq queue scheduled orders",
    "queue purge": "cassieq queue purge orders --yes",
    "queue delete": "cassieq queue delete orders --yes",
    "bootstrap": "cassieq bootstrap --replication datacenter1=3",
    "repair": "cassieq repair orders --dry-run",
    "serve": "cassieq serve --port 8080",
    "exporter": "cassieq exporter",
    "worker": "cassieq worker shop.mail:send mail --concurrency 4 --timeout 1m",
    "job-path": "cassieq job-path repair",
    "dead list": "cassieq dead list orders.dead",
    "dead show": "cassieq dead show orders.dead --where reason=timeout --after 1h --body",
    "dead redrive": "cassieq dead redrive orders.dead --where tag=eu --dry-run",
    "account master-key": "cassieq account master-key --out master.key",
    "account create": "cassieq account create shop --master-key-file master.key",
    "account list": "cassieq account list",
    "account keys": "cassieq account keys shop",
    "account new-key": "cassieq account new-key shop --rights put,info --queues 'orders*'",
    "account rotate": "cassieq account rotate shop AKIDEXAMPLE",
    "account disable": "cassieq account disable shop --key AKIDEXAMPLE",
    "account enable": "cassieq account enable shop",
    "account delete-key": "cassieq account delete-key shop AKIDEXAMPLE --yes",
    "account delete": "cassieq account delete shop --with-queues",
    "account sign": "cassieq account sign --queue 'orders*' --rights put --expires 8h",
    "config": "cassieq config --keyspace billing",
    "cassandra start": "cassieq cassandra start --heap 2g",
    "cassandra stop": "cassieq cassandra stop",
    "cassandra status": "cassieq cassandra status --json",
    "cassandra fetch": "cassieq cassandra fetch",
    "cassandra java": "cassieq cassandra java",
}
"""By the command's words. A test parses each, and finds a command without one."""


def add(app: typer.Typer, *above: str) -> None:
    """End the help of each command with its example."""
    for group in app.registered_groups:
        if group.typer_instance is not None and group.name:
            add(group.typer_instance, *above, group.name)
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "").replace("_", "-")
        if example := EXAMPLES.get(" ".join((*above, name))):
            command.epilog = f"Example: {example}"
