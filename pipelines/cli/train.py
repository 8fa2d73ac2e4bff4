"""The training commands: a stage of Multi-Conv DAPO, and supervised fine-tuning of the bundled reader."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memagent.config import Config
from pipelines.cli.options import ConfigOption, JsonOption, SetOption, StoreOption, configured, display, out
from pipelines.cli.policies import GateOption, gate_spec, show_comparison

if TYPE_CHECKING:
    from memagent.rl.promotion import GateSpec


def sft(
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
    from memagent.nano.sft import train

    console = Console(highlight=False, soft_wrap=True)
    plan = Plan(int(tokens)) if start is None else Plan(int(tokens), rate=2e-4, copy_steps=0)
    train(out, text, contracts, plan=plan, seed=seed, show=console.print, threads=threads, start=start)
    return export(out, out / "model")


app = typer.Typer(help="Train a reader.", add_completion=False, invoke_without_command=True)


@app.callback()
def _train(
    context: typer.Context,
    config: Annotated[str, typer.Option("--config", help="Recipe: a name or a TOML file.")] = "nano-cpu",
    policy: Annotated[str | None, typer.Option(help="Policy to begin with; else the recipe's.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="qa, qa:CORPUS, needles, contracts=FOLDER; several are mixed. Default: qa."),
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="Text to plant needles in: files or folders.")] = None,
    replay: Annotated[str | None, typer.Option(help="Learn from the rollouts that this run recorded.")] = None,
    promote: Annotated[
        bool, typer.Option("--promote", help="Let the gate decide on the candidate at the end.")
    ] = False,
    gate: GateOption = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The HTML report.")] = None,
    store: StoreOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Train one stage by Multi-Conv DAPO; its best weights become a candidate. The same command goes on."""
    if context.invoked_subcommand is not None:
        return
    from pipelines.training.progress import Progress, show_summary
    from pipelines.training.run import train
    from pipelines.training.settings import prepare

    spec = gate_spec(gate, None)  # before hours of training
    run = prepare(config, data or ["qa"], text or [], store=store, sets=set_ or [], model=policy)
    with Progress(quiet=json_) as progress:
        summary = train(run, replay=replay, show=progress.show)
    if output is not None:
        from infra.store import Store
        from pipelines.report.training import write_training

        summary["report"] = str(write_training(Store(run.config.store), summary["run_id"], output))
    if promote and summary["candidate"]:
        summary["gate"] = _judged(run.reading_config(), summary["candidate"], spec, json_)
    if json_:
        out(summary)
        return
    show_summary(summary)
    if "gate" in summary:
        show_comparison(summary["gate"])


def _judged(settings: Config, candidate: str, spec: "GateSpec", quiet: bool) -> dict[str, Any]:
    """Let the gate decide; one that has decided already, in an earlier call of the command, is not asked again."""
    from infra.store import Store
    from infra.tables.policies import policy
    from pipelines.promote import run_gate

    known = policy(Store(settings.store), candidate)["gate"]
    if known:
        return dict(known)
    with display(quiet) as show:
        return run_gate(settings, candidate, gate=spec, show=show)


@app.command("sft")
def _sft(
    out: Annotated[Path, typer.Option(help="Folder of the run; a stopped run goes on.")],
    text: Annotated[list[Path], typer.Option(help="Text to plant needles in: files or folders.")],
    contracts: Annotated[Path | None, typer.Option(help="Folder with gold.jsonl and contracts/.")] = None,
    tokens: Annotated[float, typer.Option(min=1e4, help="Length of the run in tokens.")] = 40e6,
    seed: Annotated[int, typer.Option(help="Seed of all choices.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Cores to use.")] = 2,
    start: Annotated[Path | None, typer.Option("--from", help="Model folder to begin with; else noise.")] = None,
) -> None:
    """Train memagent-nano by supervision (see docs/nano.md)."""
    typer.echo(str(sft(out, text, contracts, tokens=tokens, seed=seed, threads=threads, start=start)))


@app.command("export")
def _export(
    run: Annotated[Path, typer.Option(help="Folder of the run.")],
    out: Annotated[Path, typer.Option(help="Where to write the model folder.")],
) -> None:
    """Write the newest checkpoint of a run as a model folder."""
    from memagent.nano.export import export

    typer.echo(str(export(run, out)))


@app.command("report")
def _report(
    run: Annotated[str, typer.Argument(help="A training run, or 'last'.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file.")] = Path("training.html"),
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Write a training run's report, also while it goes on: one HTML file that needs no network."""
    from infra.store import Store
    from pipelines.report.training import write_training
    from pipelines.training.records import find_training

    place = Store(configured(store, config, set_).store)
    typer.echo(str(write_training(place, find_training(place, run), output)))


@app.command("curves")
def _curves(
    runs: Annotated[list[str], typer.Argument(help="Training runs, or 'last'; a line each.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the pictures.")],
    spread: Annotated[bool, typer.Option("--spread", help="Draw the mean of the runs, and their range.")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Draw training runs over their steps, as SVG and PNG."""
    from infra.store import Store
    from pipelines.report.training import draw
    from pipelines.training.records import find_training, metrics_of

    place = Store(configured(store, config, set_).store)
    rows = {name: metrics_of(place, name) for name in (find_training(place, run) for run in runs)}
    for path in draw(rows, output.expanduser(), spread=spread):
        typer.echo(str(path))


if __name__ == "__main__":
    app()
