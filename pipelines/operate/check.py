"""Check a corpus against its own hashes and counts, and make again what can be made again.

All but the turn log can be made again: documents from their sources, segments from texts, answers by reading. So a
repair drops what is damaged, and the next ingest and digest put it back. What is answered stays answered.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from infra.cluster.jobs import run_job
from infra.cluster.session import lazy_ray
from infra.maintenance.erasure import interrupted
from infra.maintenance.integrity import (
    Damage,
    Part,
    commit_path,
    drop_files,
    log_damage,
    mend_log,
    misstated,
    set_aside,
    table_entries,
    unreadable,
)
from infra.maintenance.lineage import runs_of
from infra.models import changed_files, check_folder, folder_hash
from infra.store.buckets import FEW, Bucket, buckets
from infra.store.claims import alone
from infra.store.corpora import check_known, load_record
from infra.store.data_files import stored_file
from infra.store.delta import Table
from infra.store.documents import DocumentWriter, current_documents, current_sources, document_texts, documents_count
from infra.store.location import Corpus, Store
from infra.store.policies import fetch, policies
from infra.store.runs import new_run_id
from infra.store.schemas import TABLES, SegmentedRow, now
from infra.store.segments import checked_streams, damaged_segments
from infra.store.turns import logged_conversations, part_paths
from memagent.config import Config
from memagent.errors import MemagentError
from memagent.records import Progress, text_hash

NAMED = 1_000
"""Damages that are named one by one; the others are counted."""
_MENDED = "set aside, and written again from what is left of it and from the data files"
_LOST = "set aside; rows that it added are dropped, and the next ingest and digest rebuild what can be"
_MADE_AGAIN = ("documents", "texts", "sources", "segmented", "answers")
_TABLE = "table {}"
_LOGS = "logs of the tables"
_LAST_TABLE = _TABLE.format(list(TABLES)[-1])


class CheckSummary(TypedDict):
    """Result of a check."""

    corpus: str
    checked: dict[str, int]
    """Files, texts, answers and policies that were looked at."""
    found: dict[str, int]
    """Damages by part of the store."""
    damages: list[Damage]
    """The first ones."""
    repaired: bool
    lasting: int
    """Damages that are there after the check."""


class _BucketCheck(TypedDict):
    checked: dict[str, int]
    damages: list[Damage]


@dataclass(frozen=True, slots=True)
class _Check:
    corpus: Corpus
    repair: bool
    run_id: str


def check(name: str, config: Config, *, repair: bool = False, show: Progress | None = None) -> CheckSummary:
    """Check a corpus: files, texts, segments, turn log, answers, and the policies of its store.

    With `repair`, drop what is damaged, so that the next ingest and digest make it again.

    Raises:
        UsageError: there is no such corpus.
        RunningError: a run is using the store, which a repair needs for itself.
    """
    work = _Check(check_known(Corpus(Store(config.store), name)), repair, new_run_id())
    corpus, checked, found = work.corpus, Counter[str](), Counter[str]()
    damages: list[Damage] = []
    lasting = 0
    with lazy_ray(config.ray), alone(corpus.store, work.run_id) if repair else nullcontext():
        for stage, results in _stages(work):
            if show:
                show({"stage": stage})
            for result in results:
                checked.update(result["checked"])
                found.update(damage["part"] for damage in result["damages"])
                lasting += sum(not (repair and damage["repair"]) for damage in result["damages"])
                damages += result["damages"][: NAMED - len(damages)]
            if not repair and (found["turn log"] or (stage == _LAST_TABLE and found)):
                break  # the rest reads what is damaged: it is checked by the repair
            if stage == _LOGS and lasting:
                break  # nothing can be read of a table without its log
    return {
        "corpus": corpus.name,
        "checked": dict(checked),
        "found": dict(found),
        "damages": damages,
        "repaired": repair,
        "lasting": lasting,
    }


def _stages(work: _Check) -> Iterator[tuple[str, Iterable[_BucketCheck]]]:
    """Yield the stages in an order in which each finds what an earlier repair has left."""
    corpus = work.corpus
    yield _LOGS, [_check_logs(work)]
    yield "settings", [_check_settings(work)]
    parts = buckets(documents_count(corpus))
    small = len(parts) == 1 and documents_count(corpus) <= FEW
    for name in TABLES:
        groups = [(name, entries) for entries in table_entries(corpus, name)]
        yield _TABLE.format(name), run_job(partial(_check_files, work=work), groups, corpus.store, local=small)
    yield "texts", run_job(partial(_check_texts, work=work), parts, corpus.store, local=small)
    yield "sources", [_check_sources(work)]
    yield "forgettings", [_check_forgetting(work)]
    yield "segments", run_job(partial(_check_segments, work=work), parts, corpus.store, local=small)
    runs = runs_of(corpus)
    yield "turn log", run_job(partial(_check_run, work=work), runs, corpus.store, local=small)
    yield "archives", [_check_archives(work)]
    yield "answers", run_job(partial(_check_answers, work=work), parts, corpus.store, local=small)
    yield "policies", [_check_policies(work)]


def _check_logs(work: _Check) -> _BucketCheck:
    """Look at the logs of all tables of the store, before anything opens one."""
    store, damages = work.corpus.store, list[Damage]()
    for name in TABLES:
        found = log_damage(store, name)
        if found.lost:
            lost = {f"{name}/_delta_log": f"{found.lost}: restore it from a backup, or repeat a killed import"}
            damages += _damages("tables", lost, repair="")
            continue
        for version, reason in found.commits.items():
            path = commit_path(store, name, version)
            damages += _damages("tables", _short(store, {path: reason}), _MENDED if version in found.mended else _LOST)
        damages += _damages("tables", _short(store, found.checkpoints), "set aside; the log has all without it")
        if work.repair:
            mend_log(store, found)
    return {"checked": {"logs": len(TABLES)}, "damages": damages}


def _check_settings(work: _Check) -> _BucketCheck:
    """Read the settings of the corpus: sources, questions, tags and what was forgotten."""
    bad = dict[str, str]()
    try:
        load_record(work.corpus)
    except MemagentError as error:
        bad[f"corpora/{work.corpus.name}.json"] = str(error)
    return {"checked": {}, "damages": _damages("settings", bad, repair="")}


def _check_files(group: tuple[str, list[dict[str, Any]]], work: _Check) -> _BucketCheck:
    """Read a table's files, and compare those that are whole with what the log says of them."""
    name, entries = group
    store = work.corpus.store
    at = {store.path(name, unquote(entry["path"])): entry for entry in entries}
    bad = {path: reason for path in at if (reason := unreadable(store, path))}
    wrong = {path: said for path in at if path not in bad and (said := misstated(store, name, at[path]))}
    if bad and work.repair:
        drop_files(store, name, bad)
    if wrong and work.repair:
        Table(store, name).commit_again([stored_file(store, name, at[path]["path"]) for path in wrong])
    lost = "the next ingest and digest rebuild it" if name in _MADE_AGAIN else "nothing makes its rows again"
    damages = _damages("tables", _short(store, bad), f"dropped; {lost}")
    damages += _damages("tables", _short(store, wrong), "the log is corrected by the file")
    return {"checked": {"files": len(at)}, "damages": damages}


