"""Ingest: sources become documents, a job over blocks of sources.

Sources are listed here and parsed by workers, which write data files; this process commits them. A source counts as
read once its row in the sources table is committed, after its documents; so a killed run resumes when it is started
again.
"""

import json
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import partial
from pathlib import PurePosixPath
from typing import Literal, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from infra.cluster.jobs import run_job
from infra.sources import TITLE_CHARS, Parsed, Refused
from infra.sources.base import quoted, unquoted
from infra.sources.diff import IngestPlan, failed_stamp, make_plan, stamp_of
from infra.sources.discovery import glob_matcher, split_glob
from infra.sources.listing import is_passed_over, path_of
from infra.sources.sandbox import Guard
from infra.store.claims import used
from infra.store.corpora import check_name, forgotten, sources_of
from infra.store.delta import Table
from infra.store.documents import (
    DocumentCommits,
    DocumentFiles,
    DocumentWriter,
    PresentDocuments,
    Refusals,
    column_rows,
    current_sources,
    present,
    quarantined,
)
from infra.store.location import Corpus
from infra.store.runs import IngestSummary
from infra.store.schemas import DocumentRow, NewDocument, now
from memagent.config import Config, IngestConfig
from memagent.errors import SourceError, UsageError
from memagent.records import Progress, ProgressCounts

_log = logging.getLogger("memagent.ingest")
_BLOCK_BYTES = 32 * 2**20
_BLOCK_SOURCES = 500
_BLOCKS = 8
"""Blocks of a large ingest at least: small enough that no worker waits long for the last one."""
_FEW_SOURCES, _FEW_BYTES = 1_000, 32 * 2**20
"""Sources that are parsed for this process by one child, in about the time that Ray takes to start."""
_NAMED = 5
"""Sources without text that are named."""
_EARLIER_TEXT = "its file could not be read again: this is an earlier text"
_OWN_FILES = (
    "corpora/c.json runs/r/ingest.json runs/r/log.txt runs/r/report.html runs/r/progress.jsonl policies/p/README.md "
    "training/r/rollouts/step-1.jsonl.gz texts/corpus=c/00/t.parquet"
).split()
"""Of a store, one of each kind and depth: a glob that matches one takes in the store."""
_AGAIN = {"vanished", "unreadable", "not-a-file"}
"""Reasons that are not the source's fault: it is parsed again in the next run, even if its stamp is the same."""


def ingest(
    corpus: Corpus, sources: list[str], config: Config, run_id: str, progress: Progress | None = None
) -> IngestSummary:
    """Bring a corpus up to date with its sources. Needs a Ray session if much is new.

    Args:
        sources: folders, globs, files and ``s3://`` URLs; only what they cover is looked at.
        config: the `ingest` section matters.
        run_id: what the rows of this run are marked with.
        progress: receives sources ``done`` of ``total``, ``documents``, ``bytes`` and ``quarantined`` so far.

    Raises:
        UsageError: a source does not exist, matches nothing or holds the store; or the corpus's name cannot be used.
        RunningError: a run has the whole store for itself, and `wait` is off.
    """
    check_name(corpus.name)
    _check_outside(corpus, sources)
    with used(corpus, run_id, wait=config.wait, show=progress):
        summary = _ingest(corpus, sources, config, run_id, progress or (lambda _: None))
        # For who submitted it as a job, and for a run of the same id that reads next (`pipelines.runs.kept_ingest`).
        corpus.store.write_bytes(json.dumps(summary).encode(), "runs", run_id, "ingest.json")
        return summary


def _check_outside(corpus: Corpus, sources: Collection[str]) -> None:
    """Refuse a source that takes in the store's own files, and what is in one of the store's own folders."""
    store, root = corpus.store, PurePosixPath(corpus.store.path())
    for source in sources:
        if ("://" in source) != store.is_s3:
            continue
        path = source if store.is_s3 else os.path.abspath(os.path.expanduser(source))
        base, pattern = (path, "") if os.path.lexists(path) else split_glob(path)
        folder = PurePosixPath(base.removeprefix("s3://") if store.is_s3 else os.path.realpath(base))
        below = root.relative_to(folder) if root.is_relative_to(folder) else None
        takes = glob_matcher(pattern) if pattern else bool
        if below and not any(map(is_passed_over, below.parts)) and any(takes(str(below / own)) for own in _OWN_FILES):
            raise UsageError(f"{source} takes in the store {store.url}, to be read as documents: give another --store")
        if store.has_folder(str(folder)):
            raise UsageError(
                f"{source} is in a folder that the store {store.url} has for itself: move the documents, or give "
                "another --store"
            )


