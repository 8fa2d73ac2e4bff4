"""Training stages. The supervised warm-up of the bundled reader runs on a machine with two cores."""

from pathlib import Path
from typing import Annotated

import typer


def warmup(
    out: Path,
    text: list[Path],
    contracts: Path | None = None,
    tokens: float = 40e6,
    seed: int = 0,
    threads: int = 2,
    start: Path | None = None,
) -> Path:
    """Train memagent-nano from scratch or from `start`, or go on where a run in `out` was stopped.

    Args:
        out: folder of the run: checkpoints, ``metrics.jsonl``, and at the end the model under ``model/``.
        text: files and folders whose text needles are planted in.
        contracts: folder with ``gold.jsonl`` and ``contracts/`` (CUAD); without it only needles are taught.
        tokens: length of the run; the learning rate falls to zero over it.
        seed: of all choices.
        threads: cores to use.
        start: model folder that a new run begins with, the bundled one for example, to teach it more.

    Returns:
        The folder of the model.
    """
    from rich.console import Console

    from memagent.nano.export import export
    from memagent.nano.schedule import Plan
    from memagent.nano.warmup import warm_up

    console = Console(highlight=False, soft_wrap=True)
    plan = Plan(int(tokens)) if start is None else Plan(int(tokens), rate=2e-4, copy_steps=0)
    warm_up(out, text, contracts, plan, seed, console.print, threads, start)
    return export(out, out / "model")


app = typer.Typer(help="Train the bundled reader.", add_completion=False, no_args_is_help=True)


@app.command("warmup")
def _warmup(
    out: Annotated[Path, typer.Option(help="Folder of the run; a stopped run goes on.")],
    text: Annotated[list[Path], typer.Option(help="Text to plant needles in: files or folders.")],
    contracts: Annotated[Path | None, typer.Option(help="Folder with gold.jsonl and contracts/.")] = None,
    tokens: Annotated[float, typer.Option(min=1e4, help="Length of the run in tokens.")] = 40e6,
    seed: Annotated[int, typer.Option(help="Seed of all choices.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Cores to use.")] = 2,
    start: Annotated[Path | None, typer.Option("--from", help="Model folder to begin with; else noise.")] = None,
) -> None:
    """Train memagent-nano by supervision (see docs/nano.md)."""
    typer.echo(str(warmup(out, text, contracts, tokens, seed, threads, start)))


@app.command("export")
def _export(
    run: Annotated[Path, typer.Option(help="Folder of the run.")],
    out: Annotated[Path, typer.Option(help="Where to write the model folder.")],
) -> None:
    """Write the newest checkpoint of a run as a model folder."""
    from memagent.nano.export import export

    typer.echo(str(export(run, out)))


@app.command("trial")
def _trial(
    model: Annotated[Path, typer.Option(help="Model folder to try.")],
    text: Annotated[list[Path], typer.Option(help="Text to plant needles in: files or folders.")],
    contracts: Annotated[Path | None, typer.Option(help="Folder with gold.jsonl and contracts/.")] = None,
    lengths: Annotated[str, typer.Option(help="Segments of the documents, with commas.")] = "1,4,16",
    n: Annotated[int, typer.Option(min=1, help="Documents of each kind and length.")] = 36,
    seed: Annotated[int, typer.Option(help="Seed of the documents.")] = 7,
    threads: Annotated[int, typer.Option(min=1, help="Cores to use.")] = 2,
    out: Annotated[Path | None, typer.Option(help="File for every reading, as JSON lines.")] = None,
) -> None:
    """Read documents with known answers, and held-out contracts; print how many were answered right."""
    from memagent.nano.trials import trial

    sizes = [int(length) for length in lengths.split(",") if length]
    for line in trial(model, text, contracts, sizes, n, seed, threads, out):
        typer.echo(line)


if __name__ == "__main__":
    app()
