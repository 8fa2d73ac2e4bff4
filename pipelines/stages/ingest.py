"""Ingest: sources become documents (a Ray Data job).

Sources are listed here and parsed by workers, which write data files; this process commits them. A source counts as
read once its row in the sources table is committed, after its documents; so a killed run resumes when it is started
again.
"""

import json
import time
from collections import Counter
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from infra.cluster.nodes import ensure_nodes
from infra.cluster.progress import Progress
from infra.cluster.session import quiet_ray_data
from infra.sources import TITLE_CHARS, Parsed, Refused
from infra.sources.diff import Plan, failed_stamp, make_plan
from infra.sources.listing import path_of
from infra.sources.sandbox import Guard
from infra.store import Corpus, Store
from infra.tables.claims import used
from infra.tables.corpora import check_name, forgotten
from infra.tables.delta import Table, now
from infra.tables.document_writer import DocumentCommits, DocumentWriter, Refusals
from infra.tables.documents import (
    PresentDocuments,
    column_rows,
    current_sources,
    mark_superseded,
    quarantined,
)
from infra.tables.rows import NewDocument
from infra.tables.runs import IngestSummary
from memagent.config import Config, IngestConfig
from memagent.errors import SourceError

_BLOCK_BYTES = 32 * 2**20
_BLOCK_SOURCES = 500
_BLOCKS_PER_CPU = 4
"""Small enough that no worker waits long for the last block."""
_AGAIN = {"vanished", "unreadable", "not-a-file"}
"""Reasons that are not the source's fault: it is parsed again in the next run, even if its stamp is the same."""


def ingest(
    corpus: Corpus,
    sources: list[str],
    config: Config,
    run_id: str,
    progress: Progress | None = None,
) -> IngestSummary:
    """Bring a corpus up to date with its sources. Needs a Ray session, if only when something is new.

    Args:
        corpus: where the documents go.
        sources: folders, globs, files and ``s3://`` URLs; only what they cover is looked at.
        config: the `ingest` section matters.
        run_id: what the rows of this run are marked with.
        progress: receives sources ``done`` of ``total``, ``documents``, ``bytes`` and ``quarantined`` so far.

    Raises:
        UsageError: a source does not exist or matches nothing, or the corpus's name cannot be used.
        RunningError: a run has the whole store for itself, and `wait` is off.
    """
    check_name(corpus.name)
    with used(corpus, run_id, wait=config.wait, show=progress):
        return _ingest(corpus, sources, config, run_id, progress or (lambda _: None))


def _ingest(corpus: Corpus, sources: list[str], config: Config, run_id: str, show: Progress) -> IngestSummary:
    begun = time.monotonic()
    mark_superseded(corpus)
    known = current_sources(corpus, ["source", "doc_id", "source_stamp", "state", "seen_at"])
    last = pc.max(known["seen_at"]).as_py()
    started_at = max(now(), last + timedelta(microseconds=1)) if last else now()
    plan = make_plan(sources, known.filter(pc.not_equal(known["state"], "deleted")), config.ingest)
    del known
    commits = DocumentCommits(corpus, run_id, config.commit_seconds)
    tally = Counter[str]()
    reasons = Counter(bad.reason for bad in plan.listing.unusable) + _reasons(corpus, plan.failed)
    for results in _parse_all(plan.work, (corpus.store, corpus.name, run_id, started_at, config)):
        for files in filter(None, results["files"].to_pylist()):
            commits.add(json.loads(files))
        for refused in results["refused"].to_pylist():
            reasons.update(dict(refused))
        tally.update(done=results.num_rows, **dict(Counter(results["kind"].to_pylist())))
        tally.update({name: pc.sum(results[name]).as_py() for name in ("documents", "bytes", "chars")})
        counts = {key: tally[key] for key in ("done", "documents", "bytes")}
        show({**counts, "total": plan.work.num_rows, "quarantined": reasons.total()})
    writer = DocumentWriter(corpus, run_id, started_at)
    for bad in plan.listing.unusable:
        writer.refuse(bad.source, bad.reason, bad.detail)
        writer.source(bad.source, plan.unusable_ids.get(bad.source, ""), "", state="failed", documents=0)
    _delete(corpus, plan, writer, keep=config.ingest.keep_deleted)
    commits.add(writer.take_files())
    commits.commit()
    for name in ("documents", "sources"):
        Table(corpus.store, name).compact(corpus.name)
    return IngestSummary(
        corpus=corpus.name,
        run_id=run_id,
        sources=plan.listing.count + len(plan.listing.unusable),
        new=tally["new"],
        changed=tally["changed"],
        unchanged=plan.unchanged,
        failed=tally["failed"] + len(plan.listing.unusable) + len(plan.failed),
        deleted=plan.gone.num_rows,
        hidden=plan.listing.hidden,
        quarantined=dict(sorted(reasons.items())),
        documents=tally["documents"],
        bytes=tally["bytes"],
        chars=tally["chars"],
        seconds=round(time.monotonic() - begun, 3),
    )