def dismiss(corpus: Corpus, sources: Collection[str], config: Config, run_id: str) -> list[str]:
    """Count failed sources, named as in the quarantine or as paths, as failures no more until they change.

    Failed readings and questions go until they fail again. Raises UsageError: one has not failed; it names the nearest.
    """
    failed = {
        row["item"].split("#", 1)[0] if row["stage"] == "ingest" else row["item"]: row["stage"]
        for row in quarantined(corpus).to_pylist()
    }
    names = [_failed_name(source, failed) for source in sources]
    with used(corpus, run_id, wait=config.wait, show=None):
        Table(corpus.store, "quarantine").delete(corpus.name, item=[name for name in names if failed[name] != "ingest"])
        known = current_sources(corpus)
        writer = DocumentWriter(corpus, run_id, _after(known))
        for row in known.filter(pc.is_in(known["source"], value_set=pa.array(names, pa.string()))).to_pylist():
            stamp = row["source_stamp"] if row["state"] == "read" else stamp_of(row["source_stamp"])
            if not stamp:  # it could not be opened
                earlier = known.filter(pc.equal(known["source"], row["source"]))
                found = make_plan([unquoted(row["source"])], earlier, config.ingest).work["stamp"]
                stamp = found[0].as_py() if len(found) else ""
            writer.source(row["source"], row["doc_id"], stamp, state="dismissed", documents=row["documents"])
        writer.commit()
    return names


def _failed_name(source: str, failed: Collection[str]) -> str:
    path = source if "://" in source else quoted(os.path.abspath(source))
    for name in (source, source.split("#", 1)[0], path):
        if name in failed:
            return name
    near = get_close_matches(path, failed, n=1)
    raise UsageError(f"{source!r} has not failed" + (f"; did you mean {near[0]!r}?" if near else ""))


def _after(known: pa.Table) -> datetime:
    """Return a time for new rows of sources: now, but later than all that are known."""
    last = pc.max(known["seen_at"]).as_py()
    return max(now(), last + timedelta(microseconds=1)) if last else now()


def _ingest(corpus: Corpus, sources: list[str], config: Config, run_id: str, show: Progress) -> IngestSummary:
    begun = time.monotonic()
    known = _known_sources(corpus, run_id)
    started_at = _after(known)
    plan = make_plan(sources, known, config.ingest, sources_of(corpus))
    del known
    commits = DocumentCommits(corpus, run_id, config.commit_seconds)
    tally = Counter[str]()
    reasons = Counter(bad.reason for bad in plan.listing.unusable) + _reasons(corpus, plan.untouched)
    textless: list[str] = []
    for block in _parse_all(plan.work, _Job(corpus, run_id, started_at, config.ingest)):
        commits.add(block["files"])
        textless = [*textless, *block["textless"]][:_NAMED]
        reasons.update(block["refused"])
        tally.update(block["counts"])
        counts = ProgressCounts(done=tally["done"], documents=tally["documents"], bytes=tally["bytes"])
        show({**counts, "total": plan.work.num_rows, "quarantined": reasons.total()})
    writer = DocumentWriter(corpus, run_id, started_at)
    before = PresentDocuments(corpus, [bad.source for bad in plan.listing.unusable])
    for bad in plan.listing.unusable:
        writer.refuse(bad.source, bad.reason, bad.detail)
        rows = before.documents(before.rows_of(bad.source).values())
        writer.move((_of_before(row) for row in rows if _EARLIER_TEXT not in (row["warnings"] or ())), bad.source)
        writer.source(bad.source, plan.unusable_ids.get(bad.source, ""), "", state="failed", documents=0)
    _delete(corpus, plan, writer, keep=config.ingest.keep_deleted)
    commits.add(writer.take_files())
    commits.commit()
    for name in ("documents", "sources"):
        Table(corpus.store, name).compact(corpus.name)
    if count := tally["textless"]:
        more = f" and {count - len(textless):,} more" if count > len(textless) else ""
        _log.warning("%d source%s without text: %s%s", count, "s" if count > 1 else "", ", ".join(textless), more)
    return IngestSummary(
        corpus=corpus.name,
        run_id=run_id,
        sources=plan.listing.count + len(plan.listing.unusable),
        new=tally["new"],
        changed=tally["changed"],
        unchanged=plan.unchanged,
        failed=tally["failed"] + len(plan.listing.unusable) + plan.failed,
        unread=tally["unread"] + plan.unread + sum(bad.reason != "empty-source" for bad in plan.listing.unusable),
        deleted=pc.sum(pc.not_equal(plan.gone["doc_id"], ""), min_count=0).as_py(),  # a folder has no id
        hidden=plan.listing.hidden,
        empty=tally["empty"],
        excluded=tally["excluded"] + plan.dismissed,
        quarantined=dict(sorted(reasons.items())),
        documents=tally["documents"],
        with_warnings=tally["with_warnings"],
        bytes=tally["bytes"],
        chars=tally["chars"],
        seconds=round(time.monotonic() - begun, 3),
    )


