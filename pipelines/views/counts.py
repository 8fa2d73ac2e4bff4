"""Counts of a corpus: documents, characters, and newest answers as `memagent answers` has them."""

import json
import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypedDict, cast

import pyarrow as pa
import pyarrow.compute as pc

from infra.cluster.jobs import run_job
from infra.store.buckets import FEW, Bucket, buckets
from infra.store.delta import Table
from infra.store.documents import current_documents, documents_count
from infra.store.feedback import Reviews
from infra.store.location import Corpus
from infra.system.processes import usable_cores
from memagent.records import stable_hash
from pipelines.views.visible_answers import AnswerRule, visible_answers

_log = logging.getLogger("memagent.status")
_BUCKET = 250_000
"""Documents that a thread counts at once."""
_COUNTED = ("documents", "answers", "feedback")


class CorpusCounts(TypedDict):
    """What a corpus has."""

    documents: int
    chars: int
    answers: int
    """Newest ones, one a document and question."""
    found: int
    withheld: int
    """Newer answers of withheld digests, which nobody is shown."""


def corpus_counts(corpus: Corpus, rule: AnswerRule | None = None) -> CorpusCounts:
    """Count what a corpus has; again only if documents, answers or the rule are others than when last counted.

    The last counts are kept in ``counts/<corpus>.json``, with a hash of the tables' versions and the rule.
    """
    rule = rule or AnswerRule.of(corpus)
    # Taken before they are read: what is committed meanwhile is counted again by the next call.
    of = stable_hash([Table(corpus.store, name).version() for name in _COUNTED], rule)
    file = ("counts", f"{corpus.name}.json")
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # TypeError: a file of something else
        kept = json.loads(corpus.store.read_bytes(*file))
        if kept["of"] == of:
            return cast(CorpusCounts, kept["counts"])
    counts = _counted(corpus, rule)
    try:
        corpus.store.write_bytes(json.dumps({"of": of, "counts": counts}).encode(), *file)
    except OSError as error:  # who may only read the store counts each time
        _log.debug("the counts are not kept: %s", error)
    return counts


@contextmanager
def counting(corpus: Corpus, rule: AnswerRule) -> Iterator[None]:
    """Count a corpus beside what is done within, so that whoever looks next need not wait for it.

    A large one is counted by a Ray task: this process holds no rows.
    """
    work, small = partial(corpus_counts, corpus), documents_count(corpus) <= FEW
    with ThreadPoolExecutor(1) as thread:
        counted = thread.submit(lambda: list(run_job(work, [rule], corpus.store, local=small)))
        yield
    if error := counted.exception():
        _log.warning("the corpus is counted when it is looked at: %s", error)


def _counted(corpus: Corpus, rule: AnswerRule) -> CorpusCounts:
    counts = Counter(dict.fromkeys(CorpusCounts.__annotations__, 0))
    with ThreadPoolExecutor(usable_cores()) as threads:  # Arrow computes outside the interpreter's lock
        parts = buckets(documents_count(corpus), _BUCKET)
        for part in threads.map(lambda bucket: _bucket_counts(corpus, bucket, rule), parts):
            counts.update(part)
    archive = Reviews(corpus).corrected(visible_answers(corpus, None, rule, ["answer", "found"]))
    counts["answers"] += archive.num_rows
    counts["found"] += pc.sum(archive["found"]).as_py() or 0
    if rule.withheld:
        counts["withheld"] += visible_answers(corpus, None, rule, [], withheld=True).num_rows
    return cast(CorpusCounts, dict(counts))


def _bucket_counts(corpus: Corpus, bucket: Bucket, rule: AnswerRule) -> dict[str, int]:
    documents = current_documents(corpus, ["content_hash", "chars"], bucket, ordered=False)
    # Several documents may have the same text, which is read once and answers for each of them.
    texts = pc.value_counts(documents["content_hash"])

    def copies(answers: pa.Table) -> int:
        place = pc.index_in(answers["content_hash"], value_set=texts.field("values"))
        return pc.sum(texts.field("counts").take(place)).as_py() or 0

    shown = Reviews(corpus, bucket).corrected(visible_answers(corpus, bucket, rule, ["answer", "found"]))
    return {
        "documents": documents.num_rows,
        "chars": pc.sum(documents["chars"]).as_py() or 0,
        "answers": copies(shown),
        "found": copies(shown.filter(shown["found"])),
        "withheld": copies(visible_answers(corpus, bucket, rule, [], withheld=True)) if rule.withheld else 0,
    }
