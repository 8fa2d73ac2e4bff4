"""Forget documents: out of texts, segments, memories, answers, training rows, and the earlier versions of all tables.

Afterwards every file of the store is searched for passages of the forgotten texts. What was read as one stream with
others is forgotten whole: its memories may hold what they said. An ingest passes a forgotten text over, by its hash.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from infra.store import Corpus, Store
from infra.tables.claims import is_alive
from infra.tables.corpora import check_known, forgotten
from infra.tables.delta import Table
from infra.tables.documents import current_documents, document_texts
from infra.tables.erasing import Erased, erase_from_part, erase_rows, find_texts
from infra.tables.policies import policies
from infra.tables.rows import QaRow
from infra.tables.runs import forget_rollups
from infra.tables.schemas import TABLES
from infra.tables.streams import stream_of
from infra.tables.turn_parts import logged_runs
from memagent.config import Config
from memagent.errors import UsageError

_PASSAGE, _PASSAGES, _SEARCHED = 60, 3, 500
"""Characters of a passage that the store is searched for, passages of a text, and passages at most."""
_RUN_FILES = ("report.html", "log.txt", "results.parquet", "answers.parquet")
_CHOSEN = ("doc_id", "source", "title")


class Found(TypedDict):
    """A passage that is still in the store."""

    file: str
    passage: str


class ForgetSummary(TypedDict):
    """Result of a forgetting."""

    corpus: str
    documents: list[str]
    """doc_ids, the first thousand."""
    documents_count: int
    texts: int
    kept_texts: int
    """Texts that documents which stay have as well: they stay."""
    readings: int
    rows: int
    """Rows that went out of turn log, plans and streams."""
    training_rows: int
    policies: list[str]
    """Versions that may have learnt from them; their weights are as they were."""
    searched: int
    """Passages that the store was searched for."""
    found: list[Found]
    """Empty: proven."""


def forget(
    name: str, config: Config, chosen: Sequence[tuple[str, str]], *, dry: bool = False, canaries: Sequence[str] = ()
) -> ForgetSummary:
    """Forget the documents of a corpus that match.

    Args:
        name: of the corpus.
        config: the store.
        chosen: fields (doc_id, source, title) and patterns (``*``, ``?``); a document that matches any goes, with all
            its versions.
        dry: only say what would go.
        canaries: further texts that the store is searched for.

    Raises:
        UsageError: there is no such corpus or document, or a run is reading the corpus.
    """
    corpus = check_known(Corpus(Store(config.store), name))
    _check_still(corpus)
    table = Table(corpus.store, "documents").read(corpus.name, [*_CHOSEN, "content_hash", "state"])
    mine = _matching(table, chosen)
    doc_ids = set(table.filter(mine)["doc_id"].to_pylist())
    if not doc_ids:
        raise UsageError(f"no document of {name} matches {', '.join('='.join(pair) for pair in chosen)}")
    goes = pc.is_in(table["doc_id"], pa.array(sorted(doc_ids), pa.string()))
    stays = set(table.filter(pc.and_(pc.invert(goes), pc.equal(table["state"], "present")))["content_hash"].to_pylist())
    hashes = set(table.filter(goes)["content_hash"].to_pylist())
    erased = _readings(corpus, doc_ids, hashes - stays)
    qa = _training_rows(corpus, erased)
    sources = set(table.filter(goes)["source"].to_pylist())
    summary: ForgetSummary = {
        "corpus": name,
        "documents": sorted(doc_ids)[:1_000],
        "documents_count": len(doc_ids),
        "texts": len(hashes - stays),
        "kept_texts": len(hashes & stays),
        "readings": len(erased.reading_ids),
        "rows": 0,
        "training_rows": len(qa),
        "policies": _learners(corpus, qa),
        "searched": 0,
        "found": [],
    }
    if dry:
        return summary
    passages = _passages(corpus, hashes - stays)
    summary["rows"] = _erase(corpus, erased, sources, qa=[row["qa_id"] for row in qa])
    searched = [*_distinctive(corpus, passages), *canaries]
    summary["searched"] = len(searched)
    summary["found"] = [{"file": file, "passage": text} for file, text in find_texts(corpus.store, searched)]
    return summary


def _check_still(corpus: Corpus) -> None:
    running = [run_id for run_id in logged_runs(corpus) if is_alive(corpus.store, run_id)]
    if running:
        raise UsageError(f"run {running[0]} is reading {corpus.name}: wait for its end, or end it")


def _matching(table: pa.Table, chosen: Sequence[tuple[str, str]]) -> pa.Array:
    unknown = {field for field, _ in chosen} - set(_CHOSEN)
    if unknown or not chosen:
        raise UsageError(f"documents are chosen by {', '.join(f'{field}=PATTERN' for field in _CHOSEN)}")
    mask = [False] * table.num_rows
    for field, pattern in chosen:
        values = table[field].to_pylist()
        mask = [old or fnmatchcase(value or "", pattern) for old, value in zip(mask, values, strict=True)]
    return pa.array(mask, pa.bool_())


def _readings(corpus: Corpus, doc_ids: set[str], hashes: set[str]) -> Erased:
    """Return what is to go: readings of the texts, and of the archives that any of them is part of."""
    answers = Table(corpus.store, "answers").read(corpus.name, ["reading_id", "content_hash", "scope", "stream"])
    readings: set[str] = set()
    streams: set[str] = set()
    for row in answers.to_pylist():
        content_hash = row["content_hash"]
        if row["scope"] == "archive" and content_hash not in streams:
            try:
                if not hashes.isdisjoint(stream_of(corpus, row)):
                    streams.add(content_hash)
            except FileNotFoundError:  # nobody can say what it held
                streams.add(content_hash)
        if content_hash in hashes or content_hash in streams:
            readings.add(row["reading_id"])
    return Erased(frozenset(doc_ids), frozenset([*hashes, *streams]), frozenset(readings))


def _training_rows(corpus: Corpus, erased: Erased) -> list[QaRow]:
    rows: list[QaRow] = (
        Table(corpus.store, "qa").read(corpus.name, ["qa_id", "stream", "documents", "harvested_at"]).to_pylist()
    )
    return [
        row
        for row in rows
        if not erased.content_hashes.isdisjoint(row["stream"] or [])
        or not erased.doc_ids.isdisjoint(row["documents"] or [])
    ]


def _learners(corpus: Corpus, qa: Sequence[QaRow]) -> list[str]:
    """Return the policies that were made after the first of these rows, from the store's training rows."""
    since = min((row["harvested_at"] for row in qa), default=None)
    if since is None:
        return []
    rows = policies(corpus.store)
    return [row["policy_id"] for row in rows if row["data_version"] is not None and row["made_at"] >= since]


