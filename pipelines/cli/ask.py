"""The commands that ask: ask and digest."""

import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from memagent.config import Config
from memagent.errors import UsageError
from pipelines.cli.browser import open_report
from pipelines.cli.live_answers import SHOWN, AnswerPrinter
from pipelines.cli.options import (
    AnswersOption,
    BudgetOption,
    ConfigOption,
    CorpusArgument,
    DryOption,
    EngineOption,
    JsonOption,
    ModelOption,
    ParallelSpansOption,
    RunIdOption,
    SetOption,
    StoreOption,
    WaitOption,
    configured,
    display,
    finish,
)

if TYPE_CHECKING:
    from infra.tables.runs import RunSummary
    from pipelines.ask import AskRequest
    from pipelines.target import Target

_LOOK_SECONDS = 5.0
"""Between two looks at a watched folder."""
_PATIENCE = 10
"""A folder that takes long to list is looked at less often: so many times as long between two looks."""
OpenOption = Annotated[bool, typer.Option("--open", help="Open the run's report in the browser.")]


def ask(
    corpus: Annotated[
        str, typer.Argument(metavar="CORPUS|FOLDER", help="A corpus; or a folder, file, glob or s3:// URL.")
    ],
    text: Annotated[list[str] | None, typer.Argument(metavar="QUESTION", help="Question to ask.")] = None,
    question: Annotated[
        list[str] | None, typer.Option("-q", "--question", help="Ask this question; may be repeated.")
    ] = None,
    questions: Annotated[
        str | None, typer.Option("--questions", help="Read questions from a .jsonl, .csv or .toml file.")
    ] = None,
    archive: Annotated[bool, typer.Option("--archive", help="Concatenate all documents; give one answer.")] = False,
    reread: Annotated[bool, typer.Option("--reread", help="Replace answers of older versions of the model.")] = False,
    fetch: Annotated[bool, typer.Option(help="Check the folder for new and changed documents first.")] = True,
    show: Annotated[int, typer.Option("--show", min=0, help="Print at most this many answers as found.")] = SHOWN,
    open_: OpenOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep asking as files arrive, until Ctrl-C.")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    model: ModelOption = None,
    engine: EngineOption = None,
    parallel_spans: ParallelSpansOption = None,
    dry_run: DryOption = False,
    wait: WaitOption = True,
    budget: BudgetOption = None,
    json_: JsonOption = False,
    answers: AnswersOption = True,
    run_id: RunIdOption = None,
) -> None:
    """Ask questions of a corpus or folder; print answers as found.

    One answer per document, or one over the archive. A folder's corpus is made on the way.
    """
    from infra.store import Store
    from memagent.questions import ask as make_question
    from memagent.questions import load_questions
    from pipelines.ask import AskRequest
    from pipelines.target import find_target

    settings = configured(
        store, config, set_, model=model, engine=engine, parallel_spans=parallel_spans, wait=wait, budget=budget
    )
    texts = [*(text or []), *(question or [])]
    if not texts and not questions:
        raise UsageError("no question: give -q 'a question', or --questions FILE")
    if paths := [given for given in text or [] if Path(given).exists()]:
        raise UsageError(
            f"{paths[0]!r} is taken for a question: one corpus or folder is asked at a time. "
            "Make a corpus of several by memagent ingest NAME FOLDER FOLDER; a question goes after -q, too"
        )
    wanted = list({each.text: each for each in map(make_question, texts)}.values())
    wanted += load_questions(questions) if questions else []
    whom = find_target(Store(settings.store), corpus, fetch=fetch)
    if watch and (json_ or dry_run or not whom.sources):
        what = "--json" if json_ else "--dry-run" if dry_run else f"corpus {corpus!r} as it is: give its folder"
        raise UsageError(f"--watch goes on as files arrive; it does not go with {what}")
    if dry_run:
        from pipelines.dry_run import ask_dry_run

        estimate = ask_dry_run(whom, wanted, settings, archive=archive, reread=reread)
        finish(estimate, json_, status=0)
    request = AskRequest(whom.corpus.name, wanted, settings, archive=archive, reread=reread, run_id=run_id)
    if watch:
        _watch(whom, request, show, open_)
        return
    summary = _answered(whom, request, show, json_)
    if open_:
        open_report(Store(settings.store), summary["run_id"])
    _conclude(settings, summary, json_, answers)


