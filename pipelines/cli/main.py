"""The command line. Importing it loads nothing heavy; each command imports what it runs."""

import signal
import sys
import threading
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from memagent.errors import MemagentError, UsageError, missing_extra
from memagent.version import __version__
from pipelines.cli import options
from pipelines.cli.archive import answers, check, forget, optimize, quarantine, release, report, status
from pipelines.cli.ask import ask, digest
from pipelines.cli.init import init
from pipelines.cli.learning import evaluate, feedback, harvest, qa, scores
from pipelines.cli.operate import app as engine_app
from pipelines.cli.operate import backfill, cost
from pipelines.cli.options import HOST, Common, CorpusArgument, HostOption, UrlOption, display, finish, out, takes
from pipelines.cli.policies import CheckOption, promotion_spec
from pipelines.cli.policies import app as policies_app
from pipelines.cli.train import app as train_app
from pipelines.cli.web import mcp, metrics, review, serve
from pipelines.views.formatting import EXIT_STATUS, status_of

_INTERRUPTED = 130
app = typer.Typer(name="memagent", no_args_is_help=True, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"memagent {__version__}")
        raise typer.Exit


class LogFormat(StrEnum):
    """`logging.format`."""

    text = "text"
    json = "json"


def _show_logs(kind: str) -> None:
    import logging

    from infra.cluster import session
    from infra.system.logs import formatter

    handler = logging.StreamHandler()
    handler.setFormatter(formatter(kind))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("memagent").setLevel(logging.INFO)
    session.verbose = True


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show logs of memagent and Ray.")] = False,
    log_format: Annotated[LogFormat | None, typer.Option(help="Log as text or json (logging.format).")] = None,
) -> None:
    """Answer questions over archives of long documents, with evidence."""
    options.log_format = log_format.value if log_format else None
    if verbose:
        _show_logs(options.log_format or "text")


@takes("model", "engine", "json")
def doctor(given: Common) -> None:
    """Check this machine: engine, Ray, store, Prefect, memory, cores."""
    from pipelines.operate.doctor import examine, show

    checks = examine(given.settings)
    out({"checks": checks}) if given.json else show(checks)
    raise typer.Exit(0 if all(check["ok"] for check in checks) else 1)


@takes("max_failed", "json", "run_id")
def ingest(
    given: Common,
    corpus: CorpusArgument,
    sources: Annotated[list[str] | None, typer.Argument(help="Folders, files, globs, s3:// URLs.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Tag these documents, for example sensitive.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print what would be taken from files, given without a corpus.")
    ] = False,
) -> None:
    """Add documents to a corpus; skip unchanged ones."""
    if explain:
        _explain([corpus, *(sources or ())], given)
    elif not sources:
        raise UsageError(f"no sources: memagent ingest {corpus} FOLDER")
    else:
        _ingest(corpus, sources, tag, given)


def _explain(paths: list[str], given: Common) -> None:
    from rich.console import Console

    from pipelines.operate.dry_run import explain, show

    taken = explain(paths, given.settings.ingest)
    if given.json:
        out({"documents": [{"source": source, **asdict(one)} for source, one in taken]})
        return
    for source, one in taken:
        show(Console(), source, one)


def _ingest(corpus: str, sources: list[str], tag: list[str] | None, given: Common) -> None:
    from infra.cluster.session import lazy_ray
    from infra.store.corpora import check_name, remember
    from infra.store.corpora import tag as set_tags
    from infra.store.location import Corpus, Store
    from infra.store.runs import run_id_or_new
    from pipelines.stages.ingest import ingest as run_ingest
    from pipelines.target import absolute

    settings = given.settings
    target, run_id = Corpus(Store(settings.store), check_name(corpus)), run_id_or_new(given.run_id)
    paths = [absolute(source) for source in sources]
    if tag:
        set_tags(target, paths, tag)  # before: no document may be in the corpus without its tag
    with display(given.json) as show, lazy_ray(settings.ray):
        summary = run_ingest(target, sources, settings, run_id=run_id, progress=show)
    remember(target, sources=paths)
    read = summary["documents"] + summary["unchanged"]
    verdict = status_of({"ingest": summary, "documents": read, "config": settings.public()})
    shown = {"run_id": run_id, "corpus": corpus, "kind": "ingest", "status": verdict, **summary}
    finish(shown, given.json, EXIT_STATUS[verdict])


@takes("model", "engine")
def up(
    given: Common,
    cron: Annotated[
        str | None, typer.Option(help="Schedule the digest; default: as at the server, at first '0 2 * * *'.")
    ] = None,
    scores_cron: Annotated[
        str | None, typer.Option(help="Schedule the evaluation; default: as at the server, at first '0 5 * * *'.")
    ] = None,
    optimize_cron: Annotated[
        str | None, typer.Option(help="Schedule compaction; default: as at the server, at first '0 4 * * *'.")
    ] = None,
    retrain_cron: Annotated[
        str | None, typer.Option(help="Schedule retraining; default: when --enough rows are new.")
    ] = None,
    enough: Annotated[int, typer.Option(min=1, help="Train after this many new training rows.")] = 500,
    recipe: Annotated[str, typer.Option(help="Train by this recipe: a name or a TOML file.")] = "nano-cpu",
    timezone: Annotated[
        str | None, typer.Option(help="Use this time zone for schedules; default: as at the server, at first UTC.")
    ] = None,
    check: CheckOption = None,
    at_once: Annotated[int, typer.Option(min=1, help="Run this many flows at once.")] = 1,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Serve Prefect on this port.")] = 4200,
    review_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Also serve the review pages on this port.")
    ] = None,
    host: HostOption = HOST,
    url: UrlOption = None,
) -> None:
    """Run Prefect with nightly digest, bulk answering and retraining."""
    from pipelines.cli.up import up as run_up
    from pipelines.flows.serve import ServingPlan
    from pipelines.web.address import Address

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
    run_up(given.settings, plan, Address(port, host, url), review_port)


_OPERATE, _TRAIN = "Operate", "Evaluate and train"
for _panel, _commands in (
    ("Read", (ingest, ask, digest, backfill, answers, report, release)),
    ("Review and serve", (review, feedback, serve, mcp)),
    (_OPERATE, (init, up, doctor, status, quarantine, cost, check, optimize, forget, metrics)),
    (_TRAIN, (evaluate, scores, harvest)),
):
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
app.add_typer(engine_app, name="engine", rich_help_panel=_OPERATE)
for _name, _group in (("qa", qa), ("train", train_app), ("policies", policies_app)):
    app.add_typer(_group, name=_name, rich_help_panel=_TRAIN)


def main() -> None:
    """Run the command line; usage errors end with status 2, others with 1.

    SIGTERM, as service managers and clusters send it, stops a command as Ctrl-C does.
    """
    terminated = threading.Event()

    def stop(*_: object) -> None:
        terminated.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        app(standalone_mode=True)
    except UsageError as error:
        _fail(error, 2)
    except MemagentError as error:
        _fail(error, 1)
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # Typer has taken the interrupt
            typer.echo("memagent: stopped; run the same command to continue", err=True)
            if terminated.is_set():
                sys.exit(128 + signal.SIGTERM)
        raise
    except Exception as error:
        from infra.store.location import storage_error

        if said := missing_extra(error):
            _fail(said, 2)
        if said := storage_error(error):
            _fail(said, 1)
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to be stopped


def _fail(error: object, status: int) -> None:
    typer.echo(f"memagent: {error}", err=True)
    sys.exit(status)
