"""The commands ``harvest``, ``feedback`` and ``qa``. Importing them loads nothing heavy."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import Common, CorpusArgument, display, finish, takes

FileArgument = Annotated[Path, typer.Argument(help=".parquet or .jsonl file.")]
FormatOption = Annotated[
    str | None,
    typer.Option(
        help="Use these columns: verl, openrlhf, memagent or own; default: verl in Parquet, own in JSON lines."
    ),
]


@takes("model", "engine", "json", "run_id")
def harvest(
    given: Common,
    corpus: CorpusArgument,
    agreement: Annotated[int, typer.Option(min=0, help="Sample this many readings of questions without gold.")] = 0,
    generate: Annotated[int, typer.Option(min=0, help="Generate this many questions from segments.")] = 0,
    least_share: Annotated[
        float, typer.Option(min=0, max=1, help="Require this share of sampled readings to agree.")
    ] = 0.7,
    exclude_tag: Annotated[list[str] | None, typer.Option(help="Leave out documents with this tag; '': none.")] = None,
    export: Annotated[Path | None, typer.Option(help="Also write the rows to this Parquet file.")] = None,
) -> None:
    """Make training rows from answers, feedback, agreement and generated questions."""
    from infra.store.corpora import check_name
    from pipelines.harvest import HarvestOptions
    from pipelines.harvest import harvest as run
    from pipelines.io.qa_files import export_qa

    options = HarvestOptions(agreement, generate, least_share=least_share)
    if exclude_tag is not None:
        options = replace(options, exclude=tuple(tag for tag in exclude_tag if tag))
    with display(given.json) as show:
        summary = run(check_name(corpus), given.settings, options, run_id=given.run_id, show=show)
    if export is not None and summary["rows"]:
        export_qa(given.open_corpus(corpus), export)
        summary["export"] = str(export)
    finish(summary, given.json, status=0)


@takes("json")
def feedback(
    given: Common,
    file: Annotated[Path, typer.Argument(help=".csv, .xlsx or .jsonl file with reading_id, verdict, answer.")],
    corpus: Annotated[str | None, typer.Argument(help="Import only readings of this corpus; default: all.")] = None,
) -> None:
    """Import accepted, rejected and corrected answers."""
    from pipelines.io.feedback import take_feedback

    summary = take_feedback(given.open_store(), file, corpus)
    finish(summary, given.json, status=1 if summary["unknown_readings"] else 0)


qa = typer.Typer(help="Exchange training rows with other tools.", add_completion=False, no_args_is_help=True)


@qa.command("export")
@takes("json")
def export(given: Common, corpus: CorpusArgument, file: FileArgument, format: FormatOption = None) -> None:
    """Export a corpus's training rows to a file."""
    from pipelines.io.qa_files import export_qa

    rows = export_qa(given.open_corpus(corpus), file, format)
    finish({"kind": "export", "corpus": corpus, "rows": rows, "file": str(file)}, given.json, status=0)


@qa.command("import")
@takes("json", "run_id")
def import_(
    given: Common,
    corpus: CorpusArgument,
    file: FileArgument,
    format: FormatOption = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="Name the file's columns: question=NAME, text=NAME, answers=NAME.")
    ] = None,
) -> None:
    """Import gold answers and their texts into a corpus."""
    from memagent.evaluation.records import columns_of
    from pipelines.io.qa_files import import_qa

    named = columns_of(columns or ())
    summary = import_qa(given.open_corpus(corpus), file, given.run_id, columns=named, format=format)
    finish(summary, given.json, status=0)
