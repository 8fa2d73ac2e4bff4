"""The commands ``harvest``, ``feedback`` and ``qa``. Importing them loads nothing heavy."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import (
    ConfigOption,
    CorpusArgument,
    EngineOption,
    JsonOption,
    ModelOption,
    RunIdOption,
    SetOption,
    StoreOption,
    configured,
    display,
    finish,
)

FileArgument = Annotated[Path, typer.Argument(help=".parquet or .jsonl file.")]
FormatOption = Annotated[
    str | None,
    typer.Option(
        help="Use these columns: verl, openrlhf, memagent or own; default: verl in Parquet, own in JSON lines."
    ),
]


def harvest(
    corpus: CorpusArgument,
    agreement: Annotated[int, typer.Option(min=0, help="Sample this many readings of questions without gold.")] = 0,
    generate: Annotated[int, typer.Option(min=0, help="Generate this many questions from segments.")] = 0,
    least_share: Annotated[
        float, typer.Option(min=0, max=1, help="Require this share of sampled readings to agree.")
    ] = 0.7,
    exclude_tag: Annotated[list[str] | None, typer.Option(help="Leave out documents with this tag; '': none.")] = None,
    export: Annotated[Path | None, typer.Option(help="Also write the rows to this Parquet file.")] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    model: ModelOption = None,
    engine: EngineOption = None,
    json_: JsonOption = False,
    run_id: RunIdOption = None,
) -> None:
    """Make training rows from answers, feedback, agreement and generated questions."""
    from infra.store.corpora import check_name
    from infra.store.location import Corpus, Store
    from pipelines.harvest import HarvestOptions
    from pipelines.harvest import harvest as run
    from pipelines.io.qa_files import export_qa

    settings = configured(store, config, set_, model=model, engine=engine)
    options = HarvestOptions(agreement, generate, least_share=least_share)
    if exclude_tag is not None:
        options = replace(options, exclude=tuple(tag for tag in exclude_tag if tag))
    with display(json_) as show:
        summary = run(check_name(corpus), settings, options, run_id=run_id, show=show)
    if export is not None and summary["rows"]:
        export_qa(Corpus(Store(settings.store), corpus), export)
        summary["export"] = str(export)
    finish(summary, json_, status=0)


def feedback(
    file: Annotated[Path, typer.Argument(help=".csv, .xlsx or .jsonl file with reading_id, verdict, answer.")],
    corpus: Annotated[str | None, typer.Argument(help="Import only readings of this corpus; default: all.")] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Import accepted, rejected and corrected answers."""
    from infra.store.location import Store
    from pipelines.io.feedback import take_feedback

    summary = take_feedback(Store(configured(store, config, set_).store), file, corpus)
    finish(summary, json_, status=1 if summary["unknown_readings"] else 0)


qa = typer.Typer(help="Exchange training rows with other tools.", add_completion=False, no_args_is_help=True)


@qa.command("export")
def export(
    corpus: CorpusArgument,
    file: FileArgument,
    format: FormatOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Export a corpus's training rows to a file."""
    from infra.store.location import Corpus, Store
    from pipelines.io.qa_files import export_qa

    rows = export_qa(Corpus(Store(configured(store, config, set_).store), corpus), file, format)
    finish({"kind": "export", "corpus": corpus, "rows": rows, "file": str(file)}, json_, status=0)


@qa.command("import")
def import_(
    corpus: CorpusArgument,
    file: FileArgument,
    format: FormatOption = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="Name the file's columns: question=NAME, text=NAME, answers=NAME.")
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
    run_id: RunIdOption = None,
) -> None:
    """Import gold answers and their texts into a corpus."""
    from infra.store.location import Corpus, Store
    from memagent.evaluation.records import columns_of
    from pipelines.io.qa_files import import_qa

    where = Corpus(Store(configured(store, config, set_).store), corpus)
    summary = import_qa(where, file, run_id, columns=columns_of(columns or ()), format=format)
    finish(summary, json_, status=0)
