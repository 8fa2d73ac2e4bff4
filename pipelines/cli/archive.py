"""The commands that show and maintain an archive: answers, publish, report, status, optimize, check, forget,
quarantine.
"""

from pathlib import Path
from typing import Annotated

import typer

from memagent.errors import UsageError
from pipelines.cli.options import Common, CorpusArgument, display, open_report, out, show_file, takes, warn_of_source
from pipelines.views.formatting import plain, plural


@takes()
def answers(
    given: Common,
    corpus: CorpusArgument,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="Write table, csv, xlsx, jsonl or parquet; default: the file's extension."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write to this file; default: standard output.")
    ] = None,
    run: Annotated[str | None, typer.Option("--run", help="Show one run: run ID, unique prefix, or `last`.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Filter by field=PATTERN or number, such as 'document=*.pdf', 'confidence<0.8'; repeat to combine."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, max=10**9, help="Show at most this many rows.")] = None,
    withheld: Annotated[
        bool, typer.Option("--withheld", help="Show newer withheld answers instead (see release).")
    ] = False,
) -> None:
    """Show the newest answer to each question, per document."""
    from itertools import islice

    from infra.store.corpora import check_known
    from infra.store.runs import withheld_runs
    from pipelines.cli.live import print_answers
    from pipelines.io.answers import answer_rows, parse, write_answers
    from pipelines.operate.status import find_run
    from pipelines.views.counts import corpus_counts

    conditions, where_from = parse(where or []), given.open_corpus(corpus)
    run_id = find_run(where_from.store, run, check_known(where_from).name) if run else None
    if withheld and run:
        raise UsageError("--withheld goes over all withheld digests; --run shows a run's answers, withheld or not")
    rows = answer_rows(where_from, run_id, conditions, withheld=withheld)
    chosen = islice(rows, limit)
    if output is None and format_ in (None, "table"):
        print_answers(chosen)
    else:
        write_answers(chosen, format_, output)
        if output:
            warn_of_source(where_from.store, output)
    if not run and not withheld and withheld_runs(where_from) and (newer := corpus_counts(where_from)["withheld"]):
        said = f"{plural(newer, 'newer answer')} withheld: memagent answers {where_from.name} --withheld"
        typer.echo(said, err=True)


@takes("json")
def release(
    given: Common, run: Annotated[str, typer.Argument(help="Withheld run: run ID, unique prefix, or `last`.")]
) -> None:
    """Release withheld answers."""
    from pipelines.operate.release import release as run_release

    corpus, runs = run_release(given.open_store(), run)
    released = f"{corpus.name}: released {', '.join(runs)}"
    out({"corpus": corpus.name, "runs": runs}) if given.json else typer.echo(released)


@takes()
def report(
    given: Common,
    run: Annotated[str, typer.Argument(help="Run ID, unique prefix, or `last`.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write to this file; default: report.html.")
    ] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Open it in the browser; without -o, the stored report.")
    ] = False,
    review_url: Annotated[str, typer.Option(help="Link answers to the review pages at this URL.")] = "",
) -> None:
    """Write a run's report as one HTML file."""
    from pipelines.operate.status import find_run
    from pipelines.report.page import write

    tables = given.open_store()
    run_id = find_run(tables, run)
    if open_ and output is None:
        open_report(tables, run_id)
        return
    path = write(tables, run_id, output or Path("report.html"), review_url=review_url)
    typer.echo(str(path))
    warn_of_source(tables, path)
    if open_:
        show_file(path)


@takes("json")
def status(
    given: Common,
    corpus: Annotated[str | None, typer.Argument(help="Name of the corpus; default: all.")] = None,
    scheduled: Annotated[int | None, typer.Option("--scheduled", min=1, help="Show recent scheduled runs.")] = None,
) -> None:
    """Show documents, answers, failures and recent runs of a corpus."""
    from pipelines.operate.status import corpus_status, show_status

    settings = given.settings
    if scheduled is None:
        state = corpus_status(settings, corpus)
        out(state) if given.json else show_status(state)
        return
    from infra.store.corpora import check_known
    from infra.store.location import Corpus, Store
    from pipelines.cli.operate import show_scheduled_runs
    from pipelines.schedule import scheduled_runs_of

    if corpus is None:
        raise UsageError("name a corpus: memagent status CORPUS --scheduled 14")
    runs = scheduled_runs_of(check_known(Corpus(Store(settings.store), corpus)), settings.schedule, scheduled)
    out({"corpus": corpus, "runs": runs}) if given.json else show_scheduled_runs(corpus, runs)


