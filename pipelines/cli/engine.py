"""The commands ``engine``: this user's warm engines on this machine. Importing them loads nothing heavy."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from pipelines.cli.options import JsonOption, out

if TYPE_CHECKING:
    from infra.engines.warm import WarmEngineInfo

app = typer.Typer(help="List and stop engines that stay loaded between commands.", add_completion=False)


@app.command("list")
def list_engines(json_: JsonOption = False) -> None:
    """List your loaded engines on this machine."""
    from infra.engines.warm import running

    _show("", running(), json_)


@app.command()
def stop(json_: JsonOption = False) -> None:
    """Stop your loaded engines."""
    from infra.engines.warm import stop_all

    _show("stopped ", stop_all(), json_)


def _show(verb: str, engines: "Sequence[WarmEngineInfo]", json_: bool) -> None:
    if json_:
        out({"engines": [asdict(engine) for engine in engines]})
        return
    for engine in engines:
        typer.echo(f"{verb}{engine}")
    if not engines:
        typer.echo("no engine is loaded")
