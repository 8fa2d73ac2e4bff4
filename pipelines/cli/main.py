"""The command line. Importing it loads nothing heavy; each command imports what it runs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memagent import __version__
from memagent.config import Config
from memagent.errors import MemagentError, UsageError
from pipelines.cli.archive import answers, check, forget, optimize, quarantine, report, status
from pipelines.cli.evaluate import evaluate, scores
from pipelines.cli.harvest import feedback, harvest, qa
from pipelines.cli.options import (
    AnswersOption,
    ConfigOption,
    CorpusArgument,
    DryOption,
    EngineOption,
    JsonOption,
    LanesOption,
    ModelOption,
    RunIdOption,
    SetOption,
    StoreOption,
    WaitOption,
    configured,
    display,
    finish,
    out,
)
from pipelines.cli.policies import CheckOption, GateOption, promotion_spec
from pipelines.cli.policies import app as policies_app
from pipelines.cli.storage_errors import storage_error
from pipelines.cli.train import app as train_app

if TYPE_CHECKING:
    from infra.tables.runs import RunSummary

_INTERRUPTED = 130
app = typer.Typer(
    name="memagent",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(train_app, name="train")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"memagent {__version__}")
        raise typer.Exit


def _verbose(wanted: bool) -> None:
    if wanted:
        import logging

        from infra.cluster import session

        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
        logging.getLogger("memagent").setLevel(logging.INFO)
        session.verbose = True


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", callback=_verbose, help="Show the logs of the product and of Ray.")
    ] = False,
) -> None:
    """Read archives of long documents with a memory of fixed size, and answer questions with evidence."""


for _command in (answers, report, status, optimize, check, forget, quarantine):
    app.command()(_command)
app.command()(evaluate)
app.command()(scores)
app.command()(harvest)
app.command()(feedback)
app.add_typer(qa, name="qa")
app.add_typer(policies_app, name="policies")


@app.command()
def doctor(
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    model: ModelOption = None,
    engine: EngineOption = None,
    json_: JsonOption = False,
) -> None:
    """Check this machine: engine, Ray, store, Prefect, memory, cores."""
    from pipelines.doctor import examine, show

    settings = configured(store, config, set_, model=model, engine=engine)
    checks = examine(settings)
    out({"checks": checks}) if json_ else show(checks)
    raise typer.Exit(0 if all(check["ok"] for check in checks) else 1)


@app.command()
def ingest(
    corpus: CorpusArgument,
    sources: Annotated[list[str], typer.Argument(help="Folders, files, globs, s3:// URLs.")],
    tag: Annotated[list[str] | None, typer.Option(help="Tag all documents under them, as in sensitive.")] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
    run_id: RunIdOption = None,
) -> None:
    """Take documents into a corpus. Unchanged ones are skipped; changed and deleted ones are updated."""
    from infra.cluster.session import lazy_ray
    from infra.store import Corpus, Store
    from infra.tables.corpora import check_name, remember
    from infra.tables.corpora import tag as set_tags
    from pipelines.runs import keep_ingest, run_id_or_new
    from pipelines.stages.ingest import ingest as run_ingest

    settings = configured(store, config, set_)
    target, run_id = Corpus(Store(settings.store), check_name(corpus)), run_id_or_new(run_id)
    absolute = [_absolute(source) for source in sources]
    if tag:
        set_tags(target, absolute, tag)  # before: no document may be in the corpus without its tag
    with display(json_) as show, lazy_ray(settings.ray):
        summary = run_ingest(target, sources, settings, run_id=run_id, progress=show)
    remember(target, sources=absolute)
    keep_ingest(target.store, run_id, summary)
    finish({"run_id": run_id, "corpus": corpus, "kind": "ingest", **summary}, json_, bool(summary["quarantined"]))


@app.command()
def ask(
    corpus: CorpusArgument,
    question: Annotated[list[str] | None, typer.Option("-q", "--question", help="May be repeated.")] = None,
    questions: Annotated[str | None, typer.Option("--questions", help="A .jsonl, .csv or .toml file.")] = None,
    archive: Annotated[bool, typer.Option("--archive", help="One answer over the archive as one stream.")] = False,
    reread: Annotated[bool, typer.Option("--reread", help="Read again what an older policy answered.")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    model: ModelOption = None,
    engine: EngineOption = None,
    lanes: LanesOption = None,
    dry_run: DryOption = False,
    wait: WaitOption = True,
    json_: JsonOption = False,
    answers: AnswersOption = True,
    run_id: RunIdOption = None,
) -> None:
    """Ask questions of a corpus: one answer per document, or one over the archive."""
    from infra.tables.corpora import check_name
    from memagent.questions import ask as make_question
    from memagent.questions import load_questions
    from pipelines.ask import ask as run_ask
    from pipelines.ask import dry_run as estimate_only

    settings = configured(store, config, set_, model=model, engine=engine, lanes=lanes, wait=wait)
    asked = [make_question(text) for text in question or []] + (load_questions(questions) if questions else [])
    if not asked:
        raise UsageError("no question: give -q 'a question', or --questions FILE")
    check_name(corpus)
    with display(json_) as show:
        if dry_run:
            estimate = estimate_only(corpus, asked, settings, archive=archive, reread=reread, show=show)
        else:
            summary = run_ask(corpus, asked, settings, archive=archive, reread=reread, run_id=run_id, show=show)
    if dry_run:
        finish(estimate, json_, failed=False)
    _conclude(settings, summary, json_, answers)


@app.command()
def digest(
    corpus: CorpusArgument,
    questions: Annotated[str | None, typer.Option("--questions", help="New standing questions.")] = None,
    fetch: Annotated[bool, typer.Option(help="Ingest the corpus's sources first.")] = True,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    model: ModelOption = None,
    engine: EngineOption = None,
    lanes: LanesOption = None,
    dry_run: DryOption = False,
    wait: WaitOption = True,
    json_: JsonOption = False,
    answers: AnswersOption = True,
    run_id: RunIdOption = None,
) -> None:
    """Update a corpus and the answers to its standing questions, and roll the answers up."""
    from infra.tables.corpora import check_name
    from memagent.questions import load_questions
    from pipelines.ask import digest as run_digest
    from pipelines.ask import digest_dry_run

    settings = configured(store, config, set_, model=model, engine=engine, lanes=lanes, wait=wait)
    standing = load_questions(questions) if questions else None
    check_name(corpus)
    with display(json_) as show:
        if dry_run:
            estimate = digest_dry_run(corpus, standing, settings, fetch=fetch, show=show)
        else:
            summary = run_digest(corpus, standing, settings, fetch=fetch, run_id=run_id, show=show)
    if dry_run:
        finish(estimate, json_, failed=False)
    _conclude(settings, summary, json_, answers)


@app.command()
def up(
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    model: ModelOption = None,
    engine: EngineOption = None,
    cron: Annotated[str, typer.Option(help="Cron of the nightly digest.")] = "0 2 * * *",
    scores_cron: Annotated[str, typer.Option(help="Cron of the nightly evaluation.")] = "0 5 * * *",
    optimize_cron: Annotated[str, typer.Option(help="Cron of compacting the store's files.")] = "0 4 * * *",
    retrain_cron: Annotated[
        str | None, typer.Option(help="Cron of retraining; by default only when enough rows are new.")
    ] = None,
    enough: Annotated[int, typer.Option(min=1, help="New training rows that start a training.")] = 500,
    recipe: Annotated[str, typer.Option(help="Training recipe: a name or a TOML file.")] = "nano-cpu",
    timezone: Annotated[str, typer.Option(help="Time zone of the schedules.")] = "UTC",
    check: CheckOption = None,
    at_once: Annotated[int, typer.Option(min=1, help="Flow runs at the same time; the others wait.")] = 1,
    port: Annotated[int, typer.Option(help="Port of the Prefect server, on 127.0.0.1.")] = 4200,
    gate: GateOption = None,
) -> None:
    """Run the Prefect server, the nightly digest, bulk answering, harvest and retraining on this machine."""
    from pipelines.cli.up import up as run_up
    from pipelines.flows.serve import ServingPlan

    keys = promotion_spec(check, None).model_dump(mode="json", exclude_unset=True)
    plan = ServingPlan(
        cron=cron,
        scores_cron=scores_cron,
        optimize_cron=optimize_cron,
        timezone=timezone,
        recipe=recipe,
        retrain_cron=retrain_cron,
        enough=enough,
        check=keys,
        at_once=at_once,
    )
    run_up(configured(store, config, set_, model=model, engine=engine), plan, port)


def main() -> None:
    """Run the command line; usage errors end with status 2, others with 1."""
    try:
        app(standalone_mode=True)
    except UsageError as error:
        _fail(error, 2)
    except MemagentError as error:
        _fail(error, 1)
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # Typer has taken the interrupt
            typer.echo("memagent: stopped; run the same command to continue", err=True)
        raise
    except Exception as error:
        if said := storage_error(error):
            _fail(said, 1)
        raise


def _absolute(source: str) -> str:
    if not source.strip():
        raise UsageError("a source is empty: give a folder, a glob, a file or an s3:// URL")
    return source if "://" in source else str(Path(source).expanduser().absolute())


def _conclude(settings: Config, summary: "RunSummary", json_: bool, answers: bool) -> None:
    from pipelines.formatting import failures

    failed = bool(failures(summary))
    if json_ and not answers:
        summary.pop("rollup", None)  # it names documents
    elif json_:
        from pipelines.exchange.answers import answer_table

        rows = answer_table(settings, summary["corpus"], summary["run_id"])
        finish({"summary": summary, "answers": rows}, json_, failed)
    finish(summary, json_, failed)


def _fail(error: object, status: int) -> None:
    typer.echo(f"memagent: {error}", err=True)
    sys.exit(status)
