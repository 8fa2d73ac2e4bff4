"""Counts of a corpus: documents, characters, and newest answers as `memagent answers` has them."""

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from infra.cluster.tasks import run_tasks
from infra.processes import usable_cores
from infra.store import Corpus
from infra.tables.buckets import FEW, Bucket, buckets
from infra.tables.delta import Table
from infra.tables.distinct import first_of_each
from infra.tables.documents import current_documents, documents_count
from infra.tables.published import held_runs, sampled_runs
from memagent.records import stable_hash

_log = logging.getLogger("memagent.status")
_BUCKET = 250_000
"""Documents that a thread counts at once."""
_COUNTED = ("documents", "answers")


class CorpusCounts(TypedDict):
    """What a corpus has."""

    documents: int
    chars: int
    answers: int
    """Newest ones, one a document and question."""
    found: int
    held: int
    """Newer answers of held nights, which nobody is shown."""


class _Runs(NamedTuple):
    """Runs whose answers are hidden (`infra.tables.published`)."""

    sampled: pa.Array
    held: pa.Array


class _Kept(TypedDict):
    """The last counts, in ``counts/<corpus>.json``."""

    of: str
    """Hash of what was counted: the tables' versions, and the hidden runs."""
    counts: CorpusCounts


def corpus_counts(corpus: Corpus, shown: Collection[str] = ()) -> CorpusCounts:
    """Count what a corpus has; again only if documents, answers or hidden runs are others than when last counted.

    Args:
        corpus: what is counted.
        shown: held runs that count as shown, since they are about to be.
    """
    sampled, held = sorted(sampled_runs(corpus)), sorted(held_runs(corpus).difference(shown))
    # Taken before they are read: what is committed meanwhile is counted again by the next call.
    of = stable_hash([Table(corpus.store, name).version() for name in _COUNTED], sampled, held)
    kept = _kept(corpus)
    if kept is not None and kept["of"] == of:
        return kept["counts"]
    counts = _counted(corpus, _Runs(pa.array(sampled, pa.string()), pa.array(held, pa.string())))
    try:
        data: _Kept = {"of": of, "counts": counts}
        corpus.store.write_bytes(json.dumps(data).encode(), *_file(corpus))
    except OSError as error:  # who may only read the store counts each time
        _log.debug("the counts are not kept: %s", error)
    return counts


@contextmanager
def counting(corpus: Corpus, shown: Collection[str]) -> Iterator[None]:
    """Count a corpus beside what is done within, so that whoever looks next need not wait for it.

    A large one is counted by a Ray task: this process holds no rows.
    """
    work, small = partial(_counted_task, corpus=corpus), documents_count(corpus) <= FEW
    with ThreadPoolExecutor(1) as thread:
        counted = thread.submit(lambda: list(run_tasks(work, [sorted(shown)], corpus.store, small=small)))
        yield
    if error := counted.exception():
        _log.warning("the corpus is counted when it is looked at: %s", error)


def _counted_task(shown: Sequence[str], corpus: Corpus) -> CorpusCounts:
    return corpus_counts(corpus, shown)


def _file(corpus: Corpus) -> tuple[str, str]:
    return "counts", f"{corpus.name}.json"


def _kept(corpus: Corpus) -> _Kept | None:
    with suppress(FileNotFoundError, ValueError):
        kept: _Kept = json.loads(corpus.store.read_bytes(*_file(corpus)))
        return kept if isinstance(kept, dict) and set(kept) == set(_Kept.__annotations__) else None
    return None


def _counted(corpus: Corpus, runs: _Runs) -> CorpusCounts:
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(usable_cores()) as threads:  # Arrow computes outside the interpreter's lock
        parts = buckets(documents_count(corpus), _BUCKET)
        for part in threads.map(lambda bucket: _bucket_counts(corpus, bucket, runs), parts):
            counts.update(part)
    counts.update(_archive_counts(corpus, runs))
    return {
        "documents": counts["documents"],
        "chars": counts["chars"],
        "answers": counts["answers"],
        "found": counts["found"],
        "held": counts["held"],
    }


def _bucket_counts(corpus: Corpus, bucket: Bucket, runs: _Runs) -> CorpusCounts:
    documents = current_documents(corpus, ["content_hash", "chars"], bucket, ordered=False)
    columns = ["content_hash", "question", "found", "run_id", "answered_at"]
    answers = _without(
        Table(corpus.store, "answers").read(corpus.name, columns, bucket.contains("content_hash"), once=False),
        runs.sampled,
    )
    # Several documents may have the same text, which is read once and answers for each of them.
    texts = pc.value_counts(documents["content_hash"])
    position = pc.index_in(answers["content_hash"], value_set=texts.field("values"))
    answers = answers.append_column("documents", texts.field("counts").take(position))
    if position.null_count:
        answers = answers.filter(pc.is_valid(position))
    newest = _newest(_without(answers, runs.held), "content_hash", "question")
    held = _held(_newest(answers, "content_hash", "question"), runs) if len(runs.held) else answers.slice(0, 0)
    return {
        "documents": documents.num_rows,
        "chars": pc.sum(documents["chars"]).as_py() or 0,
        "answers": pc.sum(newest["documents"]).as_py() or 0,
        "found": pc.sum(newest.filter(newest["found"])["documents"]).as_py() or 0,
        "held": pc.sum(held["documents"]).as_py() or 0,
    }


def _archive_counts(corpus: Corpus, runs: _Runs) -> dict[str, int]:
    """Count the newest answers over the archive as one stream, one a question."""
    columns = ["question", "found", "run_id", "answered_at"]
    answers = Table(corpus.store, "answers").read(corpus.name, columns, pc.field("scope") == "archive")
    answers = _without(answers, runs.sampled)
    newest = _newest(_without(answers, runs.held), "question")
    return {
        "answers": newest.num_rows,
        "found": pc.sum(newest["found"]).as_py() or 0,
        "held": _held(_newest(answers, "question"), runs).num_rows,
    }


def _newest(answers: pa.Table, *key: str) -> pa.Table:
    return first_of_each(answers, key, [("answered_at", "descending")])


def _without(answers: pa.Table, runs: pa.Array) -> pa.Table:
    return answers.filter(pc.invert(pc.is_in(answers["run_id"], value_set=runs))) if len(runs) else answers


def _held(newest: pa.Table, runs: _Runs) -> pa.Table:
    return newest.filter(pc.is_in(newest["run_id"], value_set=runs.held))
