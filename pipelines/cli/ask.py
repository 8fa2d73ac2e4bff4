"""The commands that ask: ask and digest."""

import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from memagent.config import Config
from memagent.errors import UsageError
from pipelines.cli.live import Display, answer_cells
from pipelines.cli.options import Common, CorpusArgument, OpenOption, display, finish, open_report, show_held, takes
from pipelines.views.formatting import exit_status, number, unanswered

if TYPE_CHECKING:
    from infra.store.delta import DataFile
    from infra.store.location import Corpus
    from infra.store.runs import RunSummary
    from pipelines.ask import AskRequest
    from pipelines.io.answers import GivenAnswer
    from pipelines.target import Target


SHOWN = 20
"""Answers that are printed, unless `--show` says otherwise."""
_NARROW = 60
"""Columns of a terminal below which an answer's parts stand under each other."""
_LINES = 3
"""Most lines of a cell."""


class AnswerPrinter:
    """Prints the answers of a run as they are found (`pipelines.stages.read.AnswerWatch`)."""

    def __init__(self, console: Console, questions: int, most: int = SHOWN, *, earlier: bool = True) -> None:
        """Print at most `most` answers: a terminal gets a table, which repeats no question if there is only one;
        another stream a line an answer. Those of earlier runs are among them, unless `earlier` is off.
        """
        self._console, self._one = console, questions == 1
        self._most, self._earlier = most, earlier
        self._corpus: Corpus | None = None
        self._run_id = ""
        self.printed = 0

    def planned(self, corpus: "Corpus", run_id: str) -> None:
        """Print what earlier runs have answered."""
        from pipelines.io.answers import answered_before

        self._corpus, self._run_id = corpus, run_id
        if self._earlier and self._most > self.printed:
            self._print(answered_before(corpus, run_id))

    def answered(self, files: Sequence["DataFile"]) -> None:
        """Print what a worker has answered."""
        from pipelines.io.answers import newly_answered

        if self._corpus is not None and self._most > self.printed:
            self._print(newly_answered(self._corpus, self._run_id, files))

    def check(self) -> None:
        """Let the run go on: a command is stopped by a signal."""

    def rest(self, console: Console, total: int) -> None:
        """Say where the others are, of `total` answers of the run."""
        if self._corpus is not None and total > self.printed:
            command = f"memagent answers {self._corpus.name} --run {self._run_id}"
            more = f"{number(total - self.printed)} more" if self.printed else f"{number(total)} answers"
            console.print(Text(f"{more}: {command}", style="dim"), soft_wrap=True)
            console.print()

    def _print(self, rows: Iterable["GivenAnswer"]) -> None:
        for row in islice(rows, self._most - self.printed):
            if not self._console.is_terminal:
                line = "\t".join(cell.plain for cell in answer_cells(row).values())
                self._console.file.write(line.removesuffix("\t") + "\n")  # rich would make spaces of the tabs
                self._console.file.flush()
            elif self._console.width < _NARROW:
                cells = answer_cells(row)
                shown = [cells[name] for name in cells if not (self._one and name == "question")]
                self._console.print(Text("\n").join(filter(None, shown)), end="\n\n")
            else:
                self._console.print(self._row(row))
            self.printed += 1

    def _row(self, row: "GivenAnswer") -> Table:
        """Return a row as a table of its own, of the same widths as the others: they cannot follow what comes later."""
        names = ["document", *(() if self._one else ("question",)), "answer", "evidence"]
        shares = {"document": 2, "question": 3, "answer": 2, "evidence": 4}
        room = min(self._console.width, 160) - 2 * (len(names) - 1)
        total = sum(shares[name] for name in names)
        table = Table(box=None, show_header=not self.printed, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)
        widths = {name: room * shares[name] // total for name in names}
        for name in names:
            table.add_column(name, width=widths[name], overflow="fold")
        cells = answer_cells(row)
        shown = {name: _cut(cells[name], widths[name]) for name in names}
        if cells["warning"].plain:
            shown["answer"] = Text("\n").join([shown["answer"], cells["warning"]])
        table.add_row(*shown.values())
        return table


def _cut(text: Text, width: int) -> Text:
    """Return a text that fits into a cell of a few lines."""
    most = width * _LINES - width // 3  # words that are wrapped leave room at the ends of lines
    if text.cell_len > most:
        text.truncate(most, overflow="ellipsis")
    return text


_LOOK_SECONDS = 5.0
"""Between two looks at a watched folder."""
_PATIENCE = 10
"""A folder that takes long to list is looked at less often: so many times as long between two looks."""


@takes("model", "engine", "parallel_spans", "dry_run", "wait", "budget", "max_failed", "json", "answers", "run_id")
def ask(
    given: Common,
    corpus: Annotated[
        str, typer.Argument(metavar="CORPUS|FOLDER", help="A corpus; or a folder, file, glob or s3:// URL.")
    ],
    text: Annotated[list[str] | None, typer.Argument(metavar="QUESTION", help="Question to ask.")] = None,
    question: Annotated[
        list[str] | None, typer.Option("-q", "--question", help="Ask this question; may be repeated.")
    ] = None,
    questions: Annotated[
        str | None, typer.Option("--questions", help="Read questions from a .jsonl, .csv, .xlsx or .toml file.")
    ] = None,
    archive: Annotated[bool, typer.Option("--archive", help="Concatenate all documents; give one answer.")] = False,
    reread: Annotated[bool, typer.Option("--reread", help="Replace answers of older versions of the model.")] = False,
    fetch: Annotated[bool, typer.Option(help="Check the folder for new and changed documents first.")] = True,
    show: Annotated[int, typer.Option("--show", min=0, help="Print at most this many answers as found.")] = SHOWN,
    open_: OpenOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep asking as files arrive, until Ctrl-C.")] = False,
) -> None:
    """Ask questions of a corpus or folder; print answers as found.

    One answer per document, or one over the archive. A folder's corpus is made on the way.
    """
    from infra.store.location import Store
    from memagent.questions import ask as make_question
    from pipelines.ask import AskRequest, read_questions
    from pipelines.target import find_target

    settings = given.settings
    texts = [*(text or []), *(question or [])]
    if not texts and not questions:
        raise UsageError("no question: give -q 'a question', or --questions FILE")
    if paths := [one for one in text or [] if os.path.exists(one)]:
        raise UsageError(
            f"{paths[0]!r} is taken for a question: one corpus or folder is asked at a time. "
            "Make a corpus of several by memagent ingest NAME FOLDER FOLDER; a question goes after -q, too"
        )
    wanted = list({each.text: each for each in map(make_question, texts)}.values())
    wanted += read_questions(questions) if questions else []
    whom = find_target(Store(settings.store), corpus, fetch=fetch)
    if watch and (given.json or given.dry_run or not whom.sources):
        what = (
            "--json" if given.json else "--dry-run" if given.dry_run else f"corpus {corpus!r} as it is: give its folder"
        )
        raise UsageError(f"--watch goes on as files arrive; it does not go with {what}")
    if given.dry_run:
        from pipelines.operate.dry_run import ask_dry_run

        finish(ask_dry_run(whom, wanted, settings, archive=archive, reread=reread), given.json, status=0)
    request = AskRequest(whom.corpus.name, wanted, settings, archive=archive, reread=reread, run_id=given.run_id)
    if watch:
        _watch(whom, request, show, open_)
        return
    _conclude(given, settings, _answered(whom, request, show, given.json), open_=open_)


@takes(
    *("model", "engine", "parallel_spans", "dry_run", "wait", "budget", "max_failed", "force", "json", "answers"),
    "run_id",
)
def digest(
    given: Common,
    corpus: CorpusArgument,
    questions: Annotated[
        str | None, typer.Option("--questions", help="Replace the default questions by this file.")
    ] = None,
    fetch: Annotated[bool, typer.Option(help="Ingest the corpus's sources first.")] = True,
    open_: OpenOption = False,
) -> None:
    """Update a corpus and the answers to its default questions."""
    from infra.store.corpora import check_name
    from pipelines.ask import digest as run_digest
    from pipelines.ask import read_questions

    settings = given.settings
    defaults = read_questions(questions) if questions else None
    check_name(corpus)
    if given.dry_run:
        from pipelines.operate.dry_run import digest_dry_run

        finish(digest_dry_run(corpus, defaults, settings, fetch=fetch), given.json, status=0)
    with display(given.json) as show:
        summary = run_digest(corpus, defaults, settings, fetch=fetch, run_id=given.run_id, show=show)
    _conclude(given, settings, summary, open_=open_)


def _answered(whom: "Target", request: "AskRequest", most: int, json_: bool, *, again: bool = False) -> "RunSummary":
    """Bring the corpus up to date, ask, and print the answers as they are found; `again`: only those of this run."""
    from pipelines.target import ask_target

    if json_:
        return ask_target(whom, request)

    # Ray's own words go to standard error while it runs; on a terminal the panel's console keeps rows above the panel.
    result = Console(file=sys.stdout)
    with Display() as shown:
        console = shown.console if result.is_terminal and shown.console.is_terminal else result
        printer = AnswerPrinter(console, len(request.questions), most, earlier=not again)
        summary = ask_target(whom, replace(request, watch=printer), shown.update)
    counts = summary["readings"]
    printer.rest(result, counts["read_now"] if again else counts["read_now"] + counts["answered_before"])
    return summary


def _watch(whom: "Target", request: "AskRequest", most: int, open_: bool) -> None:
    """Ask, and ask again whenever a source is new, changed or gone, until the user interrupts it."""
    from infra.cluster.session import lazy_ray
    from infra.store.documents import NoDocumentsError, has_documents
    from infra.store.location import Store
    from pipelines.target import news

    again, last = False, ""
    typer.echo(f"watching {whom.sources[0]}; Ctrl-C ends it", err=True)
    with lazy_ray(request.config.ray):
        while True:
            began = time.monotonic()
            found = news(whom, request.config)
            looked = time.monotonic() - began
            if (found and found != last) or (not again and has_documents(whom.corpus)):
                last = found  # a source that cannot be opened is news in every look, and asked about once
                try:
                    summary = _answered(whom, request, most, json_=False, again=again)
                except NoDocumentsError as error:  # as while the first file is being copied
                    typer.echo(f"{error}; waiting for files", err=True)
                else:
                    if lacking := unanswered(summary):
                        typer.echo(f"without an answer: {lacking}", err=True)
                    if not again:
                        show_held(Console(), summary)
                    if open_ and not again:
                        open_report(Store(request.config.store), summary["run_id"])
                    again = True
            with suppress(KeyboardInterrupt):  # one that comes while it reads is said as of any command
                time.sleep(max(_LOOK_SECONDS, _PATIENCE * looked))
                continue
            return


def _conclude(given: Common, settings: Config, summary: "RunSummary", *, open_: bool) -> NoReturn:
    from infra.store.location import Store

    if open_:
        open_report(Store(settings.store), summary["run_id"])
    status = exit_status(summary)
    if given.json and not given.answers:
        summary.pop("rollup", None)  # it names documents
    elif given.json:
        from pipelines.io.answers import answer_table

        rows = answer_table(settings, summary["corpus"], summary["run_id"])
        finish({"summary": summary, "answers": rows}, given.json, status)
    finish(summary, given.json, status)
