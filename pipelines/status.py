"""The status of a store: corpora, runs, quarantine."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TypedDict

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
from infra.tables.rows import FailureRow, RunRow
from infra.tables.runs import ENDED
from memagent.config import Config
from memagent.errors import UsageError
from pipelines.cli.live import plain
from pipelines.runs import sampled_runs

_LAST_RUNS = 10
_RUN_ID = 22
"""Characters of a run id."""
_BUCKET = 250_000
"""Documents that a thread counts at once."""
_ANSWERING = ("ask", "digest", "evaluate")


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


def find_run(store: Store, run: str) -> str:
    """Return the run id; ``last`` is the newest run of ask, digest or evaluate.

    Raises:
        UsageError: there is no such run; the message lists the newest.
    """
    runs = (
        Table(store, "runs").read(columns=["run_id", "kind", "ended_at"], filters=ENDED).sort_by("ended_at").to_pylist()
    )
    ids = [row["run_id"] for row in runs if row["kind"] in _ANSWERING]
    if run == "last" and ids:
        return str(ids[-1])
    if run in ids:
        return run
    raise UsageError(f"no run {run!r} in {store.url}; the newest are: {', '.join(ids[-5:]) or 'none'}")


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
        corpus.name, ["run_id", "kind", "status", "started_at", "ended_at", "summary"]
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
    ended = run["status"] != "running"
    return run["status"] if ended or is_alive(store, run["run_id"]) else "stopped"


def _counts(corpus: Corpus) -> _Counts:
    """Count documents, characters and answers."""
    samples = pa.array(sampled_runs(corpus), pa.string())
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(usable_cores()) as threads:  # Arrow computes outside the interpreter's lock
        parts = buckets(documents_count(corpus), _BUCKET)
        for part in threads.map(lambda bucket: _bucket_counts(corpus, bucket, samples), parts):
            counts.update(part)
    return _Counts(
        documents=counts["documents"], chars=counts["chars"], answers=counts["answers"], found=counts["found"]
    )


def _bucket_counts(corpus: Corpus, bucket: Bucket, samples: pa.Array) -> _Counts:
    documents = current_documents(corpus, ["content_hash", "chars"], bucket, ordered=False)
    columns = ["content_hash", "question", "found", "run_id", "answered_at"]
    answers = Table(corpus.store, "answers").read(corpus.name, columns, bucket.contains("content_hash"))
    current = pc.is_in(answers["content_hash"], value_set=documents["content_hash"].combine_chunks())
    if len(samples):
        current = pc.and_(current, pc.invert(pc.is_in(answers["run_id"], value_set=samples)))
    newest = first_of_each(answers.filter(current), ("content_hash", "question"), [("answered_at", "descending")])
    return {
        "documents": documents.num_rows,
        "chars": pc.sum(documents["chars"]).as_py() or 0,
        "answers": newest.num_rows,
        "found": pc.sum(newest["found"]).as_py() or 0,
    }


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
            f"{corpus['answers']:,} answers ({corpus['found']:,} found), {corpus['quarantined']:,} in quarantine, "
            f"{len(corpus['standing_questions'])} standing questions"
        )
        grid = Grid(box=SIMPLE_HEAD, show_edge=False)
        grid.add_column("run", no_wrap=True, min_width=_RUN_ID)  # to be copied, whatever the terminal's width
        for name in ("kind", "status", "answered\nbefore", "read\nnow", "failed", "seconds"):
            grid.add_column(name, overflow="fold")
        for run in corpus["runs"]:
            counts = [str((run["readings"] or {}).get(k, "")) for k in ("answered_before", "read_now", "failed")]
            cells = (run["run_id"], run["kind"], run["status"], *counts, str(run["seconds"] or ""))
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
    console.print(grid if rows else "nothing is in quarantine")
