"""The status of a store: corpora, runs, quarantine."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from infra.processes import usable_cores
from infra.store import Corpus, Store
from infra.tables.buckets import Bucket, buckets
from infra.tables.claims import is_alive
from infra.tables.corpora import check_known, corpora, sources_of, standing_questions
from infra.tables.delta import Table
from infra.tables.distinct import first_of_each
from infra.tables.documents import current_documents, documents_count
from infra.tables.documents import quarantined as documents_quarantined
from infra.tables.published import held_runs, sampled_runs
from infra.tables.rows import FailureRow, RunRow
from infra.tables.runs import ENDED
from memagent.config import Config
from pipelines.formatting import RUN_ID_CHARS, duration, number, plain
from pipelines.run_names import resolve

_LAST_RUNS = 10
_BUCKET = 250_000
"""Documents that a thread counts at once."""
_ANSWERING = ("ask", "digest", "backfill", "evaluate")


class RunStatus(TypedDict):
    """A run of a corpus."""

    run_id: str
    kind: str
    status: str
    started_at: str
    readings: dict[str, int] | None
    seconds: float | None


class _Counts(TypedDict):
    documents: int
    chars: int
    answers: int
    found: int
    held: int
    """Newer answers of held nights, which nobody is shown."""


class _Runs(NamedTuple):
    """Runs whose answers are hidden (`infra.tables.published`)."""

    sampled: pa.Array
    held: pa.Array


class CorpusStatus(_Counts):
    """Counts of a corpus, its sources and its last runs."""

    corpus: str
    quarantined: int
    sources: list[str]
    standing_questions: list[str]
    runs: list[RunStatus]


class StoreStatus(TypedDict):
    """The status of corpora of a store."""

    store: str
    corpora: list[CorpusStatus]


def find_run(store: Store, run: str, corpus: str | None = None) -> str:
    """Return the id of a run of ask, digest or evaluate by its id, the beginning of it, or ``last``.

    Args:
        store: the store.
        run: as people give it.
        corpus: only its runs, of which those count that have not ended, too; but ``last`` is the last one that has.

    Raises:
        UsageError: there is no such run; the message names the nearest.
    """
    columns = ["run_id", "kind", "status", "started_at", "ended_at"]
    runs = Table(store, "runs").read(corpus, columns, None if corpus else ENDED)
    runs = runs.filter(pc.is_in(runs["kind"], value_set=pa.array(_ANSWERING)))
    if run == "last":
        runs = runs.filter(pc.is_in(runs["status"], value_set=pa.array(["completed", "failed", "paused"])))
    ids = runs.sort_by("ended_at" if run == "last" or not corpus else "started_at")["run_id"].to_pylist()
    return resolve(run, ids, f"corpus {corpus!r}" if corpus else store.url)


def corpus_status(config: Config, corpus: str | None) -> StoreStatus:
    """Return the status of one corpus, or of all. Raises UsageError: there is no such corpus."""
    store = Store(config.store)
    corpora_shown = [check_known(Corpus(store, corpus))] if corpus else [Corpus(store, name) for name in corpora(store)]
    return {"store": store.url, "corpora": [_corpus_status(each) for each in corpora_shown]}


def quarantined(config: Config, corpus: str) -> list[FailureRow]:
    """Return the current quarantine rows of a corpus. Raises UsageError: there is no such corpus."""
    return list(documents_quarantined(check_known(Corpus(Store(config.store), corpus))).to_pylist())


def _corpus_status(corpus: Corpus) -> CorpusStatus:
    runs = Table(corpus.store, "runs").read(
        corpus.name, ["run_id", "kind", "status", "started_at", "ended_at", "summary", "held"]
    )
    newest = runs.sort_by([("started_at", "descending")]).slice(0, _LAST_RUNS).to_pylist()
    return {
        "corpus": corpus.name,
        **_counts(corpus),
        "quarantined": documents_quarantined(corpus).num_rows,
        "sources": sources_of(corpus),
        "standing_questions": [question.text for question in standing_questions(corpus)],
        "runs": [_run_status(corpus.store, run) for run in newest],
    }


def _run_status(store: Store, run: RunRow) -> RunStatus:
    summary = json.loads(run["summary"])
    return {
        "run_id": run["run_id"],
        "kind": run["kind"],
        "status": _status(store, run),
        "started_at": run["started_at"].isoformat(timespec="seconds"),
        "readings": summary.get("readings"),
        "seconds": summary.get("seconds"),
    }


def _status(store: Store, run: RunRow) -> str:
    """Return a run's status; an unfinished run is running if it has a heartbeat, else stopped."""
    if run["status"] == "running" and is_alive(store, run["run_id"]):
        return "running"
    status = "stopped" if run["status"] == "running" else run["status"]
    return status if not run["held"] else "held" if status == "completed" else f"{status}, held"


