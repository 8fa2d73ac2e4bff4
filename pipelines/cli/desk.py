"""The command ``desk``. Importing it loads nothing heavy."""

from typing import Annotated

import typer

from pipelines.cli.options import ConfigOption, EngineOption, ModelOption, SetOption, StoreOption, configured


def desk(
    port: Annotated[int, typer.Option(help="Port, on 127.0.0.1.")] = 4300,
    reviewer: Annotated[
        list[str] | None,
        typer.Option(help="Another person who checks answers, with a token of their own; may be repeated."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="The address under which a proxy serves it to others.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    model: ModelOption = None,
    engine: EngineOption = None,
) -> None:
    """Serve the desk: check answers beside their documents in the browser, ask questions, start nights."""
    from pipelines.desk.server import serve

    settings = configured(store, config, set_, model=model, engine=engine)
    serve(settings, port, reviewer or (), url, show=open_)
