"""Segment: documents -> segments, a Ray Data job."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from infra.cluster.session import ensure_ray
from infra.readers import ReaderSpec
from infra.store import Corpus
from infra.tables.delta import Table, now
from infra.tables.documents import text_files
from infra.tables.rows import FailureRow, SegmentedRow
from infra.tables.segments import write_segments
from memagent.errors import MemagentError
from memagent.segmenting import segment_key
from memagent.tokens import load_tokenizer

_ROWS = 128
"""Documents of a part."""


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """What a segment job came to."""

    documents: int
    segments: int
    tokens: int
    failed: int

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def places(corpus: Corpus, reader: ReaderSpec, content_hashes: Iterable[str]) -> dict[str, SegmentedRow]:
    """Return the rows of ``segmented`` by content hash, for documents that this reader's segments exist of."""
    reading = reader.reading
    keys = {segment_key(h, reader.tokenizer, reading.segment_tokens, reading.boundary): h for h in content_hashes}
    rows = Table(corpus.store, "segmented").read(corpus.name).to_pylist()
    return {keys[row["segment_key"]]: row for row in rows if row["segment_key"] in keys}


def segment(
    corpus: Corpus,
    reader: ReaderSpec,
    content_hashes: Iterable[str],
    run_id: str,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> SegmentSummary:
    """Segment the documents that are not yet, for one tokenizer and segment size.

    Needs a Ray session. Each part is committed when it stands, so a job that was killed goes on.
    A document that cannot be segmented becomes a quarantine row.
    """
    wanted = set(content_hashes)
    missing = wanted - set(places(corpus, reader, wanted))
    done, total, tokens, failed = 0, 0, 0, 0
    if missing:
        ensure_ray()
        import ray.data

        # The newer reader of Parquet first starts two actors that only look at the files' ends.
        ray.data.DataContext.get_current().use_datasource_v2 = False
        paths = text_files(corpus, missing)
        texts = ray.data.read_parquet(paths, filesystem=corpus.store.arrow).select_columns(["content_hash", "text"])
        job = texts.map_batches(
            _cut,
            batch_size=_ROWS,
            batch_format="pyarrow",
            fn_args=(corpus, reader, missing),
            zero_copy_batch=True,
        )
        table, quarantine = Table(corpus.store, "segmented"), Table(corpus.store, "quarantine")
        for block in job.iter_batches(batch_size=None, batch_format="pyarrow"):
            rows = block.to_pylist()
            good = [row for row in rows if not row["error"]]
            bad = [row for row in rows if row["error"]]
            table.insert_new(good)
            quarantine.upsert(_quarantine(corpus.name, run_id, row) for row in bad)
            done, failed = done + len(good), failed + len(bad)
            total += sum(row["segments"] for row in good)
            tokens += sum(row["tokens"] for row in good)
            if progress:
                progress({"documents": done, "documents_total": len(missing), "segments": total, "failures": failed})
    return SegmentSummary(done, total, tokens, failed)


def _cut(batch: pa.Table, corpus: Corpus, reader: ReaderSpec, missing: set[str]) -> dict[str, list[Any]]:
    """Cut a batch of documents and write it as one part."""
    texts = {
        h: t
        for h, t in zip(batch["content_hash"].to_pylist(), batch["text"].to_pylist(), strict=True)
        if h in missing and t is not None
    }
    rows: list[dict[str, Any]] = []
    if texts:
        try:
            tokenizer = _tokenizer(reader.engine_config.tokenizer or reader.folder)
            rows = [{**row} for row in write_segments(corpus, texts.items(), tokenizer, reader.reading)]
        except MemagentError as error:
            rows = [{"content_hash": h, "error": str(error)} for h in texts]
    return {name: [row.get(name, default) for row in rows] for name, default in _COLUMNS.items()}


_tokenizer = lru_cache(maxsize=2)(load_tokenizer)
"""A worker cuts many batches; some tokenizers take a second to load."""


_COLUMNS: dict[str, Any] = {
    "corpus": "",
    "segment_key": "",
    "content_hash": "",
    "tokenizer": "",
    "segment_tokens": 0,
    "boundary": "",
    "part": "",
    "first_row": 0,
    "segments": 0,
    "tokens": 0,
    "written_at": None,
    "error": "",
}


def _quarantine(corpus: str, run_id: str, row: dict[str, Any]) -> FailureRow:
    return {
        "corpus": corpus,
        "stage": "segment",
        "item": row["content_hash"],
        "reason": "segment",
        "detail": row["error"],
        "run_id": run_id,
        "at": now(),
    }
