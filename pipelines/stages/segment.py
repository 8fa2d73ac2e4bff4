"""Segment: documents -> segments, a task for each bucket of the corpus."""

import math
from collections import Counter
from functools import lru_cache, partial
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from infra.cluster.jobs import run_job
from infra.readers import ReaderSpec
from infra.store.buckets import Bucket, buckets
from infra.store.data_files import FileCommits, write_data_file
from infra.store.delta import DataFile, Table
from infra.store.documents import current_documents, document_texts, documents_count
from infra.store.location import Corpus
from infra.store.runs import NOTHING_SEGMENTED, SegmentSummary
from infra.store.schemas import failure_row
from infra.store.segments import segmented_table, write_segments
from infra.system.processes import usable_cores
from memagent.reading.tokens import load_tokenizer
from memagent.records import Progress, ProgressCounts

_COMPARED = 250_000
"""Documents whose hashes are compared at once, by a task if there are more: 200 MB."""
_DOCUMENTS, _CHARS = 40_000, 8_000_000
"""Documents and characters of a task at most; one task's are segmented in less time than Ray takes to start."""
_SMALL = 128
"""Documents that are worth a task of their own while a processor is free."""


class _SegmentedBucket(TypedDict):
    counts: dict[str, int]
    """As in `SegmentSummary`."""
    files: list[DataFile]
    """Of table ``segmented``."""
    failures: dict[str, str]
    """Message by content hash."""


def segment(corpus: Corpus, reader: ReaderSpec, run_id: str, progress: Progress | None = None) -> SegmentSummary:
    """Segment the documents that have no segments yet, for the reader's tokenizer and segment size.

    The segments of a task are committed when it ends, so a job that was killed continues. A document that cannot be
    segmented becomes a quarantine row.
    """
    compared = buckets(documents_count(corpus), _COMPARED)
    count = partial(_count_missing, corpus=corpus, reader=reader)
    counted = list(run_job(count, compared, corpus.store, local=len(compared) == 1))
    documents, chars = (sum(counts) for counts in zip(*counted, strict=True))
    if not documents:
        return NOTHING_SEGMENTED
    tasks = max(
        math.ceil(documents / _DOCUMENTS), math.ceil(chars / _CHARS), min(usable_cores(), math.ceil(documents / _SMALL))
    )
    commits = FileCommits(Table(corpus.store, "segmented"), corpus.name, run_id)
    quarantine, total = Table(corpus.store, "quarantine"), Counter[str]()
    work = partial(_segment_bucket, corpus=corpus, reader=reader)
    parts = [Bucket(index, tasks) for index in range(tasks)]
    for done in run_job(work, parts, corpus.store, local=chars <= _CHARS):
        commits.add(done["files"])
        if commits.is_due:
            commits.commit()
        quarantine.upsert(
            failure_row(corpus.name, "segment", name, reason="segment", detail=message, run_id=run_id)
            for name, message in done["failures"].items()
        )
        total.update(done["counts"])
        if progress:
            shown = ProgressCounts(documents=total["documents"], segments=total["segments"], failures=total["failed"])
            progress({**shown, "documents_total": documents})
    commits.commit()
    return SegmentSummary(
        documents=total["documents"], segments=total["segments"], tokens=total["tokens"], failed=total["failed"]
    )


def _count_missing(bucket: Bucket, corpus: Corpus, reader: ReaderSpec) -> tuple[int, int]:
    missing = _missing(corpus, reader, bucket)
    return missing.num_rows, pc.sum(missing["chars"]).as_py() or 0


def _missing(corpus: Corpus, reader: ReaderSpec, bucket: Bucket) -> pa.Table:
    documents = current_documents(corpus, ["content_hash", "chars"], bucket, ordered=False)
    known = segmented_table(corpus, reader.tokenizer, reader.reading, bucket, columns=["content_hash"])["content_hash"]
    missing = documents.filter(pc.invert(pc.is_in(documents["content_hash"], value_set=known.combine_chunks())))
    return missing.group_by("content_hash").aggregate([("chars", "max")]).rename_columns({"chars_max": "chars"})


def _segment_bucket(bucket: Bucket, corpus: Corpus, reader: ReaderSpec) -> _SegmentedBucket:
    missing = set(_missing(corpus, reader, bucket)["content_hash"].to_pylist())
    if not missing:
        return {"counts": {}, "files": [], "failures": {}}
    tokenizer = _tokenizer(reader.tokenizer_source)
    rows, failures = write_segments(corpus, document_texts(corpus, missing, bucket), tokenizer, reader.reading)
    return {
        "counts": {
            "documents": len(rows),
            "segments": sum(row["segments"] for row in rows),
            "tokens": sum(row["tokens"] for row in rows),
            "failed": len(failures),
        },
        "files": [write_data_file(corpus, "segmented", rows)] if rows else [],
        "failures": failures,
    }


_tokenizer = lru_cache(maxsize=2)(load_tokenizer)
"""A worker does many tasks; some tokenizers take a second to load."""