def _reasons(corpus: Corpus, failed: pa.Array) -> Counter[str]:
    """Return the reasons for which sources failed in earlier runs."""
    if not len(failed):
        return Counter()
    table = quarantined(corpus)
    mine = pc.and_(pc.equal(table["stage"], "ingest"), pc.is_in(table["item"], failed.cast(pa.string())))
    return Counter(table.filter(mine)["reason"].to_pylist())


_Job = tuple[Store, str, str, datetime, Config]
"""Store, corpus, run id, time of the run, configuration."""


def _parse_all(work: pa.Table, job: _Job) -> Iterator[pa.Table]:
    """Have workers parse all sources; yield their results (`_RESULT`), a row per source."""
    if not work.num_rows:
        return
    ensure_nodes(job[0])
    import ray
    from ray.data import from_arrow

    quiet_ray_data()
    blocks = list(_blocks(work, int(ray.cluster_resources().get("CPU", 1))))
    done = from_arrow(blocks).map_batches(
        _parse_block, batch_size=None, batch_format="pyarrow", fn_kwargs={"job": job}, zero_copy_batch=True
    )
    yield from done.iter_batches(batch_size=None, batch_format="pyarrow")


def _blocks(work: pa.Table, cpus: int) -> Iterator[pa.Table]:
    """Cut the work into blocks of similar size, by bytes and by count."""
    sizes = work["size"].to_numpy()
    most_bytes = min(_BLOCK_BYTES, int(sizes.sum()) // (cpus * _BLOCKS_PER_CPU) + 1)
    most_sources = min(_BLOCK_SOURCES, len(sizes) // cpus + 1)
    first, size = 0, 0
    for row, more in enumerate(sizes.tolist()):
        if row > first and (size + more > most_bytes or row - first >= most_sources):
            yield work.slice(first, row - first)
            first, size = row, 0
        size += more
    yield work.slice(first)


_guards: dict[str, Guard] = {}
"""The parser process of this worker, by its options: it serves one block after another."""


def _guard(options: IngestConfig) -> Guard:
    key = options.model_dump_json()
    if key not in _guards:
        for guard in _guards.values():
            guard.close()
        _guards.clear()
        _guards[key] = Guard(options)
    return _guards[key]


def _parse_block(block: pa.Table, job: _Job) -> pa.Table:
    """Parse the sources of a block; return one result per source, and with the first one the files of all."""
    store, corpus, run_id, started_at, config = job
    writer = DocumentWriter(Corpus(store, corpus), run_id, started_at)
    items: list[_WorkItem] = block.to_pylist()
    old = [name for item in items for name in (item["source"] if item["known"] else "", item["was"]) if name]
    present = PresentDocuments(Corpus(store, corpus), old)
    parse = partial(
        _parse_source,
        present=present,
        writer=writer,
        gone=forgotten(Corpus(store, corpus)),
        started_at=started_at,
        options=config.ingest,
    )
    results = [parse(item) for item in items]
    if results:
        results[0]["files"] = json.dumps(writer.take_files())
    return pa.Table.from_pylist(results, schema=_RESULT)


class _WorkItem(TypedDict):
    """A source to parse: a row of `infra.sources.diff.WORK`."""

    source: str
    path: bytes | None
    """Where to open it, where that is not `source`; need not be UTF-8."""
    doc_id: str
    stamp: str
    size: int
    known: bool
    was: str


class _ParseResult(TypedDict):
    """What became of a source: a row of `_RESULT`."""

    kind: Literal["new", "changed", "failed"]
    documents: int
    bytes: int
    chars: int
    refused: list[tuple[str, int]]
    files: str
    """The data files of a block (`DocumentFiles`) as JSON, in its first row; else empty."""


_RESULT = pa.schema(
    [
        ("kind", pa.string()),  # new | changed | failed
        ("documents", pa.int64()),
        ("bytes", pa.int64()),
        ("chars", pa.int64()),
        ("refused", pa.map_(pa.string(), pa.int64())),
        ("files", pa.large_string()),
    ]
)


def _parse_source(
    item: _WorkItem,
    *,
    present: PresentDocuments,
    writer: DocumentWriter,
    gone: Collection[str],
    started_at: datetime,
    options: IngestConfig,
) -> _ParseResult:
    """Write the changes of one source.

    Args:
        item: the source.
        present: the documents that the source has so far.
        writer: takes the rows.
        gone: content hashes of texts that were forgotten.
        started_at: when the run began.
        options: limits and columns.
    """
    documents = written = chars = 0
    refusals = Refusals(writer, item["source"], options.max_refused)
    before = present.rows_of(item["was"], item["source"])
    stamp = item["stamp"]
    kind: Literal["new", "changed", "failed"] = "changed" if item["known"] else "new"
    try:
        path, name = path_of(item["source"], item["path"]), item["source"].rsplit("/", 1)[-1]
        for record in _guard(options).parse(path, name):
            if isinstance(record, Refused):
                refusals.row(record)
                continue
            parsed, content_hash = record
            if content_hash in gone:
                refusals.row(Refused(parsed.row or "", "forgotten", "memagent forget has taken this text out"))
                continue
            row = _document(item, parsed, content_hash, started_at)
            documents += 1
            old = before.pop(row["doc_id"], None)
            if old is not None:
                if present.is_same(old, row):
                    continue
                (earlier,) = present.documents([old])
                row["first_seen"] = earlier["first_seen"]
                if earlier["content_hash"] != content_hash:
                    writer.supersede(earlier)
            writer.document(row, parsed.text)
            written += 1
            chars += row["chars"]
    except SourceError as error:
        kind = "failed"
        refusals.source(error)
        stamp = "" if error.reason in _AGAIN else failed_stamp(stamp, options)
    refused = list(refusals.end().items())
    if kind != "failed" and not options.keep_deleted:
        writer.delete(present.documents(before.values()))
    state = "failed" if kind == "failed" else "read"
    writer.source(item["source"], item["doc_id"], stamp, state=state, documents=documents)
    return {
        "kind": kind,
        "documents": written,
        "bytes": item["size"],
        "chars": chars,
        "refused": refused,
        "files": "",
    }


def _document(item: _WorkItem, parsed: Parsed, content_hash: str, started_at: datetime) -> NewDocument:
    of_row = "" if parsed.row is None else f"#{parsed.row}"
    title = " ".join(parsed.title.split())[:TITLE_CHARS] or item["source"].rsplit("/", 1)[-1] + of_row
    return {
        "doc_id": item["doc_id"] + of_row,
        "content_hash": content_hash,
        "title": title,
        "source": item["source"],
        "source_stamp": item["stamp"],
        "media_type": parsed.media_type,
        "encoding": parsed.encoding,
        "size_bytes": item["size"] if parsed.row is None else len(parsed.text.encode()),
        "chars": len(parsed.text),
        "state": "present",
        "first_seen": started_at,
        "page_starts": parsed.page_starts,
    }


def _delete(corpus: Corpus, plan: Plan, writer: DocumentWriter, keep: bool) -> None:
    """Delete the documents of sources that are gone, unless they are to be kept."""
    for batch in plan.gone.to_batches(max_chunksize=_BLOCK_SOURCES) if not keep else ():
        documents = PresentDocuments(corpus, batch["source"].to_pylist())
        for (source,) in column_rows(batch, "source"):
            writer.delete(documents.documents(documents.rows_of(source).values()))
    for table in (plan.gone, plan.moved):
        for source, doc_id, stamp in column_rows(table, "source", "doc_id", "source_stamp"):
            writer.source(source, doc_id, stamp, state="deleted", documents=0)
