"""The state of a store: corpora, runs, quarantine."""

import json
from typing import Any

from infra.store import Corpus, Store
from infra.tables.corpora import check_name, corpora, sources_of, standing_questions
from infra.tables.delta import Table
from infra.tables.documents import current_documents
from infra.tables.documents import quarantined as documents_quarantined
from infra.tables.rows import FailureRow
from infra.tables.runs import ENDED
from memagent.config import Config
from memagent.errors import UsageError
from pipelines.cli.live import plain
from pipelines.runs import sampled_runs

_LAST_RUNS = 10
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
    documents = current_documents(corpus, ["doc_id", "content_hash", "chars"])
    answers = Table(corpus.store, "answers").read(corpus.name, ["content_hash", "question", "found", "run_id"])
    samples = sampled_runs(corpus)
    runs = Table(corpus.store, "runs").read(
        corpus.name, ["run_id", "kind", "status", "started_at", "ended_at", "summary"]
    )
    present = set(documents["content_hash"].to_pylist())
    current = {
        (row["content_hash"], row["question"]): row["found"]
        for row in answers.to_pylist()
        if row["content_hash"] in present and row["run_id"] not in samples
    }
    newest = runs.sort_by([("started_at", "descending")]).slice(0, _LAST_RUNS).to_pylist()
    return {
        "corpus": corpus.name,
        "documents": documents.num_rows,
        "chars": sum(documents["chars"].to_pylist()),
        "answers": len(current),
        "found": sum(current.values()),
        "quarantined": documents_quarantined(corpus).num_rows,
        "sources": sources_of(corpus),
        "standing_questions": [question.text for question in standing_questions(corpus)],
        "runs": [
            {k: run[k] for k in ("run_id", "kind", "status")}
            | {"started_at": run["started_at"].isoformat(timespec="seconds")}
            | {
                "readings": json.loads(run["summary"]).get("readings"),
                "seconds": json.loads(run["summary"]).get("seconds"),
            }
            for run in newest
        ],
    }


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
