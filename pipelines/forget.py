"""Forget documents: out of texts, segments, memories, answers, training rows, and the earlier versions of all tables.

Afterwards every file of the store is searched for passages of the forgotten texts. What was read as one stream with
others is forgotten whole: its memories may hold what they said. An ingest passes a forgotten text over, by its hash.
Nothing else uses the store in the meantime. A forgetting that was interrupted is finished by the next one.
"""

import logging
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from infra.store import Corpus, Store
from infra.tables.claims import alone
from infra.tables.corpora import check_known
from infra.tables.delta import Table
from infra.tables.documents import current_documents, document_texts
from infra.tables.erasing import Erased, find_texts
from infra.tables.forgetting import (
    JOURNAL,
    Forgetting,
    Journal,
    erase,
    interrupted,
    parts_of,
    write_down,
    written_off,
)
from infra.tables.policies import policies
from infra.tables.rows import QaRow
from infra.tables.streams import stream_of
from memagent.config import Config
from memagent.errors import UsageError
from pipelines.run_names import new_run_id

_log = logging.getLogger("memagent.forget")
_PASSAGE, _PASSAGES, _SEARCHED = 60, 3, 500
"""Characters of a passage that the store is searched for, passages of a text, and passages at most."""
_CHOSEN = ("doc_id", "source", "title")
_EVALUATED = "eval-files-"
"""Begins the names of corpora that evaluations make of files (`memagent.tasks.suites.Suite.corpus`)."""


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
    evaluated: list[str]
    """Corpora of evaluations that lost their copies of the texts."""
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
        UsageError: there is no such corpus or document.
        RunningError: a run is using the store.
    """
    corpus = check_known(Corpus(Store(config.store), name))
    store = corpus.store
    if not chosen or not {field for field, _ in chosen} <= set(_CHOSEN):
        raise UsageError(f"documents are chosen by {', '.join(f'{field}=PATTERN' for field in _CHOSEN)}")
    if dry:
        return _summary(_journal(corpus, chosen))
    with alone(store, new_run_id()):
        before = interrupted(store)
        if before is not None:
            _log.warning("a forgetting in %s was interrupted: it is finished first", before["corpus"])
            erase(store, before)
            is_this = before["corpus"] == name and not _matching(corpus, chosen).num_rows
            finished = _finish(store, before, canaries if is_this else ())
            if is_this or finished["found"]:
                return finished
        journal = _journal(corpus, chosen)
        write_down(store, journal)
        erase(store, journal)
        return _finish(store, journal, canaries)


def _journal(corpus: Corpus, chosen: Sequence[tuple[str, str]]) -> Journal:
    """Find what is to go: from the corpus, and from those of evaluations on its questions."""
    mine = _matching(corpus, chosen)
    if not mine.num_rows:
        raise UsageError(f"no document of {corpus.name} matches {', '.join('='.join(pair) for pair in chosen)}")
    journal: Journal = {"corpus": corpus.name, "erased": {corpus.name: _choose(corpus, mine)}, "passages": []}
    hashes = set(journal["erased"][corpus.name]["content_hashes"])
    journal["passages"] = _passages(corpus, hashes)
    for name in Table(corpus.store, "documents").corpora():
        if name.startswith(_EVALUATED) and name != corpus.name:
            other = Corpus(corpus.store, name)
            copies = _copies(other, hashes, journal["passages"])
            if copies.num_rows:
                journal["erased"][name] = _choose(other, copies)
    return journal


def _choose(corpus: Corpus, mine: pa.Table) -> Forgetting:
    """Find what is to go with all versions of some documents."""
    doc_ids, hashes = set(mine["doc_id"].to_pylist()), set(mine["content_hash"].to_pylist())
    stays = hashes & _hashes_of_others(corpus, doc_ids)
    erased = _readings(corpus, doc_ids, hashes - stays)
    qa = _training_rows(corpus, erased)
    return {
        "doc_ids": sorted(doc_ids),
        "content_hashes": sorted(erased.content_hashes),
        "reading_ids": sorted(erased.reading_ids),
        "sources": sorted(set(mine["source"].to_pylist())),
        "qa_ids": [row["qa_id"] for row in qa],
        "parts": parts_of(corpus, erased),
        "texts": len(hashes - stays),
        "kept_texts": len(stays),
        "policies": _learners(corpus, qa),
        "rows": 0,
    }


def _finish(store: Store, journal: Journal, canaries: Sequence[str]) -> ForgetSummary:
    """Search the store for what was erased, and say what became of it."""
    searched = [*journal["passages"], *canaries]
    found = find_texts(store, searched, but=store.path(JOURNAL))
    summary = _summary(journal)
    summary["found"] = [{"file": file, "passage": text} for file, text in found]
    summary["searched"] = len(searched)
    written_off(store)
    return summary


def _summary(journal: Journal) -> ForgetSummary:
    erased = journal["erased"].values()
    mine = journal["erased"][journal["corpus"]]
    return {
        "corpus": journal["corpus"],
        "documents": mine["doc_ids"][:1_000],
        "documents_count": len(mine["doc_ids"]),
        "texts": mine["texts"],
        "kept_texts": mine["kept_texts"],
        "readings": sum(len(one["reading_ids"]) for one in erased),
        "rows": sum(one["rows"] for one in erased),
        "training_rows": len(mine["qa_ids"]),
        "policies": mine["policies"],
        "evaluated": sorted(journal["erased"].keys() - {journal["corpus"]}),
        "searched": 0,
        "found": [],
    }


def _matching(corpus: Corpus, chosen: Sequence[tuple[str, str]]) -> pa.Table:
    """Return all versions of the documents of which any version matches."""
    table = _versions(corpus)
    mask = [False] * table.num_rows
    for field, pattern in chosen:
        values = table[field].to_pylist()
        mask = [old or fnmatchcase(value or "", pattern) for old, value in zip(mask, values, strict=True)]
    return _of_documents(table, pa.array(mask, pa.bool_()))


def _copies(corpus: Corpus, hashes: Collection[str], passages: Sequence[str]) -> pa.Table:
    """Return all versions of the documents whose text is any of some texts, or holds a passage of them."""
    table = _versions(corpus)
    texts = document_texts(corpus, table["content_hash"].to_pylist())
    copies = [name for name, text in texts if name in hashes or any(passage in text for passage in passages)]
    return _of_documents(table, pc.is_in(table["content_hash"], pa.array(copies, pa.string())))


def _versions(corpus: Corpus) -> pa.Table:
    return Table(corpus.store, "documents").read(corpus.name, [*_CHOSEN, "content_hash"])


def _of_documents(table: pa.Table, mask: pa.Array) -> pa.Table:
    """Return all rows of the documents that have a row in the mask."""
    doc_ids = table.filter(mask)["doc_id"].to_pylist()
    return table.filter(pc.is_in(table["doc_id"], pa.array(doc_ids, pa.string())))


def _hashes_of_others(corpus: Corpus, doc_ids: Collection[str]) -> set[str]:
    """Return the texts of the documents that stay."""
    others = pc.invert(pc.field("doc_id").isin(pa.array(sorted(doc_ids), pa.string())))
    stays = Table(corpus.store, "documents").read(
        corpus.name, ["content_hash"], others & (pc.field("state") == "present")
    )
    return set(stays["content_hash"].to_pylist())


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
    """Return some passages of each text, as many as are searched for, that no text which stays has as well."""
    found: list[str] = []
    for _, text in document_texts(corpus, hashes):
        step = max(1, len(text) // _PASSAGES)
        found += [text[start : start + _PASSAGE] for start in range(0, len(text), step)][:_PASSAGES]
        if len(found) >= _SEARCHED:
            break
    left = [passage for passage in dict.fromkeys(found) if len(passage.strip()) >= _PASSAGE // 2][:_SEARCHED]
    present = set(current_documents(corpus, ["content_hash"], ordered=False)["content_hash"].to_pylist())
    for _, text in document_texts(corpus, present.difference(hashes)):
        left = [passage for passage in left if passage not in text]
    return left
