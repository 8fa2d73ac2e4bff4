"""The command ``metrics``. Importing it loads nothing heavy."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import ConfigOption, SetOption, StoreOption, configured


def metrics(
    port: Annotated[int, typer.Option(help="Port; 0: any that is free.")] = 9464,
    host: Annotated[str, typer.Option(help="Address to serve at; 0.0.0.0 in a container.")] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that Prometheus shows; by default one of this user's.")
    ] = None,
    days: Annotated[float, typer.Option(min=0, help="Count runs that began so many days before, too.")] = 30,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Serve the store's metrics to Prometheus: what runs have done, and what the running ones are doing."""
    from pipelines.metrics_server import serve

    serve(configured(store, config, set_), host, port, token_file, days)