def _counts(corpus: Corpus) -> _Counts:
    """Count documents, characters and newest answers, one a document and question as `memagent answers` has them."""
    runs = _Runs(pa.array(sampled_runs(corpus), pa.string()), pa.array(held_runs(corpus), pa.string()))
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(usable_cores()) as threads:  # Arrow computes outside the interpreter's lock
        parts = buckets(documents_count(corpus), _BUCKET)
        for part in threads.map(lambda bucket: _bucket_counts(corpus, bucket, runs), parts):
            counts.update(part)
    counts.update(_archive_counts(corpus, runs))
    return _Counts(
        documents=counts["documents"],
        chars=counts["chars"],
        answers=counts["answers"],
        found=counts["found"],
        held=counts["held"],
    )


def _bucket_counts(corpus: Corpus, bucket: Bucket, runs: _Runs) -> _Counts:
    documents = current_documents(corpus, ["content_hash", "chars"], bucket, ordered=False)
    columns = ["content_hash", "question", "found", "run_id", "answered_at"]
    answers = _without(
        Table(corpus.store, "answers").read(corpus.name, columns, bucket.contains("content_hash"), once=False),
        runs.sampled,
    )
    # Several documents may have the same text, which is read once and answers for each of them.
    texts = pc.value_counts(documents["content_hash"])
    position = pc.index_in(answers["content_hash"], value_set=texts.field("values"))
    answers = answers.append_column("documents", texts.field("counts").take(position))
    if position.null_count:
        answers = answers.filter(pc.is_valid(position))
    newest = _newest(_without(answers, runs.held), "content_hash", "question")
    held = _held(_newest(answers, "content_hash", "question"), runs) if len(runs.held) else answers.slice(0, 0)
    return {
        "documents": documents.num_rows,
        "chars": pc.sum(documents["chars"]).as_py() or 0,
        "answers": pc.sum(newest["documents"]).as_py() or 0,
        "found": pc.sum(newest.filter(newest["found"])["documents"]).as_py() or 0,
        "held": pc.sum(held["documents"]).as_py() or 0,
    }


def _archive_counts(corpus: Corpus, runs: _Runs) -> dict[str, int]:
    """Count the newest answers over the archive as one stream, one a question."""
    columns = ["question", "found", "run_id", "answered_at"]
    answers = Table(corpus.store, "answers").read(corpus.name, columns, pc.field("scope") == "archive")
    answers = _without(answers, runs.sampled)
    newest = _newest(_without(answers, runs.held), "question")
    return {
        "answers": newest.num_rows,
        "found": pc.sum(newest["found"]).as_py() or 0,
        "held": _held(_newest(answers, "question"), runs).num_rows,
    }


def _newest(answers: pa.Table, *key: str) -> pa.Table:
    return first_of_each(answers, key, [("answered_at", "descending")])


def _without(answers: pa.Table, runs: pa.Array) -> pa.Table:
    return answers.filter(pc.invert(pc.is_in(answers["run_id"], value_set=runs))) if len(runs) else answers


def _held(newest: pa.Table, runs: _Runs) -> pa.Table:
    return newest.filter(pc.is_in(newest["run_id"], value_set=runs.held))


def show_status(state: StoreStatus) -> None:
    """Print the status of corpora."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Grid

    console = Console()
    console.print(f"store {plain(state['store'])}", markup=False)
    for corpus in state["corpora"]:
        console.print(
            f"\n[bold]{corpus['corpus']}[/]: {corpus['documents']:,} documents, {corpus['chars']:,} characters, "
            f"{corpus['answers']:,} answers ({corpus['found']:,} found), {corpus['quarantined']:,} failures, "
            + (f"{corpus['held']:,} newer answers held, " if corpus["held"] else "")
            + f"{len(corpus['standing_questions'])} standing questions"
        )
        grid = Grid(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        grid.add_column("run", no_wrap=True, min_width=RUN_ID_CHARS)  # to be copied, whatever the terminal's width
        for name in ("kind", "status"):
            grid.add_column(name, no_wrap=True)
        for name in ("before", "read", "failed", "time"):
            grid.add_column(name, no_wrap=True, justify="right")
        for run in corpus["runs"]:
            readings = run["readings"] or {}
            counts = [number(readings[k]) if k in readings else "" for k in ("answered_before", "read_now", "failed")]
            seconds = duration(run["seconds"]) if run["seconds"] is not None else ""
            cells = (run["run_id"], run["kind"], run["status"], *counts, seconds)
            grid.add_row(*cells)
        console.print(grid)
    if not state["corpora"]:
        console.print("no corpus yet: memagent ingest NAME FOLDER")


def show_quarantine(rows: list[FailureRow]) -> None:
    """Print quarantine rows."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid()
    grid.add_column("reason", no_wrap=True)
    for name in ("item", "detail", "at"):
        grid.add_column(name, overflow="fold")
    for row in rows:
        cells = [row["reason"], row["item"], row["detail"], row["at"].isoformat(timespec="minutes")]
        grid.add_row(*[Text(plain(cell)) for cell in cells])
    console = Console()
    console.print(grid if rows else "nothing has failed")