@takes("json")
def optimize(
    given: Common,
    corpus: CorpusArgument,
    retention_days: Annotated[
        float, typer.Option(min=0, help="Keep replaced files this many days; 0: nothing else uses the store.")
    ] = 7.0,
) -> None:
    """Compact a corpus's small files; delete replaced ones."""
    from pipelines.operate.optimize import optimize as run_optimize

    with display(given.json) as show:
        summary = run_optimize(corpus, given.settings, retention_days=retention_days, show=show)
    if given.json:
        out(summary)
    else:
        kept = f"; replaced files are deleted after {retention_days:g} days" if retention_days else ""
        typer.echo(f"{corpus}: {summary['files_before']:,} files before, {summary['files_after']:,} now{kept}")


@takes("json")
def check(
    given: Common,
    corpus: CorpusArgument,
    repair: Annotated[
        bool, typer.Option("--repair", help="Drop damaged files; the next ingest and digest rebuild them.")
    ] = False,
) -> None:
    """Verify a corpus's files against their hashes and counts."""
    from pipelines.operate.check import check as run_check

    with display(given.json) as show:
        summary = run_check(corpus, given.settings, repair=repair, show=show)
    if given.json:
        out(summary)
    else:
        for damage in summary["damages"]:
            does = f" ({'' if repair else '--repair: '}{damage['repair']})" if damage["repair"] else ""
            typer.echo(f"{damage['part']}: {damage['item']}: {damage['detail']}{does}")
        counts = ", ".join(f"{count:,} {what}" for what, count in summary["checked"].items() if count)
        found = sum(summary["found"].values())
        can = not repair and any(damage["repair"] for damage in summary["damages"])
        left = f": memagent check {corpus} --repair" if can else ""
        typer.echo(f"{corpus}: {counts} checked; {found:,} damaged, {summary['lasting']:,} left{left}")
    raise typer.Exit(1 if summary["lasting"] else 0)


@takes("json")
def forget(
    given: Common,
    corpus: CorpusArgument,
    where: Annotated[
        list[str],
        typer.Option(help="Choose documents: document, source or title=PATTERN (* and ?); repeat to choose more."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be erased; change nothing.")] = False,
    canary: Annotated[list[str] | None, typer.Option(help="Verify that this text is gone afterwards.")] = None,
) -> None:
    """Erase documents and everything derived from them."""
    from pipelines.operate.forget import forget as run_forget

    parts = (item.partition("=") for item in where)
    chosen = [("doc_id" if field == "document" else field, pattern) for field, _, pattern in parts]
    summary = run_forget(corpus, given.settings, chosen, dry=dry_run, canaries=canary or ())
    if given.json:
        out(summary)
    else:
        does = "would forget" if dry_run else "forgot"
        typer.echo(
            f"{corpus}: {does} {plural(summary['documents_count'], 'document')}, {plural(summary['texts'], 'text')}, "
            f"{plural(summary['readings'], 'reading')} and {plural(summary['training_rows'], 'training row')}"
        )
        if summary["kept_texts"]:
            typer.echo(
                f"kept, since other documents have them: {plural(summary['kept_texts'], 'text')}. Where a forgotten "
                "document's file still lies in its folder, the next ingest takes it in again"
            )
        for name in summary["evaluated"]:
            typer.echo(f"{name}, an evaluation, had copies: they {'would go' if dry_run else 'went'}, too")
        for policy_id in summary["policies"]:
            typer.echo(f"{policy_id} may have been trained on them: train again without them, or retire it")
        for found in summary["found"]:
            typer.echo(f"still there: {found['passage']!r} in {found['file']}")
        if not dry_run:
            typer.echo(f"searched every file for {summary['searched']:,} passages: {len(summary['found']):,} found")
            if summary["unsearched"]:
                typer.echo(f"{summary['unsearched']:,} texts were erased, not searched for: name passages by --canary")
    raise typer.Exit(1 if summary["found"] else 0)


@takes("json")
def quarantine(
    given: Common,
    corpus: CorpusArgument,
    dismiss: Annotated[
        list[str] | None, typer.Option(help="Ignore this failed item until it changes or fails again; may be repeated.")
    ] = None,
) -> None:
    """Show failed files, documents and questions with reasons."""
    from infra.store.corpora import check_known
    from pipelines.operate.status import quarantined, show_quarantine

    if dismiss:
        from infra.store.runs import new_run_id
        from pipelines.stages.ingest import dismiss as dismiss_sources

        names = dismiss_sources(check_known(given.open_corpus(corpus)), dismiss, given.settings, new_run_id())
        typer.echo(f"dismissed until they change or fail again: {', '.join(map(plain, names))}", err=True)
    rows = quarantined(given.settings, corpus)
    out({"corpus": corpus, "quarantined": rows}) if given.json else show_quarantine(rows)
