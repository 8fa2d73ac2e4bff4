"""The commands that show and maintain an archive: answers, publish, report, status, optimize, check, forget,
quarantine.
"""

from pathlib import Path
from typing import Annotated

import typer

from memagent.config import Config
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
        str | None,
        typer.Option("--format", help="table, csv, xlsx, jsonl or parquet; by the file's name."),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File; standard output by default.")] = None,
    run: Annotated[
        str | None, typer.Option("--run", help="Only of this run: its id, the beginning of it, or 'last'.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="field=pattern for whole values, as in 'document=*.pdf' (* and ?), or 'confidence<0.8'; all must hold."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of rows.")] = None,
    held: Annotated[
        bool, typer.Option("--held", help="Newer answers that are held back (see publish), in place of those shown.")
    ] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Show the newest answer to every question for every document of a corpus."""
    from itertools import islice

    from infra.store import Corpus, Store
    from infra.tables.corpora import check_known
    from pipelines.exchange.answers import answer_rows, write_answers
    from pipelines.exchange.conditions import parse
    from pipelines.status import find_run

    settings = configured(store, config, set_)
    conditions = parse(where or [])
    where_from = Corpus(Store(settings.store), corpus)
    run_id = find_run(where_from.store, run, check_known(where_from).name) if run else None
    if held and run:
        raise UsageError("--held goes over all held nights; --run shows a run's answers, held or not")
    rows = answer_rows(where_from, run_id, conditions, held=held)
    write_answers(islice(rows, limit), format_, output)


def publish(
    run: Annotated[str, typer.Argument(help="A held run: its id, or the beginning of it.")],
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Show people the answers of a night that was held back, as they were unlike those of the nights before."""
    from infra.store import Store
    from pipelines.gates import publish as run_publish

    corpus, runs = run_publish(Store(configured(store, config, set_).store), run)
    out({"corpus": corpus.name, "runs": runs}) if json_ else typer.echo(f"{corpus.name}: published {', '.join(runs)}")


def report(
    run: Annotated[str, typer.Argument(help="A run id, the beginning of one, or 'last'.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The HTML file; report.html.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser; without -o, the store's own.")] = False,
    desk: Annotated[str, typer.Option(help="Address of a desk that answers link to.")] = "",
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Write a run's report as one self-contained HTML file."""
    from infra.store import Store
    from pipelines.cli.browser import open_report, show_file
    from pipelines.report import write
    from pipelines.status import find_run

    tables = Store(configured(store, config, set_).store)
    run_id = find_run(tables, run)
    if open_ and output is None:
        open_report(tables, run_id)
        return
    path = write(tables, run_id, output or Path("report.html"), desk=desk)
    typer.echo(str(path))
    if open_:
        show_file(path)


def status(
    corpus: Annotated[str | None, typer.Argument(help="Name of the corpus; all by default.")] = None,
    nights: Annotated[int | None, typer.Option("--nights", min=1, help="What became of the last nights.")] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Show documents, answers, failures and the last runs of a corpus; or its nights."""
    from pipelines.status import corpus_status, show_status

    if nights is not None:
        _status_of_nights(corpus, configured(store, config, set_), nights, json_)
        return
    state = corpus_status(configured(store, config, set_), corpus)
    out(state) if json_ else show_status(state)


def _status_of_nights(corpus: str | None, settings: Config, count: int, json_: bool) -> None:
    from infra.store import Corpus, Store
    from infra.tables.corpora import check_known
    from pipelines.cli.nights import show_nights
    from pipelines.nights import nights_of

    if corpus is None:
        raise UsageError("whose nights? memagent status CORPUS --nights 14")
    nights = nights_of(check_known(Corpus(Store(settings.store), corpus)), settings.night, count)
    out({"corpus": corpus, "nights": nights}) if json_ else show_nights(corpus, nights)


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


def check(
    corpus: CorpusArgument,
    repair: Annotated[
        bool, typer.Option("--repair", help="Drop what is damaged; the next ingest and digest make it again.")
    ] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Check a corpus's files, texts, segments, turn log, answers and policies against hashes and counts."""
    from pipelines.check import check as run_check

    with display(json_) as show:
        summary = run_check(corpus, configured(store, config, set_), repair=repair, show=show)
    if json_:
        out(summary)
    else:
        for damage in summary["damages"]:
            does = damage["repair"] or "nothing can be done"
            does = does if repair or not damage["repair"] else f"--repair: {does}"
            typer.echo(f"{damage['part']}: {damage['item']}: {damage['detail']} ({does})")
        counts = ", ".join(f"{count:,} {what}" for what, count in summary["checked"].items() if count)
        found = sum(summary["found"].values())
        left = "" if repair or not summary["lasting"] else f": memagent check {corpus} --repair"
        typer.echo(f"{corpus}: {counts} checked; {found:,} damaged, {summary['lasting']:,} left{left}")
    raise typer.Exit(1 if summary["lasting"] else 0)


def forget(
    corpus: CorpusArgument,
    where: Annotated[
        list[str],
        typer.Option(help="doc_id=PATTERN, source=PATTERN or title=PATTERN (* and ?); what matches any is forgotten."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be forgotten; change nothing.")] = False,
    canary: Annotated[list[str] | None, typer.Option(help="A text that must not be in the store afterwards.")] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Forget documents: texts, segments, memories, answers, training rows, and all earlier versions of them."""
    from pipelines.forget import forget as run_forget

    chosen = [(field, pattern) for field, _, pattern in (item.partition("=") for item in where)]
    summary = run_forget(corpus, configured(store, config, set_), chosen, dry=dry_run, canaries=canary or ())
    if json_:
        out(summary)
    else:
        does = "would forget" if dry_run else "forgot"
        typer.echo(
            f"{corpus}: {does} {summary['documents_count']:,} documents, {summary['texts']:,} texts, "
            f"{summary['readings']:,} readings and {summary['training_rows']:,} training rows"
        )
        for kept in filter(None, [summary["kept_texts"] and f"{summary['kept_texts']:,} texts stay: others have them"]):
            typer.echo(kept)
        for name in summary["evaluated"]:
            typer.echo(f"{name}, an evaluation, had copies: they {'would go' if dry_run else 'went'}, too")
        for policy_id in summary["policies"]:
            typer.echo(f"{policy_id} may have learnt from them: train again without them, or retire it")
        for found in summary["found"]:
            typer.echo(f"still there: {found['passage']!r} in {found['file']}")
        if not dry_run:
            typer.echo(f"searched every file for {summary['searched']:,} passages: {len(summary['found']):,} found")
            if summary["unsearched"]:
                typer.echo(
                    f"{summary['unsearched']:,} texts were erased and not searched for: name passages by --canary"
                )
    raise typer.Exit(1 if summary["found"] else 0)


def quarantine(
    corpus: CorpusArgument,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Show what failed, with reasons: files, documents, questions."""
    from pipelines.status import quarantined, show_quarantine

    rows = quarantined(configured(store, config, set_), corpus)
    out({"corpus": corpus, "quarantined": rows}) if json_ else show_quarantine(rows)
