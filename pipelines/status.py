"""The state of a store: corpora, runs, quarantine."""

import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from infra.store import Corpus, Store
from infra.tables.buckets import buckets
from infra.tables.claims import is_alive
from infra.tables.corpora import check_name, corpora, sources_of, standing_questions
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
_BUCKET = 2_000_000
"""Documents that are counted at once."""
_ANSWERING = ("ask", "digest", "evaluate")


def find_run(store: Store, run: str) -> str:
    """Return the run id; ``last`` means the newest run that answered something.

    Raises:
        UsageError: there is none.
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


def corpus_status(config: Config, corpus: str | None) -> dict[str, Any]:
    """Return what is known of one corpus, or of all."""
    store = Store(config.store)
    names = [check_name(corpus)] if corpus else corpora(store)
    return {"store": store.url, "corpora": [_one(Corpus(store, name)) for name in names]}


def quarantined(config: Config, corpus: str) -> list[FailureRow]:
    """Return what stands in the quarantine of a corpus now."""
    return list(documents_quarantined(Corpus(Store(config.store), check_name(corpus))).to_pylist())


def _one(corpus: Corpus) -> dict[str, Any]:
    counts = _counts(corpus)
    runs = Table(corpus.store, "runs").read(
        corpus.name, ["run_id", "kind", "status", "started_at", "ended_at", "summary"]
    )
    newest = runs.sort_by([("started_at", "descending")]).slice(0, _LAST_RUNS).to_pylist()
    return {
        "corpus": corpus.name,
        **counts,
        "quarantined": documents_quarantined(corpus).num_rows,
        "sources": sources_of(corpus),
        "standing_questions": [question.text for question in standing_questions(corpus)],
        "runs": [
            {"run_id": run["run_id"], "kind": run["kind"], "status": _status(corpus.store, run)}
            | {"started_at": run["started_at"].isoformat(timespec="seconds")}
            | {
                "readings": json.loads(run["summary"]).get("readings"),
                "seconds": json.loads(run["summary"]).get("seconds"),
            }
            for run in newest
        ],
    }


def _status(store: Store, run: RunRow) -> str:
    """Return a run's status; of one that has no end, whether it is running or was stopped."""
    ended = run["status"] != "running"
    return run["status"] if ended or is_alive(store, run["run_id"]) else "stopped"


def _counts(corpus: Corpus) -> dict[str, int]:
    """Return the numbers of documents, characters and answers, a bucket at a time."""
    samples = pa.array(sampled_runs(corpus), pa.string())
    counts = Counter(documents=0, chars=0, answers=0, found=0)
    for bucket in buckets(documents_count(corpus), _BUCKET):
        documents = current_documents(corpus, ["content_hash", "chars"], bucket)
        inside, columns = (
            bucket.contains("content_hash"),
            ["content_hash", "question", "found", "run_id", "answered_at"],
        )
        answers = Table(corpus.store, "answers").read(corpus.name, columns, inside)
        kept = pc.and_(
            pc.is_in(answers["content_hash"], value_set=documents["content_hash"].combine_chunks()),
            pc.invert(pc.is_in(answers["run_id"], value_set=samples)),
        )
        newest = first_of_each(answers.filter(kept), ("content_hash", "question"), [("answered_at", "descending")])
        counts.update(
            documents=documents.num_rows,
            chars=pc.sum(documents["chars"]).as_py() or 0,
            answers=newest.num_rows,
            found=pc.sum(newest["found"]).as_py() or 0,
        )
    return dict(counts)


def show_status(state: dict[str, Any]) -> None:
    """Print the state of corpora."""
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
        grid = Grid("run", "kind", "status", "started", "answered before", "read now", "failed", "seconds")
        for run in corpus["runs"]:
            readings = run["readings"] or {}
            counts = [str(readings.get(k, "")) for k in ("answered_before", "read_now", "failed")]
            grid.add_row(
                run["run_id"], run["kind"], run["status"], run["started_at"], *counts, str(run["seconds"] or "")
            )
        console.print(grid)
    if not state["corpora"]:
        console.print("no corpus yet: memagent ingest NAME FOLDER")


def show_quarantine(rows: list[FailureRow]) -> None:
    """Print quarantine rows."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid("stage", "item", "reason", "detail", "at")
    for row in rows:
        cells = [row["stage"], row["item"], row["reason"], row["detail"], row["at"].isoformat(timespec="seconds")]
        grid.add_row(*[Text(plain(cell)) for cell in cells])
    console = Console()
    console.print(grid if rows else "nothing is in quarantine")