def _known_sources(corpus: Corpus, run_id: str) -> pa.Table:
    """Return what is known of the sources, also of those whose documents alone were committed before a kill.

    The latter get a row first, without a stamp: the next ingest that covers them reads them again, or deletes them.
    """
    columns = ["source", "doc_id", "source_stamp", "state", "documents", "seen_at"]
    known = current_sources(corpus, columns)
    last = pc.max(known["seen_at"])
    since = pc.field("seen_at") >= last if last.is_valid else None
    left = Table(corpus.store, "documents").read(corpus.name, ["doc_id", "source", "state", "seen_at"], since)
    there = known.filter(pc.or_(pc.not_equal(known["state"], "deleted"), pc.greater(known["documents"], 0)))
    left = left.filter(pc.invert(pc.is_in(left["source"], value_set=there["source"].combine_chunks())))
    if not (left := present(left)).num_rows:
        return known
    writer = DocumentWriter(corpus, run_id, _after(known))
    for source, doc_id in dict(column_rows(left, "source", "doc_id")).items():
        writer.source(source, _OF_ROW.sub("", doc_id), "", state="read", documents=0)
    writer.commit()
    return current_sources(corpus, columns)


_OF_ROW = re.compile(r"#\d+\Z")


def _reasons(corpus: Corpus, untouched: pa.Array) -> Counter[str]:
    """Return the reasons for which sources, or rows of them, failed in earlier runs and would again."""
    table = quarantined(corpus).filter(pc.field("stage") == "ingest")
    mine = pc.is_in(pc.replace_substring_regex(table["item"], "#.*", ""), value_set=untouched.cast(pa.string()))
    return Counter(table.filter(mine)["reason"].to_pylist())


@dataclass(frozen=True, slots=True)
class _Job:
    corpus: Corpus
    run_id: str
    started_at: datetime
    options: IngestConfig


class _ParsedBlock(TypedDict):
    """What became of the sources of a block."""

    counts: dict[str, int]
    """Sources ``done`` (``new``, ``changed``, ``failed``), their ``bytes``; ``documents`` written, of which
    ``with_warnings``, their ``chars``; ``empty`` sources and rows, ``textless`` sources that have only such, and
    ``excluded`` ones that were forgotten."""
    textless: list[str]
    """The first of these sources."""
    refused: dict[str, int]
    """Sources and rows by the reason for which they were refused."""
    files: DocumentFiles


def _parse_all(work: pa.Table, job: _Job) -> Iterator[_ParsedBlock]:
    size = pc.sum(work["size"]).as_py() or 0
    local = work.num_rows <= _FEW_SOURCES and size <= _FEW_BYTES
    try:
        yield from run_job(partial(_parse_block, job=job), _blocks(work, size), job.corpus.store, local=local)
    finally:
        if local:
            _close_guard()


