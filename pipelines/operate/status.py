"""The status of a store: corpora, runs, quarantine."""

import json
from typing import TYPE_CHECKING, TypedDict

import pyarrow.compute as pc

from infra.store.claims import is_alive
from infra.store.corpora import check_known, corpora, default_questions, sources_of
from infra.store.delta import Table
from infra.store.documents import quarantined as documents_quarantined
from infra.store.location import Corpus, Store
from infra.store.runs import ENDED, by_end, resolve
from infra.store.schemas import FailureRow, RunRow
from memagent.config import Config
from memagent.errors import ConfigError
from pipelines.views.counts import CorpusCounts, corpus_counts
from pipelines.views.formatting import RUN_ID_CHARS, duration, number, plain, plural

if TYPE_CHECKING:
    from infra.engines.warm import WarmEngineInfo

_LAST_RUNS = 10
_ANSWERING = ("ask", "digest", "backfill", "evaluate")


class RunStatus(TypedDict):
    """A run of a corpus."""

    run_id: str
    kind: str
    status: str
    started_at: str
    readings: dict[str, int] | None
    seconds: float | None


class CorpusStatus(CorpusCounts):
    """Counts of a corpus, its sources and its last runs."""

    corpus: str
    quarantined: int
    sources: list[str]
    default_questions: list[str]
    runs: list[RunStatus]


class StoreStatus(TypedDict):
    """The status of corpora of a store."""

    store: str
    corpora: list[CorpusStatus]


def find_run(store: Store, run: str, corpus: str | None = None) -> str:
    """Return the id of a run of ask, digest or evaluate by its id, the beginning of it, or ``last``.

    ``last`` is the last one that has ended; by their ids others are found, too.

    Raises UsageError: there is no such run; the message names the nearest.
    """
    columns = ["run_id", "started_at", "ended_at"]
    chosen = pc.field("kind").isin(_ANSWERING)
    runs = Table(store, "runs").read(corpus, columns, chosen & ENDED if run == "last" else chosen)
    ids = by_end(runs) if run == "last" else runs.sort_by("started_at")["run_id"].to_pylist()
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
        corpus.name, ["run_id", "kind", "status", "started_at", "ended_at", "summary", "withheld"]
    )
    newest = runs.sort_by([("started_at", "descending")]).slice(0, _LAST_RUNS).to_pylist()
    return {
        "corpus": corpus.name,
        **corpus_counts(corpus),
        "quarantined": documents_quarantined(corpus).num_rows,
        "sources": sources_of(corpus),
        "default_questions": [question.text for question in default_questions(corpus)],
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
    return status if not run["withheld"] else "withheld" if status == "completed" else f"{status}, withheld"


def show_status(state: StoreStatus) -> None:
    """Print the status of corpora."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Grid

    console = Console()
    console.print(f"store {plain(state['store'])}", markup=False)
    for corpus in state["corpora"]:
        facts = [
            plural(corpus["documents"], "document"),
            plural(corpus["chars"], "character"),
            f"{plural(corpus['answers'], 'answer')} ({corpus['found']:,} found)",
            plural(corpus["quarantined"], "failure"),
            *([plural(corpus["withheld"], "newer answer") + " withheld"] if corpus["withheld"] else []),
            plural(len(corpus["default_questions"]), "default question"),
        ]
        console.print(f"\n[bold]{corpus['corpus']}[/]: {', '.join(facts)}")
        grid = Grid(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        grid.add_column("run", no_wrap=True, min_width=RUN_ID_CHARS)  # to be copied, whatever the terminal's width
        grid.add_column("kind", no_wrap=True)
        grid.add_column("status")
        for name in ("before", "read", "failed", "time"):
            grid.add_column(name, no_wrap=True, justify="right")
        for run in corpus["runs"]:
            readings = run["readings"] or {}
            counts = [number(readings[k]) if k in readings else "" for k in ("answered_before", "read_now", "failed")]
            seconds = duration(run["seconds"]) if run["seconds"] is not None else ""
            cells = (run["run_id"], run["kind"], run["status"], *counts, seconds)
            grid.add_row(*cells)
        console.print(grid)
    for engine in _warm_engines():
        console.print(f"\nwarm engine {plain(str(engine))}", markup=False)
    if not state["corpora"]:
        console.print("no corpus yet: memagent ingest NAME FOLDER")


def _warm_engines() -> "list[WarmEngineInfo]":
    from infra.engines.warm import running

    try:
        return running()
    except ConfigError:
        return []  # the folder of their sockets cannot be used, as `memagent doctor` says


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