def digest(
    corpus: CorpusArgument,
    questions: Annotated[
        str | None, typer.Option("--questions", help="Replace the default questions by this file.")
    ] = None,
    fetch: Annotated[bool, typer.Option(help="Ingest the corpus's sources first.")] = True,
    open_: OpenOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    model: ModelOption = None,
    engine: EngineOption = None,
    parallel_spans: ParallelSpansOption = None,
    dry_run: DryOption = False,
    wait: WaitOption = True,
    budget: BudgetOption = None,
    force: Annotated[bool, typer.Option("--force", help="Skip the quality checks; show the answers.")] = False,
    json_: JsonOption = False,
    answers: AnswersOption = True,
    run_id: RunIdOption = None,
) -> None:
    """Update a corpus and the answers to its default questions."""
    from infra.store import Store
    from infra.tables.corpora import check_name
    from memagent.questions import load_questions
    from pipelines.ask import digest as run_digest

    settings = configured(
        store,
        config,
        set_,
        model=model,
        engine=engine,
        parallel_spans=parallel_spans,
        wait=wait,
        budget=budget,
        force=force,
    )
    defaults = load_questions(questions) if questions else None
    check_name(corpus)
    if dry_run:
        from pipelines.dry_run import digest_dry_run

        finish(digest_dry_run(corpus, defaults, settings, fetch=fetch), json_, status=0)
    with display(json_) as show:
        summary = run_digest(corpus, defaults, settings, fetch=fetch, run_id=run_id, show=show)
    if open_:
        open_report(Store(settings.store), summary["run_id"])
    _conclude(settings, summary, json_, answers)


def _answered(whom: "Target", request: "AskRequest", most: int, json_: bool, *, again: bool = False) -> "RunSummary":
    """Bring the corpus up to date, ask, and print the answers as they are found; `again`: only those of this run."""
    from pipelines.target import ask_target

    if json_:
        return ask_target(whom, request)
    from rich.console import Console

    from pipelines.cli.live import Display

    # Ray's own words go to standard error while it runs; on a terminal the panel's console keeps rows above the panel.
    result = Console(file=sys.stdout)
    with Display() as shown:
        console = shown.console if result.is_terminal and shown.mode == "live" else result
        printer = AnswerPrinter(console, len(request.questions), most, earlier=not again)
        summary = ask_target(whom, replace(request, watch=printer), shown.update)
    counts = summary["readings"]
    printer.rest(result, counts["read_now"] if again else counts["total"] - counts["failed"])
    return summary


def _watch(whom: "Target", request: "AskRequest", most: int, open_: bool) -> None:
    """Ask, and ask again whenever a source is new, changed or gone, until the user interrupts it."""
    from rich.console import Console

    from infra.cluster.session import lazy_ray
    from infra.store import Store
    from infra.tables.documents import has_documents
    from pipelines.cli.rollup import show_held
    from pipelines.target import news

    again, last = False, ""
    typer.echo(f"watching {whom.sources[0]}; Ctrl-C ends it", err=True)
    with lazy_ray(request.config.ray), suppress(KeyboardInterrupt):
        while True:
            began = time.monotonic()
            found = news(whom, request.config)
            looked = time.monotonic() - began
            if (found and found != last) or (not again and has_documents(whom.corpus)):
                summary = _answered(whom, request, most, json_=False, again=again)
                if not again:
                    show_held(Console(), summary)
                if open_ and not again:
                    open_report(Store(request.config.store), summary["run_id"])
                again, last = True, found  # a source that cannot be opened is news in every look, and asked about once
            time.sleep(max(_LOOK_SECONDS, _PATIENCE * looked))


def _conclude(settings: Config, summary: "RunSummary", json_: bool, answers: bool) -> NoReturn:
    from pipelines.formatting import exit_status

    status = exit_status(summary)
    if json_ and not answers:
        summary.pop("rollup", None)  # it names documents
    elif json_:
        from pipelines.exchange.answers import answer_table

        rows = answer_table(settings, summary["corpus"], summary["run_id"])
        finish({"summary": summary, "answers": rows}, json_, status)
    finish(summary, json_, status)
