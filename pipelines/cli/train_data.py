"""What a training is given, checked by ``memagent train audit``; and what it keeps: ``memagent train exports``."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import ConfigOption, JsonOption, SetOption, StoreOption, configured, out

if TYPE_CHECKING:
    from memagent.rl.audit import AuditReport
    from pipelines.training.settings import DataFiles

RecipeOption = Annotated[str, typer.Option("--recipe", help="Train by this recipe: a name or a TOML file.")]
PolicyOption = Annotated[str | None, typer.Option(help="Start from this policy; default: the recipe's.")]
DataOption = Annotated[
    list[str] | None,
    typer.Option(help="Train on qa, qa:CORPUS, needles or contracts=FOLDER; repeat to mix."),
]
DatasetOption = Annotated[
    list[str] | None,
    typer.Option(help="Train on a .jsonl or .parquet file of questions, texts and answers."),
]
ValidationOption = Annotated[str, typer.Option(help="Choose the best weights by this file.")]
PromotionOption = Annotated[str, typer.Option(help="Compare the candidate on this file.")]
ColumnsOption = Annotated[
    list[str] | None, typer.Option(help="Name the files' columns: question=NAME, text=NAME, answers=NAME.")
]
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
    policy: PolicyOption = None,
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
    run = prepare(config, given, text or [], store=store, sets=set_ or [], model=policy, files=files)
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


def exports(
    run: Annotated[str, typer.Argument(help="Training run, or `last`.")],
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """List a training run's models in Hugging Face format."""
    from infra.store import Store
    from pipelines.training.exports import exported_models
    from pipelines.training.records import find_training

    tables = Store(configured(store, config, set_).store)
    models = exported_models(tables, find_training(tables, run))
    if json_:
        out([asdict(model) for model in models])
        return
    for model in models:
        typer.echo(f"step {model.step:>6}  {model.kind:<8} {model.size_bytes / 2**30:8.3f} GiB  {model.folder}")
