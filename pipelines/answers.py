"""Answers from Python: as they are found, and as tables of pandas, Polars and Arrow."""

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from html import escape
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from infra.store.delta import DataFile
from infra.store.location import Corpus
from infra.store.runs import RunSummary, new_run_id
from memagent.errors import MemagentError
from memagent.quality.verdicts import Status
from memagent.records import Evidence, Level, Progress, ProgressCounts
from pipelines.ask import AskRequest
from pipelines.io.answers import COLUMNS, GivenAnswer, answer_rows, answered_before, newly_answered
from pipelines.target import Target, ask_target
from pipelines.views.formatting import (
    cited,
    cited_notes,
    counts_of,
    doubt,
    duration,
    one_line,
    shown_as,
    unanswered,
    work_of,
)

if TYPE_CHECKING:
    import pandas as pd


_EVERY = 0.5
"""Seconds between two pictures."""
_CHARS = 300
"""Of a quote."""
_CELL = 'style="text-align:left;vertical-align:top"'
_log = logging.getLogger("memagent.ask")


def progress_display(wanted: bool | None) -> AbstractContextManager[Progress | None]:
    """Return what shows the progress of the body, in a notebook or on the terminal; None: in a notebook only.

    To be called in the thread of the cell, which the output belongs to.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and hasattr(shell, "kernel") and wanted is not False:
        from IPython.display import HTML, display

        return _in_cell(display(HTML(progress_html({}, 0.0)), display_id=True), HTML)
    if not wanted:
        return nullcontext()
    return _on_terminal()


@contextmanager
def _on_terminal() -> Iterator[Progress]:
    from pipelines.cli.live import Display

    with Display() as shown:
        yield shown.update


@contextmanager
def _in_cell(handle: Any, html: Any) -> Iterator[Progress]:
    began, last, lock = time.monotonic(), [0.0], threading.Lock()

    def show(snapshot: ProgressCounts) -> None:
        with lock:  # counts come from the run's thread and from the one that watches the engines
            due = time.monotonic()
            if due - last[0] >= _EVERY or snapshot.get("stage") == "done":
                last[0] = due
                handle.update(html(progress_html(snapshot, due - began)))

    try:
        yield show
    finally:
        handle.update(html(""))


def progress_html(snapshot: ProgressCounts, seconds: float) -> str:
    """Return a progress bar with the counts of a snapshot."""
    _, done, total = work_of(snapshot)
    counts = [f"{name} {count}" for name, count in counts_of(snapshot)]
    stage = escape(shown_as(snapshot.get("stage") or ("ingest" if "total" in snapshot else "starting")))
    bar = f'<progress value="{int(done)}" max="{int(total)}"></progress>' if total else "<progress></progress>"
    return f"<div>{bar} {stage} {escape(', '.join([*counts, duration(seconds)]))}</div>"


def answers_html(answers: "Sequence[Answer]") -> str:
    """Return answers as an HTML table."""
    rows = "".join(
        f"<tr><td {_CELL}>{_text(one.document or one.title)}</td><td {_CELL}>{_text(one.question)}</td>"
        f"<td {_CELL}>{f'<b>{_text(one.answer)}</b>' if one.found else '<i>not found</i>'}{doubt(one.review)}</td>"
        f"<td {_CELL}>{f'<q>{_text(one.quote)}</q>' if one.quote else ''}{_notes(one)}</td></tr>"
        for one in answers
    )
    names = "".join(f"<th {_CELL}>{name}</th>" for name in ("document", "question", "answer", "evidence"))
    return f"<table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>"


def _notes(answer: "Answer") -> str:
    noted = cited_notes(answer.quote, answer.page, verbatim=answer.verbatim, document=answer._quoted)
    return "<br>".join([f" {noted}" if noted else "", *map(_text, answer.warnings)])


def _text(value: str) -> str:
    line = one_line(value)
    return escape(line if len(line) <= _CHARS else line[:_CHARS] + "…")


_SHOWN = 20
"""Rows that a notebook shows."""
_ROWS = 10_000


class _Turns:
    """Runs of this process, one after another: Ray's session is the process's.

    They share a thread that never ends: Ray's processes end with the thread that has started them.
    """

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # a child has no thread but its own

    def _begin(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, job: Callable[[], None]) -> None:
        """Have a job run when those before it have ended."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True, name="memagent runs")
                self._thread.start()
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            self._jobs.get()()


