"""The training commands: a stage of Multi-Conv DAPO, its plan and its reports."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from memagent.config import Config
from pipelines.cli.options import Common, JsonOption, SetOption, StoreOption, display, out, takes
from pipelines.cli.policies import CheckOption, ColumnsOption, promotion_spec, show_comparison
from pipelines.views.formatting import duration, number, percent

if TYPE_CHECKING:
    from memagent.records import Progress, ProgressCounts
    from memagent.rl.audit import AuditReport
    from memagent.rl.promotion import PromotionSpec
    from pipelines.training.settings import DataFiles


RecipeOption = Annotated[str, typer.Option("--recipe", help="Train by this recipe: a name or a TOML file.")]
ModelOption = Annotated[
    str | None, typer.Option(help="Start from this model or policy version; default: the recipe's.")
]
DataOption = Annotated[
    list[str] | None, typer.Option(help="Train on qa, qa:CORPUS, needles or contracts=FOLDER; repeat to mix.")
]
DatasetOption = Annotated[
    list[str] | None, typer.Option(help="Train on a .jsonl or .parquet file of questions, texts and answers.")
]
ValidationOption = Annotated[str, typer.Option(help="Choose the best weights by this file.")]
PromotionOption = Annotated[str, typer.Option(help="Compare the candidate on this file.")]
RunNameOption = Annotated[str, typer.Option("--run", help="Name this training; the same name resumes it.")]
TextOption = Annotated[list[str] | None, typer.Option(help="Plant needles in the texts of these files or folders.")]


def sources(
    data: Sequence[str] | None,
    dataset: Sequence[str] | None,
    validation: str = "",
    promotion: str = "",
    columns: Sequence[str] | None = None,
) -> tuple[list[str], "DataFiles"]:
    """Return a run's data sets, files among them, and its files.

    Raises:
        UsageError: a file cannot be read, or is given twice.
    """
    from pipelines.training.settings import DataFiles, absolute

    given = [*(f"file={absolute(path)}" for path in dataset or ()), *(data or (() if dataset else ["qa"]))]
    return given, DataFiles.of(given, validation, promotion, columns or ())


def audit(
    config: RecipeOption = "nano-cpu",
    model: ModelOption = None,
    data: DataOption = None,
    dataset: DatasetOption = None,
    validation: ValidationOption = "",
    columns: ColumnsOption = None,
    text: TextOption = None,
    store: StoreOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Check a sample of the training tasks; status 1: refused."""
    from memagent.errors import UsageError
    from memagent.rl.audit import audit as check
    from pipelines.training.data import splits
    from pipelines.training.settings import prepare

    given, files = sources(data, dataset, validation, columns=columns)
    run = prepare(config, given, text or [], store=store, sets=set_ or [], model=model, files=files)
    both, weights = splits(run), run.recipe.reward.weights
    report = check((both.train, both.validation), weights, run.recipe.audit.tasks or 64)
    refusal = ""
    try:
        warnings = report.refuse({**both.allowed, **run.recipe.audit.allowed}, weights)
    except UsageError as error:
        warnings, refusal = [], str(error)
    if json_:
        counts = {field.name: getattr(report, field.name) for field in fields(report)}
        out({"kind": "audit", **counts, "warnings": warnings, "refused": refusal})
    else:
        _show(report)
        for message in (*report.left_out, *warnings, *([refusal] if refusal else [])):
            typer.echo(message, err=True)
    raise typer.Exit(1 if refusal else 0)


def _show(report: "AuditReport") -> None:
    typer.echo(
        f"{report.tasks} tasks, {report.wrong_answers} wrong answers of at least {report.least_kinds} kinds each: "
        f"{', '.join(f'{kind} {count}' for kind, count in report.violating.items()) or 'nothing to say'}"
    )
    for kind, example in report.examples.items():
        typer.echo(f"  {kind}: {example}")


@takes("json")
def exports(given: Common, run: Annotated[str, typer.Argument(help="Training run, or `last`.")]) -> None:
    """List a training run's models in Hugging Face format."""
    from pipelines.training.records import exported_models, find_training

    tables = given.open_store()
    models = exported_models(tables, find_training(tables, run))
    if given.json:
        out([asdict(model) for model in models])
        return
    for model in models:
        typer.echo(f"step {model.step:>6}  {model.kind:<8} {model.size_bytes / 2**30:8.3f} GiB  {model.folder}")


@contextmanager
def progress(quiet: bool) -> "Iterator[Progress]":
    """Show the training loop's events on standard error: a bar on a terminal, and a line for each step."""
    console = Console(stderr=True, quiet=quiet)
    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
    task = bars.add_task("training", total=None)

    def show(event: "ProgressCounts") -> None:
        if "groups" in event and "stage" not in event:
            groups = f"{event['groups']} of {event['groups_total']} groups with signal, {event['sampled']} sampled"
            bars.update(task, description=f"reading: {groups}")
            return
        said = f"waiting for run {event['run']}" if event["stage"] == "wait" else event["stage"]
        bars.update(task, description=said, total=event.get("steps"), completed=event.get("step"))
        if event["stage"] == "step":
            console.print(line(event["row"]), highlight=False, soft_wrap=True)
        elif not console.is_terminal and not event.get("step"):  # the first step may take minutes
            console.print(said)

    with bars:
        yield show


