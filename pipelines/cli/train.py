"""The training commands: a stage of Multi-Conv DAPO, and supervised fine-tuning of the bundled reader."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memagent.config import Config
from pipelines.cli.options import ConfigOption, JsonOption, SetOption, StoreOption, configured, display, out
from pipelines.cli.policies import CheckOption, GateOption, promotion_spec, show_comparison
from pipelines.cli.train_data import (
    ColumnsOption,
    DataOption,
    DatasetOption,
    PolicyOption,
    PromotionOption,
    RecipeOption,
    RunNameOption,
    TextOption,
    ValidationOption,
    audit,
    exports,
    sources,
)

if TYPE_CHECKING:
    from memagent.rl.promotion import PromotionSpec


def sft(
    out: Path,
    text: list[Path],
    contracts: Path | None = None,
    tokens: float = 40e6,
    seed: int = 0,
    threads: int = 2,
    start: Path | None = None,
) -> Path:
    """Train memagent-nano from scratch or from `start`, or resume the run in `out`.

    Args:
        out: folder of the run: checkpoints, ``metrics.jsonl``, and at the end the model under ``model/``.
        text: files and folders whose text the needles are planted in.
        contracts: folder with ``gold.jsonl`` and ``contracts/`` (CUAD); without it, only needles.
        tokens: length of the run in tokens; the learning rate decays to zero over it.
        seed: random seed.
        threads: cores to use.
        start: model folder to start a new run from, for example the bundled one.

    Returns:
        The folder of the model.
    """
    from rich.console import Console

    from memagent.nano.export import export
    from memagent.nano.schedule import Plan
    from memagent.nano.sft import TrainingFiles, train

    console = Console(highlight=False, soft_wrap=True)
    plan = Plan(int(tokens)) if start is None else Plan(int(tokens), rate=2e-4, copy_steps=0)
    files = TrainingFiles(text, contracts)
    train(out, files, plan, seed=seed, show=console.print, threads=threads, start=start)
    return export(out, out / "model")


app = typer.Typer(help="Train a reader.", add_completion=False, invoke_without_command=True)
app.command("audit")(audit)
app.command("exports")(exports)


@app.callback()
def _train(
    context: typer.Context,
    config: RecipeOption = "nano-cpu",
    policy: PolicyOption = None,
    data: DataOption = None,
    dataset: DatasetOption = None,
    validation: ValidationOption = "",
    promotion: PromotionOption = "",
    columns: ColumnsOption = None,
    text: TextOption = None,
    run_name: RunNameOption = "",
    replay: Annotated[str | None, typer.Option(help="Train on the rollouts that this run recorded.")] = None,
    promote: Annotated[
        bool, typer.Option("--promote", help="Run the promotion check on the candidate at the end.")
    ] = False,
    check: CheckOption = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The HTML report.")] = None,
    store: StoreOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
    gate: GateOption = None,
) -> None:
    """Train one stage by Multi-Conv DAPO; its best weights become a candidate. Repeat the command to resume."""
    if context.invoked_subcommand is not None:
        return
    from pipelines.training.names import named
    from pipelines.training.progress import Progress, show_summary
    from pipelines.training.run import train
    from pipelines.training.settings import prepare

    spec = promotion_spec(check, None, [promotion] if promotion else None, columns)  # fails before hours of training
    given, files = sources(data, dataset, validation, promotion, columns=columns)
    run = prepare(config, given, text or [], store=store, sets=set_ or [], model=policy, files=files)
    run = named(run, run_name)
    with Progress(quiet=json_) as progress:
        summary = train(run, replay=replay, show=progress.show)
    if output is not None:
        from infra.store import Store
        from pipelines.report.training import write_training

        summary["report"] = str(write_training(Store(run.config.store), summary["run_id"], output))
    if promote and summary["candidate"]:
        summary["promotion"] = _promotion_record(run.reading_config(), summary["candidate"], spec, json_)
    if json_:
        out(summary)
        return
    show_summary(summary)
    if "promotion" in summary:
        show_comparison(summary["promotion"])


def _promotion_record(settings: Config, candidate: str, spec: "PromotionSpec", quiet: bool) -> dict[str, Any]:
    """Run the promotion check, or return its record from an earlier call of the command."""
    from infra.store import Store
    from infra.tables.policies import policy
    from pipelines.promote import run_promotion

    record = policy(Store(settings.store), candidate)["promotion"]
    if record:
        return record
    with display(quiet) as show:
        return dict(run_promotion(settings, candidate, spec=spec, show=show))


@app.command("plan")
def _plan(
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of all nodes.")],
    config: Annotated[str, typer.Option("--config", help="Recipe: a name or a TOML file.")] = "reader-7b",
    per_node: Annotated[int, typer.Option("--gpus-per-node", min=1, help="GPUs of a node.")] = 8,
    gpu: Annotated[str, typer.Option(help="Kind of GPU: a100-40, a100, l40s, h100, h200, b200.")] = "h100",
    model_config: Annotated[
        Path | None, typer.Option("--model-config", help="The model's config.json; by default it is fetched.")
    ] = None,
    set_: SetOption = None,
) -> None:
    """Say whether a recipe fits some GPUs, what they hold and how long a step takes; status 1 if it does not fit."""
    from infra.readers import bundled_version
    from memagent.config import reading_defaults
    from memagent.errors import UsageError
    from memagent.rl.config import load_recipe
    from pipelines.training.machines import GPUS, Machines, load_shape
    from pipelines.training.plan import fit, plan
    from pipelines.training.plan_table import show_plan

    if gpu not in GPUS:
        raise UsageError(f"no GPU {gpu!r}: there are {', '.join(GPUS)}")
    recipe = load_recipe(config, set_ or [])
    shape, machines = load_shape(recipe.model, model_config), Machines(gpus, per_node, GPUS[gpu])
    folder = bundled_version(recipe.model) or Path(recipe.model)
    recipe = recipe.model_copy(update={"reading": {**reading_defaults(folder), **recipe.reading}})
    made = plan(recipe, shape, machines)
    show_plan(made, recipe, fit(recipe, shape, machines))
    if made.problems:
        raise typer.Exit(1)


@app.command("sft")
def _sft(
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
    """Train memagent-nano by supervised fine-tuning (see docs/nano.md)."""
    typer.echo(str(sft(out, text, contracts, tokens=tokens, seed=seed, threads=threads, start=start)))


@app.command("export")
def _export(
    run: Annotated[Path, typer.Option(help="Folder of the run.")],
    out: Annotated[Path, typer.Option(help="Model folder to write.")],
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
    """Write a training run's report, also while it runs: one self-contained HTML file."""
    from infra.store import Store
    from pipelines.report.training import write_training
    from pipelines.training.records import find_training

    tables = Store(configured(store, config, set_).store)
    typer.echo(str(write_training(tables, find_training(tables, run), output)))


@app.command("curves")
def _curves(
    runs: Annotated[list[str], typer.Argument(help="Training runs, or 'last'; one line each.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the pictures.")],
    spread: Annotated[bool, typer.Option("--spread", help="Draw the mean and the range of the runs.")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Plot training runs by step, as SVG and PNG."""
    from infra.store import Store
    from pipelines.report.training import draw
    from pipelines.training.records import find_training, metrics_of

    tables = Store(configured(store, config, set_).store)
    rows = {name: metrics_of(tables, name) for name in (find_training(tables, run) for run in runs)}
    for path in draw(rows, output.expanduser(), spread=spread):
        typer.echo(str(path))


if __name__ == "__main__":
    app()
