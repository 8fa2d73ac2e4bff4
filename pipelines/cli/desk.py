"""The command ``desk``. Importing it loads nothing heavy."""

from typing import Annotated

import typer

from pipelines.cli.options import (
    HOST,
    ConfigOption,
    EngineOption,
    HostOption,
    ModelOption,
    SetOption,
    StoreOption,
    UrlOption,
    configured,
)


def desk(
    port: Annotated[int, typer.Option(help="Port.")] = 4300,
    reviewer: Annotated[
        list[str] | None,
        typer.Option(help="Another person who checks answers, with a token of their own; may be repeated."),
    ] = None,
    host: HostOption = HOST,
    url: UrlOption = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    model: ModelOption = None,
    engine: EngineOption = None,
) -> None:
    """Serve the desk: check answers beside their documents in the browser, ask questions, start nights."""
    from pipelines.desk.server import serve
    from pipelines.flows.address import Address

    settings = configured(store, config, set_, model=model, engine=engine)
    serve(settings, Address(port, host, url), reviewer or (), show=open_)