def _passages(corpus: Corpus, hashes: Collection[str]) -> list[str]:
    """Return some passages of each text, as many as are searched for."""
    passages: list[str] = []
    for _, text in document_texts(corpus, hashes):
        step = max(1, len(text) // _PASSAGES)
        passages += [text[start : start + _PASSAGE] for start in range(0, len(text), step)][:_PASSAGES]
        if len(passages) >= _SEARCHED:
            break
    return [passage for passage in dict.fromkeys(passages) if len(passage.strip()) >= _PASSAGE // 2][:_SEARCHED]


def _distinctive(corpus: Corpus, passages: Sequence[str]) -> list[str]:
    """Leave out the passages that texts which stay have as well."""
    left = list(passages)
    hashes = current_documents(corpus, ["content_hash"], ordered=False)["content_hash"].to_pylist()
    for _, text in document_texts(corpus, hashes):
        left = [passage for passage in left if passage not in text]
    return left


def _erase(corpus: Corpus, erased: Erased, sources: Collection[str], qa: Collection[str]) -> int:
    """Erase rows, parts, files of runs and earlier versions; return how many rows went out of the parts."""
    store, name = corpus.store, corpus.name
    forgotten(corpus, erased.content_hashes)
    segmented = Table(store, "segmented").read(name, ["content_hash", "part"])
    parts = set(segmented.filter(erased.among(segmented))["part"].to_pylist())
    for table, column, values in (
        ("texts", "content_hash", erased.content_hashes),
        ("documents", "doc_id", erased.doc_ids),
        ("sources", "source", sources),
        ("segmented", "part", parts),  # the other documents of the part are segmented again
        ("answers", "reading_id", erased.reading_ids),
        ("feedback", "reading_id", erased.reading_ids),
        ("qa", "qa_id", qa),
    ):
        erase_rows(corpus, table, column, values)
    quarantine = Table(store, "quarantine").read(name, ["item"])["item"].to_pylist()
    about = {item for item in quarantine if item.partition(" ? ")[0] in {*erased.doc_ids, *sources}}
    erase_rows(corpus, "quarantine", "item", about | {item for item in quarantine if item.partition("#")[0] in sources})
    for path in parts:
        store.delete(store.path(path))
    runs = set(Table(store, "runs").read(name, ["run_id"])["run_id"].to_pylist()) | set(logged_runs(corpus))
    rows = 0
    for folder in (("turns", name), ("streams", name), *(("runs", run_id) for run_id in runs)):
        for path in store.list(*folder):
            rows += erase_from_part(store, path, erased)
    for content_hash in erased.content_hashes:
        store.delete(store.path("streams", name, content_hash[:2], f"{content_hash}.parquet"))
    for run_id in runs:
        for file in _RUN_FILES:
            store.delete(store.path("runs", run_id, file))
    for path in store.list("damaged", suffix=""):
        store.delete(path)
    forget_rollups(corpus)
    for table in TABLES:
        Table(store, table).drop_versions(timedelta(0))
    return rows
