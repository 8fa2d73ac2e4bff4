"""The commands ``serve`` and ``mcp``. Importing them loads nothing heavy."""

from typing import Annotated

import typer

from memagent.errors import UsageError
from pipelines.cli.options import ConfigOption, EngineOption, ModelOption, SetOption, StoreOption, configured

_SPLITS = ("last-paragraph", "last-line")


def serve(
    port: Annotated[int, typer.Option(help="Port, on 127.0.0.1.")] = 4400,
    split: Annotated[
        str | None,
        typer.Option(help="What of a last message is the question: last-paragraph or last-line; by default all of it."),
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Requests that are read at once; more are told to wait.")] = 32,
    max_bytes: Annotated[int, typer.Option(min=1, help="Largest request, in bytes.")] = 64 * 2**20,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    model: ModelOption = None,
    engine: EngineOption = None,
) -> None:
    """Serve readings as a model: an OpenAI-compatible endpoint, for other tools on this machine."""
    if split is not None and split not in _SPLITS:
        raise UsageError(f"--split {split}: one of {', '.join(_SPLITS)}")
    from pipelines.serving.server import serve as run

    settings = configured(store, config, set_, model=model, engine=engine)
    run(settings, port, split, at_once=at_once, most_bytes=max_bytes)  # type: ignore[arg-type]


def mcp(
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    model: ModelOption = None,
    engine: EngineOption = None,
) -> None:
    """Serve the store to an assistant: an MCP server on standard input and output."""
    from pipelines.serving.mcp_server import serve_stdio

    serve_stdio(configured(store, config, set_, model=model, engine=engine))