def _blocks(work: pa.Table, size: int) -> list[pa.Table]:
    most_bytes = min(_BLOCK_BYTES, size // _BLOCKS + 1)
    most_sources = min(_BLOCK_SOURCES, work.num_rows // _BLOCKS + 1)
    blocks: list[pa.Table] = []
    first, of_block = 0, 0
    for row, more in enumerate(work["size"].to_pylist()):
        if row > first and (of_block + more > most_bytes or row - first >= most_sources):
            blocks.append(_copied(work, first, row))
            first, of_block = row, 0
        of_block += more
    return blocks if not work.num_rows else [*blocks, _copied(work, first, work.num_rows)]


def _copied(work: pa.Table, first: int, stop: int) -> pa.Table:
    return work.take(pa.array(range(first, stop), pa.int64()))  # a slice would be sent with all of the table


_guards = threading.local()
"""The parser process of this worker's thread, which serves one block after another, and its options."""


def _guard(options: IngestConfig) -> Guard:
    if getattr(_guards, "options", None) != options:
        _close_guard()
        _guards.options, _guards.guard = options, Guard(options)
    guard: Guard = _guards.guard
    return guard


def _close_guard() -> None:
    if getattr(_guards, "options", None) is not None:
        _guards.guard.close()
        _guards.options = None


def _parse_block(block: pa.Table, job: _Job) -> _ParsedBlock:
    corpus = job.corpus
    writer = DocumentWriter(corpus, job.run_id, job.started_at)
    items: list[_WorkItem] = block.to_pylist()
    old = [name for item in items for name in (item["source"] if item["known"] else "", item["was"]) if name]
    present = PresentDocuments(corpus, old)
    parse = partial(_parse_source, present=present, writer=writer, gone=forgotten(corpus), job=job)
    counts, refused = Counter[str](), Counter[str]()
    textless: list[str] = []
    for item in items:
        counts.update(done=1, bytes=item["size"])
        made = parse(item, refused=refused)
        counts.update(made)
        if made["textless"] and len(textless) < _NAMED:
            textless.append(item["source"])
    return {"counts": dict(counts), "refused": dict(refused), "textless": textless, "files": writer.take_files()}


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


def _parse_source(
    item: _WorkItem,
    *,
    present: PresentDocuments,
    writer: DocumentWriter,
    gone: Collection[str],
    job: _Job,
    refused: Counter[str],
) -> dict[str, int]:
    """Write the changes of one source; return what is counted (`_ParsedBlock.counts`).

    Args:
        present: the documents that the source has so far.
        writer: takes the rows.
        gone: content hashes of texts that were forgotten.
        job: whose source it is.
        refused: takes the reasons for which it, or rows of it, are refused.
    """
    options, started_at, stamp = job.options, job.started_at, item["stamp"]
    documents = written = chars = warned = excluded = 0
    refusals = Refusals(writer, item["source"], options.max_refused)
    before = present.rows_of(item["was"], item["source"])
    kind: Literal["new", "changed", "failed", "excluded"] = "changed" if item["known"] else "new"
    try:
        path, name = path_of(item["source"], item["path"]), item["source"].rsplit("/", 1)[-1]
        for record in _guard(options).parse(path, name):
            if isinstance(record, Refused):
                refusals.row(record)
                continue
            parsed, content_hash = record
            if content_hash in gone:
                excluded += 1
                continue
            row = _document(item, parsed, content_hash, started_at)
            documents += 1
            old = before.pop(row["doc_id"], None)
            if old is None:
                row["first_seen"] = present.first_seen(row)
            else:
                if present.is_same(old, row):
                    continue
                (earlier,) = present.documents([old])
                row["first_seen"] = earlier["first_seen"]
                # Also one that moved: its newest row under the source of before must not be one of a present document.
                if (earlier["content_hash"], earlier["source"]) != (content_hash, item["source"]):
                    writer.supersede(earlier)
            writer.document(row, parsed.text)
            written += 1
            chars += row["chars"]
            warned += bool(parsed.warnings)
    except SourceError as error:
        refusals.source(error)
        if error.reason != "empty":
            kind = "failed"
            stamp = "" if error.reason in _AGAIN else failed_stamp(stamp, options)
    refused.update(reasons := refusals.end())
    rest = present.documents(before.values())
    if kind == "failed" or reasons:  # what could not be read may still be there
        writer.move(map(_of_before, rest), item["source"])
    elif not options.keep_deleted:
        writer.delete(rest)
    elif item["was"]:  # under its name of before, no later run would find it to change or delete it
        writer.move(rest, item["source"])
    textless, unread = not documents and kind != "failed", int(not documents and kind == "failed")
    if textless and excluded:
        kind, excluded = "excluded", 0
    state = {"failed": "failed", "excluded": "dismissed"}.get(kind, "read")
    writer.source(item["source"], item["doc_id"], stamp, state=state, documents=documents)
    made = {"documents": written, "chars": chars, "with_warnings": warned, "empty": refusals.empty, "unread": unread}
    return {"textless": int(textless and kind != "excluded"), "excluded": excluded, kind: 1, **made}


def _of_before(row: DocumentRow) -> DocumentRow:
    """Return a document with the warning that its source was not read again."""
    return {**row, "warnings": list(dict.fromkeys([*(row["warnings"] or ()), _EARLIER_TEXT]))}


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
        "warnings": list(parsed.warnings) or None,
    }


def _delete(corpus: Corpus, plan: IngestPlan, writer: DocumentWriter, keep: bool) -> None:
    """Delete the documents of sources that are gone, unless they are to be kept."""
    columns = ("source", "doc_id", "source_stamp")
    for batch in plan.gone.to_batches(max_chunksize=_BLOCK_SOURCES):
        documents = PresentDocuments(corpus, batch["source"].to_pylist())
        for source, doc_id, stamp in column_rows(batch, *columns):
            rows = documents.rows_of(source).values()
            writer.delete(documents.documents(rows if not keep else ()))
            writer.source(source, doc_id, stamp, state="deleted", documents=len(rows) if keep else 0)
    for source, doc_id, stamp in column_rows(plan.moved, *columns):
        writer.source(source, doc_id, stamp, state="deleted", documents=0)
