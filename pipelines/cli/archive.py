"""The commands that show and maintain an archive: answers, report, status, optimize, quarantine."""

from pathlib import Path
from typing import Annotated

import typer

from memagent.errors import UsageError
from pipelines.cli.options import (
    ConfigOption,
    CorpusArgument,
    JsonOption,
    SetOption,
    StoreOption,
    configured,
    display,
    out,
)


def answers(
    corpus: CorpusArgument,
    format_: Annotated[
        str | None, typer.Option("--format", help="table, csv, jsonl or parquet; by default as the file's name ends.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File; standard output by default.")] = None,
    run: Annotated[str | None, typer.Option("--run", help="Only the answers of this run.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="field=pattern for whole values, as in 'document=*.pdf' (* and ?); all must match."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of rows.")] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Show the newest answer to every question for every document of a corpus."""
    from itertools import islice

    from infra.store import Corpus, Store
    from pipelines.exchange.answers import answer_rows, write_answers

    settings = configured(store, config, set_)
    patterns = [(field, pattern) for field, _, pattern in (item.partition("=") for item in where or [])]
    if wrong := [item for item in where or [] if "=" not in item]:
        raise UsageError(f"--where {wrong[0]!r}: write it as field=pattern, as in 'document=*.pdf'")
    rows = answer_rows(Corpus(Store(settings.store), corpus), run, patterns)
    write_answers(islice(rows, limit), format_, output)


def report(
    run: Annotated[str, typer.Argument(help="A run id, or 'last'.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file.")] = Path("report.html"),
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Write a run's report as one self-contained HTML file."""
    from infra.store import Store
    from pipelines.report import write
    from pipelines.status import find_run

    tables = Store(configured(store, config, set_).store)
    typer.echo(str(write(tables, find_run(tables, run), output)))


def status(
    corpus: Annotated[str | None, typer.Argument(help="Name of the corpus; all by default.")] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Show documents, answers, failures and the last runs of a corpus."""
    from pipelines.status import corpus_status, show_status

    state = corpus_status(configured(store, config, set_), corpus)
    out(state) if json_ else show_status(state)


def optimize(
    corpus: CorpusArgument,
    retention_days: Annotated[
        float, typer.Option(min=0, help="Days to keep replaced files; 0 only if nothing else uses the store.")
    ] = 7.0,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Compact and sort the small files of a corpus, and delete replaced files."""
    from pipelines.optimize import optimize as run_optimize

    settings = configured(store, config, set_)
    with display(json_) as show:
        summary = run_optimize(corpus, settings, retention_days=retention_days, show=show)
    if json_:
        out(summary)
    else:
        kept = f"; replaced files are deleted after {retention_days:g} days" if retention_days else ""
        typer.echo(f"{corpus}: {summary['files_before']:,} files before, {summary['files_after']:,} now{kept}")


def quarantine(
    corpus: CorpusArgument,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Show failed sources, documents and readings, with reasons."""
    from pipelines.status import quarantined, show_quarantine

    rows = quarantined(configured(store, config, set_), corpus)
    out({"corpus": corpus, "quarantined": rows}) if json_ else show_quarantine(rows)