_TURNS = _Turns()


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, with its evidence."""

    document: str
    """Id of the document; empty for all documents, concatenated."""
    title: str
    source: str
    """Where the document was read from."""
    question_id: str
    question: str
    answer: str
    """Empty where the document does not say."""
    found: bool
    evidence: tuple[Evidence, ...]
    """The places that the answer came from, with the sentence that says it, or supports it where none does."""
    policy_id: str
    """The version of the model that answered."""
    reading_id: str
    run_id: str
    """The run that answered."""
    answered_at: datetime
    confidence: float | None = None
    """How probable the model's words were to it (`ReadingResult.confidence`); None: not known."""
    confidence_level: Level | None = None
    """How far to trust the answer, by held-out answers; None: the reader declares none."""
    warnings: tuple[str, ...] = ()
    """What speaks against the answer, and what of the document's text was not read, or read by OCR."""
    review: Status | Literal[""] = ""
    """What people's verdicts on it come to; empty: nobody has said anything."""

    @property
    def quote(self) -> str:
        """The first quote of the evidence; empty: there is none."""
        return next((place.quote for place in self.evidence if place.quote), "")

    @property
    def verbatim(self) -> bool:
        """Whether `quote` says the answer word for word; else it supports it."""
        return next((place.verbatim for place in self.evidence if place.quote), False)

    @property
    def page(self) -> int | None:
        """The page of the first quote (or evidence) in a PDF, from 1; None: there is none, or it is not known."""
        quoted = (place for place in self.evidence if place.quote)
        return next((place.page for place in (*quoted, *self.evidence)), None)

    @property
    def _quoted(self) -> str:
        """The document of the quote, where the answer is over all of them."""
        quoted = (place for place in self.evidence if place.quote)
        return "" if self.document else next((place.document for place in (*quoted, *self.evidence)), "")

    def __str__(self) -> str:
        said = cited(self.quote, self.page, verbatim=self.verbatim, document=self._quoted)
        quote = f" ({said})" if said else ""
        said = f"{self.answer if self.found else 'not found'}{doubt(self.review, self.warnings)}"
        return f"{self.document or self.title}: {said}{quote}"

    def _repr_html_(self) -> str:
        return answers_html([self])

    @classmethod
    def from_row(cls, row: GivenAnswer) -> "Answer":
        """Make one of an exported row."""
        evidence = tuple(Evidence(**place) for place in row["evidence"])
        as_it_is = [name for name in cls.__slots__ if name not in ("evidence", "warnings")]
        fields = {name: row[name] for name in as_it_is}  # type: ignore[literal-required]
        return cls(**fields, evidence=evidence, warnings=tuple(row["warnings"]))


