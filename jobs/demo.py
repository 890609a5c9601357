"""`make demo`: the flights of 2013 through two queues and three Spark queries, and checked."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from flights import QUEUES, Demo, read_airlines, unpack_flights
from history import Watch
from local import started
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if every count agrees with the CSV file, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--plot", type=Path, default=Path("demo.svg"), help="where the plot is written, as SVG"
    )
    plot: Path = parser.parse_args(arguments).plot.absolute()
    output = Console(soft_wrap=True, highlight=False)
    began_s = time.monotonic()
    output.print(
        "Starting Cassandra and Spark on this machine. Java warns that Spark uses an incubator "
        "module; that is harmless."
    )
    with (
        tempfile.TemporaryDirectory(prefix="cassieq-demo-") as name,
        ThreadPoolExecutor(1) as aside,
    ):
        folder = Path(name)
        reading = aside.submit(unpack_flights, folder)
        with started("cassieq demo", name, QUEUES) as (spark, client, contact_points):
            expected = reading.result()
            took_s = time.monotonic() - began_s
            output.print(f"Started in {took_s:.0f} s. Now {expected.flights:,} flights:")
            demo = Demo(spark, client, contact_points, folder)
            with Watch(client, QUEUES) as watch:
                code = demo.run(expected, read_airlines(folder))
        from plot import draw  # noqa: PLC0415 - takes a second, and the start need not wait for it

        draw(watch.looks, demo.pieces, plot)
    output.print(f"Depth, rates and lag of this run are drawn in {plot}", markup=False)
    output.print(f"The demo took {time.monotonic() - began_s:.0f} s.")
    return code


if __name__ == "__main__":
    sys.exit(main())