def _check_texts(bucket: Bucket, work: _Check) -> _BucketCheck:
    """Compare the texts of the documents that are present with their content hashes."""
    corpus = work.corpus
    table = current_documents(corpus, bucket=bucket, ordered=False)
    left = set(table["content_hash"].to_pylist())
    count, wrong = len(left), []
    for content_hash, text in document_texts(corpus, left, bucket):
        left.remove(content_hash)
        if text_hash(text) != content_hash:
            wrong.append(content_hash)
    lost = dict.fromkeys(sorted(left), "the text is gone")
    lost |= dict.fromkeys(wrong, "the text is another one than its hash says")
    if lost and work.repair:
        Table(corpus.store, "texts").delete(corpus.name, content_hash=wrong)
        writer = DocumentWriter(corpus, work.run_id, now())
        writer.delete(table.filter(pc.is_in(table["content_hash"], pa.array(lost, pa.string()))).to_pylist())
        writer.commit()
    damages = _damages("texts", lost, "dropped; the next ingest takes it from its source again")
    return {"checked": {"texts": count}, "damages": damages}


def _check_sources(work: _Check) -> _BucketCheck:
    """Compare how many documents a source has with how many it gave; repaired, it counts as not read."""
    corpus = work.corpus
    sources = current_sources(corpus)
    sources = sources.filter(pc.equal(sources["state"], "read"))
    there = current_documents(corpus, ["source"], ordered=False).group_by("source").aggregate([("source", "count")])
    there = there.rename_columns({"source_count": "there"})
    both = sources.join(there.cast(pa.schema([sources.schema.field("source"), ("there", pa.int64())])), "source")
    fewer = both.filter(pc.less(pc.fill_null(both["there"], 0), both["documents"]))
    rows = fewer.select(sources.column_names).to_pylist()
    if rows and work.repair:
        at = now()
        Table(corpus.store, "sources").append(
            {**row, "source_stamp": "", "documents": 0, "seen_at": at, "run_id": work.run_id} for row in rows
        )
    lacking = {
        row["source"]: f"{row['there'] or 0:,} of {row['documents']:,} documents are there" for row in fewer.to_pylist()
    }
    damages = _damages("sources", lacking, "the next ingest parses it again")
    return {"checked": {"sources": sources.num_rows}, "damages": damages}


