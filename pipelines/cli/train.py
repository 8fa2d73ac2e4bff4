"""The training commands: a stage of Multi-Conv DAPO, its plan and its reports."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memagent.config import Config
from pipelines.cli.options import ConfigOption, JsonOption, SetOption, StoreOption, configured, display, out
from pipelines.cli.policies import CheckOption, promotion_spec, show_comparison
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


app = typer.Typer(help="Train a reader with Multi-Conv DAPO.", add_completion=False, invoke_without_command=True)
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
    replay: Annotated[str | None, typer.Option(help="Train on the rollouts recorded by this run.")] = None,
    promote: Annotated[bool, typer.Option("--promote", help="Run the promotion check at the end.")] = False,
    check: CheckOption = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the HTML report to this file.")] = None,
    store: StoreOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Train one stage by Multi-Conv DAPO; its best weights become a candidate. Repeat the command to resume."""
    if context.invoked_subcommand is not None:
        return
    from pipelines.training.names import named
    from pipelines.training.progress import TrainingProgress, show_summary
    from pipelines.training.run import train
    from pipelines.training.settings import prepare

    spec = promotion_spec(check, None, [promotion] if promotion else None, columns)  # fails before hours of training
    given, files = sources(data, dataset, validation, promotion, columns=columns)
    run = prepare(config, given, text or [], store=store, sets=set_ or [], model=policy, files=files)
    run = named(run, run_name)
    with TrainingProgress(quiet=json_) as progress:
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
    gpus: Annotated[int, typer.Option(min=1, help="Use this many GPUs on all nodes.")],
    config: Annotated[str, typer.Option("--recipe", help="Train by this recipe: a name or a TOML file.")] = "reader-7b",
    per_node: Annotated[int, typer.Option("--gpus-per-node", min=1, help="Use this many GPUs per node.")] = 8,
    gpu: Annotated[str, typer.Option(help="Use this GPU: a100-40, a100, l40s, h100, h200 or b200.")] = "h100",
    model_config: Annotated[
        Path | None, typer.Option("--model-config", help="Read the model's config.json here; default: fetch it.")
    ] = None,
    set_: SetOption = None,
) -> None:
    """Estimate a recipe's GPU memory and step time; status 1: too large."""
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


@app.command("report")
def _report(
    run: Annotated[str, typer.Argument(help="Training run, or `last`.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Write to this HTML file.")] = Path("training.html"),
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Write a training run's report as one HTML file."""
    from infra.store import Store
    from pipelines.report.training import write_training
    from pipelines.training.records import find_training

    tables = Store(configured(store, config, set_).store)
    typer.echo(str(write_training(tables, find_training(tables, run), output)))


@app.command("curves")
def _curves(
    runs: Annotated[list[str], typer.Argument(help="Training runs, or `last`; one line each.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Write pictures to this folder.")],
    spread: Annotated[bool, typer.Option("--spread", help="Draw mean and range of the runs.")] = False,
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
