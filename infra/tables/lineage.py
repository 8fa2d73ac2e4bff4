"""Traces of texts: everything that a corpus has made of them, also in runs that never came to their end."""

from collections.abc import Collection, Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from infra.store import Corpus
from infra.tables.delta import Table
from infra.tables.erasing import Erased, raise_damaged
from infra.tables.rows import QaRow
from infra.tables.turn_parts import FOLDER, logged_runs
from memagent.errors import MemagentError

_ROWS = 10_000


def erased_with(corpus: Corpus, doc_ids: Collection[str], hashes: Collection[str]) -> Erased:
    """Return what goes with some texts: the archives that any of them is part of, and all readings of either.

    Readings are looked for in answers, in the plans of all runs, and in their turn logs: one that was killed has no
    answer, and its memory may hold what it had read.
    """
    wanted = pa.array(sorted(hashes), pa.string())
    streams = _archives(corpus, wanted) if len(wanted) else set()
    everything = pa.array(sorted({*hashes, *streams}), pa.string())
    readings: set[str] = set()
    answers = Table(corpus.store, "answers").read(corpus.name, ["reading_id", "content_hash"])
    for table in (answers, *_rows_of_runs(corpus, "plan", ["reading_id", "content_hash"])):
        readings.update(table.filter(pc.is_in(table["content_hash"], everything))["reading_id"].to_pylist())
    for path in corpus.store.list(FOLDER, corpus.name):
        try:
            for table in _batches(corpus, path, ["reading_id", "content_hash"]):
                readings.update(table.filter(pc.is_in(table["content_hash"], wanted))["reading_id"].to_pylist())
        except OSError as error:
            raise_damaged(corpus.store, path, error)
    return Erased(frozenset(doc_ids), frozenset([*hashes, *streams]), frozenset(readings))


def training_rows(corpus: Corpus, erased: Erased) -> list[QaRow]:
    """Return qa_id, stream, documents and harvested_at of the training rows that are of any of it."""
    columns = ["qa_id", "stream", "documents", "harvested_at"]
    rows: list[QaRow] = Table(corpus.store, "qa").read(corpus.name, columns).to_pylist()
    return [
        row
        for row in rows
        if not erased.content_hashes.isdisjoint(row["stream"] or [])
        or not erased.doc_ids.isdisjoint(row["documents"] or [])
    ]


def segment_parts(corpus: Corpus, erased: Erased) -> list[str]:
    """Return the parts of segments that have any of it."""
    segmented = Table(corpus.store, "segmented").read(corpus.name, ["content_hash", "part"])
    return sorted(set(segmented.filter(erased.among(segmented))["part"].to_pylist()))


def unknown_parts(corpus: Corpus) -> list[str]:
    """Return the paths of the parts of segments that no row names: their writer was killed."""
    known = set(Table(corpus.store, "segmented").read(corpus.name, ["part"])["part"].to_pylist())
    root = corpus.store.path("")
    return [path for path in corpus.store.list("segments", corpus.name) if path.removeprefix(root) not in known]


def _archives(corpus: Corpus, wanted: pa.Array) -> set[str]:
    """Return the hashes of the archives that have any of some texts, or of which nobody can say what they have."""
    found, known = set(), set()
    for path in corpus.store.list("streams", corpus.name):
        name = path.rsplit("/", 1)[-1].removesuffix(".parquet")
        known.add(name)
        try:
            has = any(pc.any(pc.is_in(table["content_hash"], wanted)).as_py() for table in _batches(corpus, path, None))
        except MemagentError:  # damaged
            has = True
        if has:
            found.add(name)
    columns = ["content_hash", "scope", "stream"]
    answers = Table(corpus.store, "answers").read(corpus.name, columns)
    for table in (answers, *_rows_of_runs(corpus, "plan", columns)):
        for row in table.filter(pc.equal(table["scope"], "archive")).to_pylist():
            if row["content_hash"] not in known:
                known.add(row["content_hash"])
                if not row["stream"] or pc.any(pc.is_in(pa.array(row["stream"], pa.string()), wanted)).as_py():
                    found.add(row["content_hash"])
    return found


def runs_of(corpus: Corpus) -> list[str]:
    """Return all runs of a corpus, those with nothing but a turn log as well."""
    known = Table(corpus.store, "runs").read(corpus.name, ["run_id"])["run_id"].to_pylist()
    return sorted({*known, *logged_runs(corpus)})


def _rows_of_runs(corpus: Corpus, kind: str, columns: list[str]) -> Iterator[pa.Table]:
    for run_id in runs_of(corpus):
        for path in corpus.store.list("runs", run_id, kind):
            with suppress(MemagentError):  # a damaged one says nothing to anybody, and goes (`erase_from_part`)
                yield from _batches(corpus, path, columns)


def _batches(corpus: Corpus, path: str, columns: list[str] | None) -> Iterator[pa.Table]:
    try:
        with pq.ParquetFile(path, filesystem=corpus.store.arrow, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=_ROWS, columns=columns, use_threads=False):
                yield pa.Table.from_batches([batch])
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise_damaged(corpus.store, path, error)
