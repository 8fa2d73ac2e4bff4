"""Train memagent-nano by supervised fine-tuning, and write it as a model folder: ``python -m examples.nano``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from examples.nano.export import export
from examples.nano.schedule import Plan
from examples.nano.scope import declare
from examples.nano.sft import TrainingFiles, train
from memagent.errors import MemagentError

app = typer.Typer(help="Make memagent-nano.", add_completion=False)


@app.command("train")
def _train(
    out: Annotated[Path, typer.Option(help="Folder of the run; a stopped run is resumed.")],
    text: Annotated[list[Path], typer.Option(help="Files or folders whose text needles are planted in.")],
    contracts: Annotated[Path | None, typer.Option(help="Folder with gold.jsonl and contracts/.")] = None,
    tokens: Annotated[float, typer.Option(min=1e4, help="Length of the run in tokens.")] = 40e6,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Cores to use.")] = 2,
    start: Annotated[
        Path | None, typer.Option("--from", help="Initial model folder; by default random weights.")
    ] = None,
) -> None:
    """Train from scratch or from a model folder; the model is written to `model/` in the run's folder."""
    plan = Plan(int(tokens)) if start is None else Plan(int(tokens), rate=2e-4, copy_steps=0)
    show = Console(highlight=False, soft_wrap=True).print
    train(out, TrainingFiles(text, contracts), plan, seed=seed, show=show, threads=threads, start=start)
    typer.echo(str(export(out, out / "model")))


@app.command("export")
def _export(
    run: Annotated[Path, typer.Option(help="Folder of the run.")],
    out: Annotated[Path, typer.Option(help="Model folder to write.")],
) -> None:
    """Write the newest checkpoint of a run as a model folder."""
    typer.echo(str(export(run, out)))


@app.command("scope")
def _scope(
    data: Annotated[Path, typer.Option(help="Folder with cuad/, xquad/ and hotpot/.")],
    out: Annotated[Path, typer.Option(help="Model folder to write scope.json to.")],
    readings: Annotated[Path | None, typer.Option(help="File of held-out answers; made if missing.")] = None,
    model: Annotated[str, typer.Option(help="Model that reads the held-out questions.")] = "nano",
) -> None:
    """Declare what the model was trained to answer: a classifier of questions, and measured scores."""
    scope = declare(data, readings, out, model)
    typer.echo(scope.model_dump_json(indent=1, exclude={"weights"}))


if __name__ == "__main__":
    try:
        app()
    except MemagentError as error:
        typer.echo(f"examples.nano: {error}", err=True)
        raise SystemExit(1) from None