def line(row: Mapping[str, Any]) -> str:
    """Return the metrics of a step as one line."""
    text = f"step {row['step']:4}"
    if "nll" in row and "reward" not in row:  # the teacher's readings
        text += f"  nll {row['nll']:.4f}"
    elif row["step"]:
        text += f"  reward {row['reward']:.3f}  strict {row['strict']:.3f}  lenient {row['lenient']:.3f}"
        text += f"  kept {percent(row['groups'], row['sampled_groups'])}  logprob diff {row['logprob_diff']:.4f}"
    if row["step"]:  # else nothing is learnt yet
        text += f"  entropy {row['entropy']:.3f}  norm {row['gradient_norm']:.2f}"
        text += f"  {duration(sum(row['seconds'].values()))}"
    if "validation" in row:
        scores = row["validation"]
        text += f"  validation {scores['reward']:.3f} strict {scores['strict']:.3f} (n={scores['n']})"
    return text


def _amounts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a training was made of; where a teacher wrote the readings, nothing was sampled."""
    readings, sampled, trained = (
        number(int(summary.get(name, 0))) for name in ("trajectories", "rollout_tokens", "trained_tokens")
    )
    if summary["config"]["recipe"]["rollout"]["teacher"]:
        yield from (("readings of the teacher", readings), ("tokens trained", trained))
    else:
        yield from (("rollouts", readings), ("tokens sampled / trained", f"{sampled} / {trained}"))


def show_summary(summary: Mapping[str, Any]) -> None:
    """Print a run's summary."""
    console = Console()
    table = Table(title=f"Training {summary['run_id']}", show_header=False)
    before, best = summary["validation"]["before"], summary["validation"]["best"]
    rows = [
        ("began with", summary["parent"]),
        ("ended after", summary["ended"]),
        ("validation before", f"{before['reward']:.3f} (n={before['n']})" if before else "none"),
        ("validation at its best", f"{best['reward']:.3f}, step {summary['best_step']}" if best else "none"),
        *_amounts(summary),
        ("time", duration(summary.get("seconds", 0.0))),
        ("candidate", summary["candidate"] or "none: nothing was better than what training began with"),
    ]
    if summary.get("rows_gone"):
        rows.append(("rows left out", f"{number(int(summary['rows_gone']))}: their documents are gone"))
    for name, value in rows:
        table.add_row(name, str(value))
    console.print(table)
    if summary["candidate"]:
        console.print(f"Promote it: memagent policies promote {summary['candidate']}")


app = typer.Typer(help="Train a reader with Multi-Conv DAPO.", add_completion=False, invoke_without_command=True)
app.command("audit")(audit)
app.command("exports")(exports)


@app.callback()
def _train(
    context: typer.Context,
    config: RecipeOption = "nano-cpu",
    model: ModelOption = None,
    data: DataOption = None,
    dataset: DatasetOption = None,
    validation: ValidationOption = "",
    promotion: PromotionOption = "",
    columns: ColumnsOption = None,
    text: TextOption = None,
    run_name: RunNameOption = "",
    replay: Annotated[str | None, typer.Option(help="Train on the rollouts recorded by this run.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Audit, read two tasks, and train nothing.")] = False,
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
    from pipelines.training.run import preview, train
    from pipelines.training.settings import named, prepare

    spec = promotion_spec(check, None, [promotion] if promotion else None, columns)  # fails before hours of training
    given, files = sources(data, dataset, validation, promotion, columns)
    run = prepare(config, given, text or [], store=store, sets=set_ or [], model=model, files=files)
    run = named(run, run_name)
    if dry_run:
        read, scheme = preview(run), run.reader.scheme
        if json_:
            out({"tasks": [one.as_dict(scheme) for one in read]})
        else:
            typer.echo("\n".join(text for one in read for text in one.lines(scheme)))
        return
    with progress(json_) as show:
        summary = train(run, replay=replay, show=show)
    if output is not None:
        from infra.store.location import Store
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
    from infra.store.location import Store
    from infra.store.policies import policy
    from pipelines.promote import run_promotion

    record = policy(Store(settings.store), candidate)["promotion"]
    if record:
        return record
    with display(quiet) as show:
        return dict(run_promotion(settings, candidate, spec=spec, show=show))


@app.command("plan")
def _plan(
    gpus: Annotated[int | None, typer.Option(min=1, help="Use this many GPUs; default: the recipe's.")] = None,
    config: RecipeOption = "reader-7b",
    per_node: Annotated[int, typer.Option("--gpus-per-node", min=1, help="Use this many GPUs per node.")] = 8,
    gpu: Annotated[str, typer.Option(help="Use this GPU: l4, a100-40, a100, l40s, h100, h200 or b200.")] = "h100",
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
    from pipelines.training.plan import GPUS, Machines, fit, load_shape, plan, show_plan

    if gpu not in GPUS:
        raise UsageError(f"no GPU {gpu!r}: there are {', '.join(GPUS)}")
    recipe = load_recipe(config, set_ or [])
    shape = load_shape(recipe.model, model_config)
    folder = bundled_version(recipe.model) or Path(recipe.model)
    recipe = recipe.model_copy(update={"reading": {**reading_defaults(folder), **recipe.reading}})
    asked = plan(recipe, shape, Machines(1, per_node, GPUS[gpu])).used
    machines = Machines(gpus or asked, per_node, GPUS[gpu])
    made = plan(recipe, shape, machines)
    show_plan(made, recipe, fit(recipe, shape, machines))
    if made.problems:
        raise typer.Exit(1)


@app.command("report")
@takes()
def _report(
    given: Common,
    run: Annotated[str, typer.Argument(help="Training run, or `last`.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Write to this HTML file.")] = Path("training.html"),
) -> None:
    """Write a training run's report as one HTML file."""
    from pipelines.report.training import write_training
    from pipelines.training.records import find_training

    tables = given.open_store()
    typer.echo(str(write_training(tables, find_training(tables, run), output)))