def _check_forgetting(work: _Check) -> _BucketCheck:
    """Tell of a forgetting that was interrupted: some of what is to go may be there."""
    journal = interrupted(work.corpus.store)
    mine = journal["erased"].get(work.corpus.name) if journal else None
    detail = f"its forgetting was interrupted: memagent forget {work.corpus.name} finishes it"
    names = mine["doc_ids"] if mine else []
    return {"checked": {}, "damages": _damages("forgettings", dict.fromkeys(names, detail), repair="")}


def _check_segments(bucket: Bucket, work: _Check) -> _BucketCheck:
    corpus = work.corpus
    table = Table(corpus.store, "segmented").read(corpus.name, filters=bucket.contains("content_hash"))
    rows: list[SegmentedRow] = table.to_pylist()
    bad = damaged_segments(corpus.store, rows)
    if bad and work.repair:
        Table(corpus.store, "segmented").delete(corpus.name, segment_key=bad)
        for part in {row["part"] for row in rows if row["segment_key"] in bad}:
            if unreadable(corpus.store, path := corpus.store.path(part)):
                set_aside(corpus.store, path)
    damages = _damages("segments", bad, "cut again from the text")
    return {"checked": {"segmented": table.num_rows}, "damages": damages}


def _check_run(run_id: str, work: _Check) -> _BucketCheck:
    store = work.corpus.store
    turns, plans = part_paths(work.corpus, run_id), store.list("runs", run_id)
    bad = {path: why for path in (*turns, *plans) if (why := unreadable(store, path)) and store.fs.exists(path)}
    if work.repair:
        for path in bad:
            set_aside(store, path)
    of_turns, of_plans = ({path: bad[path] for path in paths if path in bad} for paths in (turns, plans))
    damages = _damages("turn log", _short(store, of_turns), "set aside; readings that lack its turns are read again")
    damages += _damages("plans", _short(store, of_plans), "set aside; the run shows no answers, the corpus has them")
    return {"checked": {"parts of the turn log": len(turns), "plans": len(plans)}, "damages": damages}


def _check_archives(work: _Check) -> _BucketCheck:
    """Compare the lists of documents of concatenated archives with their hashes; answers have none of the long ones."""
    corpus = work.corpus
    table = Table(corpus.store, "answers").read(corpus.name, ["content_hash", "stream"], pc.field("scope") == "archive")
    long = set(table.filter(pc.equal(pc.list_value_length(table["stream"]), 0))["content_hash"].to_pylist())
    found = checked_streams(corpus, long)
    bad = {path: why for path, why in found.items() if why and corpus.store.fs.isfile(path)}
    if work.repair:
        for path in bad:
            set_aside(corpus.store, path)
    again = "asking again over the same documents writes it"
    damages = _damages("archives", _short(corpus.store, bad), f"set aside; {again}")
    gone = {path: f"{why}; {again}" for path, why in found.items() if why and path not in bad}
    damages += _damages("archives", _short(corpus.store, gone), repair="")
    return {"checked": {"archives": len(found)}, "damages": damages}


def _check_answers(bucket: Bucket, work: _Check) -> _BucketCheck:
    """Look for answers with conversations that are not in the turn log: they stand, but not how they came about."""
    corpus = work.corpus
    columns = ["reading_id", "conversations"]
    table = Table(corpus.store, "answers").read(corpus.name, columns, bucket.contains("content_hash"))
    held = dict(zip(*(table[name].to_pylist() for name in columns), strict=True))
    logged = logged_conversations(corpus, held)
    lacking = {
        reading: f"{count - logged[reading]:,} of its {count:,} conversations are not in the turn log"
        for reading, count in sorted(held.items())
        if logged[reading] < count
    }
    return {"checked": {"answers": len(held)}, "damages": _damages("answers", lacking, repair="")}


def _check_policies(work: _Check) -> _BucketCheck:
    store, bad = work.corpus.store, dict[str, str]()
    rows = policies(store)
    for row in rows:
        try:
            folder = fetch(store, row)
            check_folder(folder)
            if folder_hash(folder) != row["policy_id"].rpartition("@")[2] or changed_files(folder):
                raise MemagentError("its files are not those that were published")
        except MemagentError as error:
            bad[row["policy_id"]] = str(error)
    return {"checked": {"policies": len(rows)}, "damages": _damages("policies", bad, repair="")}


def _damages(part: Part, found: Mapping[str, str], repair: str) -> list[Damage]:
    """Return what is damaged, with why; `repair`: what is done about it."""
    return [{"part": part, "item": item, "detail": why, "repair": repair} for item, why in found.items()]


def _short(store: Store, found: Mapping[str, str]) -> dict[str, str]:
    """Return what is known of files by their paths in the store."""
    return {path.removeprefix(store.path("")): why for path, why in found.items()}