class AnswerTable:
    """Answers in the store: of a run, or the newest of a corpus. Rows are read as they are asked for."""

    def __init__(self, corpus: Corpus, run_id: str | None = None) -> None:
        self.corpus, self.run_id = corpus, run_id

    def __iter__(self) -> Iterator[Answer]:
        """Yield the answers, a part of the corpus at a time."""
        yield from map(Answer.from_row, answer_rows(self.corpus, self.run_id))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the answers as Arrow batches, a bounded number of rows each."""
        rows = iter(answer_rows(self.corpus, self.run_id))
        while batch := list(islice(rows, _ROWS)):
            yield from pa.Table.from_pylist(batch, schema=COLUMNS).combine_chunks().to_batches()

    def to_arrow(self) -> pa.Table:
        """Return an Arrow table with the columns of ``memagent answers``."""
        return pa.Table.from_batches(self.batches(), COLUMNS)

    def to_pandas(self) -> "pd.DataFrame":
        """Return a data frame of pandas."""
        return self.to_arrow().to_pandas()

    def _repr_html_(self) -> str:
        rows = list(islice(self, _SHOWN + 1))
        more = "<p>These are the first ones: to_pandas() has all of them.</p>" if len(rows) > _SHOWN else ""
        return answers_html(rows[:_SHOWN]) + more


class Answers(AnswerTable):
    """The answers of a run, which goes on in a thread.

    Iterating gives each answer as it is found, from the first one each time; all else waits for the run's end.
    """

    def __init__(
        self,
        asked: Target,
        request: AskRequest,
        progress: bool | None = None,
        begin: Callable[[Callable[[], None]], object] = _TURNS.put,
    ) -> None:
        """Begin the run; see `pipelines.archive.Archive.ask`. `begin` has it run in a thread."""
        self._run_id = request.run_id or new_run_id()
        super().__init__(asked.corpus, self._run_id)
        self._news = threading.Condition()
        self._told: list[DataFile | None] = []
        """None: the plan is written, and with it what earlier runs have answered; then the files of new answers."""
        self._stopped, self._ended = False, False
        self._summary: RunSummary | None = None
        self._error: BaseException | None = None
        self._request = replace(request, run_id=self._run_id, watch=self)
        shown = progress_display(progress)
        begin(partial(self._run, asked, shown))

    def __repr__(self) -> str:
        state = "running" if not self._ended else "failed" if self._error else "done"
        return f"<Answers of run {self.run_id}: {state}>"

    @property
    def summary(self) -> RunSummary:
        """The run's summary, as ``memagent ask --json`` has it; waits for its end."""
        return self.wait()

    def wait(self) -> RunSummary:
        """Wait for the end of the run; return its summary. Raises what the run raised."""
        self._wait_for_more(math.inf)
        if self._error is not None:
            raise self._error
        assert self._summary is not None
        return self._summary

    def stop(self) -> None:
        """End the run, once the sources are read in. What was read stays, and asking again goes on from there."""
        self._stopped = True

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end of the run, at most some seconds; what it raised is logged, unless it was stopped."""
        with self._news:
            self._news.wait_for(lambda: self._ended, seconds)
        if self._error is not None and not self._stopped:
            _log.warning("run %s failed: %s", self._run_id, self._error)

    def __iter__(self) -> Iterator[Answer]:
        """Yield the answers as they are found, those of earlier runs first. Raises what the run raised."""
        if self._ended and self._error is None:
            yield from super().__iter__()
            return
        run_id, seen = self._run_id, 0
        while True:
            self._wait_for_more(seen)
            if not (new := self._told[seen:]):
                break
            seen += len(new)
            for file in new:
                rows = newly_answered(self.corpus, run_id, [file]) if file else answered_before(self.corpus, run_id)
                yield from map(Answer.from_row, rows)
        self.wait()

    def planned(self, corpus: Corpus, run_id: str) -> None:
        """Take note of the plan (`pipelines.stages.read.AnswerWatch`)."""
        self._tell([None])

    def answered(self, files: Sequence[DataFile]) -> None:
        """Take note of new answers (`pipelines.stages.read.AnswerWatch`)."""
        self._tell(files)

    def check(self) -> None:
        """Raise MemagentError if the run was stopped (`pipelines.stages.read.AnswerWatch`)."""
        if self._stopped:
            raise MemagentError("the run was stopped; its answers are kept, and asking again resumes it")

    def _tell(self, new: Sequence[DataFile | None]) -> None:
        self.check()
        with self._news:
            self._told += new
            self._news.notify_all()

    def _wait_for_more(self, seen: float) -> None:
        """Wait for the end of the run, or for more than `seen` notes."""
        try:
            with self._news:
                while not self._ended and len(self._told) <= seen:
                    self._news.wait(0.2)  # in steps, so that a notebook's stop button is heard
        except KeyboardInterrupt:
            self.stop()
            raise

    def _run(self, asked: Target, shown: AbstractContextManager[Progress | None]) -> None:
        try:
            self.check()  # it may have waited for its turn
            with shown as show:
                self._summary = ask_target(asked, self._request, show)
            if lacking := unanswered(self._summary):
                _log.warning("run %s: without an answer: %s", self._run_id, lacking)
        except BaseException as error:  # raised where the answers are waited for
            self._error = error
        finally:
            with self._news:
                self._ended = True
                self._news.notify_all()

    def to_arrow(self) -> pa.Table:
        """Wait for the end of the run; return an Arrow table with the columns of ``memagent answers``."""
        self.wait()
        return super().to_arrow()

    def report(self, path: str | Path) -> Path:
        """Wait for the end of the run; write its report as one HTML file."""
        from pipelines.report.page import write

        self.wait()
        return write(self.corpus.store, self._run_id, path)

    def _repr_html_(self) -> str:
        self.wait()
        return super()._repr_html_()
