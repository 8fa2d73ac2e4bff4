"""The rollup of a digest: how often each answer to a question was given, and what changed since the digest before.

Most documents have the text that they had, and so the answers before are in the same bucket. Those whose text is
another one come from other buckets: each bucket writes down their answers, and all of them are compared together
afterwards. So what was before is searched once, not once for each bucket.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from infra.cluster.jobs import run_job
from infra.store import Corpus
from infra.tables.buckets import FEW, WHOLE, Bucket, groups_of
from infra.tables.delta import Table
from infra.tables.distinct import by_value
from infra.tables.plans import counted_readings, delete_work, read_moved, read_plan, write_moved
from infra.tables.runs import ChangedAnswer, QuestionRollup

_ANSWERS = 5_000
"""Different answers to a question that a task reports, the most frequent first."""
_SHOWN_ANSWERS = 20
_NAMED = 1_000
"""Most documents that a rollup names; others are only counted."""
_MOVED = 200_000
"""Answers of moved documents that one task compares."""
_PLANNED = ["reading_id", "answered_by", "doc_id", "question_id"]


class Changes(TypedDict):
    """What changed in the answers to a question; names as in `QuestionRollup`."""

    changed: list[ChangedAnswer]
    changed_count: int
    new_documents: list[str]
    new_count: int


class BucketRollup(TypedDict):
    """The rollups of a bucket, one for each question."""

    questions: list[QuestionRollup]
    moved: int
    """Answers of moved documents that were written down, to be compared by `moved_changes`."""


def rollup_bucket(corpus: Corpus, run_id: str, rows: pa.Table, *, bucket: Bucket, previous: str) -> BucketRollup:
    """Roll the answers of a bucket up.

    Args:
        corpus: whose digest.
        run_id: the digest.
        rows: its plan (`infra.tables.schemas.PLAN`), with columns `counted`, the reading whose answer counts, and
            `answer` and `found`, which are null where there is none.
        bucket: of the plan.
        previous: the digest before; empty: there is none.
    """
    given = rows.filter(pc.is_valid(rows["found"]))
    stayed, moved = given, given.slice(0, 0)
    before = _no_answers()
    if previous:
        plan = read_plan(corpus, previous, _PLANNED, filters=bucket.contains("content_hash"))
        if bucket.count > 1:
            is_here = pc.is_in(given["doc_id"], value_set=pc.unique(plan["doc_id"]))
            stayed, moved = given.filter(is_here), given.filter(pc.invert(is_here))
        before = _answers_before(corpus, plan, stayed, bucket)
    if moved.num_rows:
        write_moved(corpus.store, run_id, bucket.index, moved.select(["doc_id", "question_id", "answer"]))
    changes = _changes(stayed, before)
    most = _ANSWERS if bucket.count > 1 else _SHOWN_ANSWERS
    asked = by_value(rows.select(["question_id", "question", "answer", "found"]), "question_id")
    questions = [
        _rollup(question_id, mine, changes.get(question_id, _nothing()), most) for question_id, mine in asked.items()
    ]
    return {"questions": questions, "moved": moved.num_rows}


def _rollup(question_id: str, rows: pa.Table, changes: Changes, most: int) -> QuestionRollup:
    counts = pc.value_counts(rows.filter(rows["found"])["answer"])  # a mask that is null drops its row
    frequent = pc.sort_indices(counts.field("counts"), sort_keys=[("", "descending")])[:most]
    return {
        "question_id": question_id,
        "question": rows["question"][0].as_py(),
        "documents": rows.num_rows,
        "found": pc.sum(rows["found"], min_count=0).as_py(),
        "failed": rows["found"].null_count,
        "answers": [(one["values"], one["counts"]) for one in counts.take(frequent).to_pylist()],
        "distinct": len(counts),
        **changes,
    }


def moved_changes(corpus: Corpus, run_id: str, previous: str, moved: Sequence[tuple[int, int]]) -> dict[str, Changes]:
    """Compare what the buckets of a digest have written down; return what changed, by question_id.

    Args:
        corpus: whose digest.
        run_id: the digest.
        previous: the digest before.
        moved: which buckets have written answers down (their indices), and how many.
    """
    groups = list(groups_of(moved, _MOVED))
    work = partial(_moved_changes, corpus=corpus, run_id=run_id, previous=previous)
    result: dict[str, Changes] = {}
    for part in run_job(work, groups, corpus.store, local=sum(count for _, count in moved) <= FEW):
        for question_id, changes in part.items():
            result[question_id] = _sum([result.get(question_id, _nothing()), changes])
    delete_work(corpus.store, run_id)
    return result


def _moved_changes(buckets: Sequence[int], corpus: Corpus, run_id: str, previous: str) -> dict[str, Changes]:
    given = pa.concat_tables([read_moved(corpus.store, run_id, bucket) for bucket in buckets])
    mine = pc.field("doc_id").isin(pc.unique(given["doc_id"]))
    plan = read_plan(corpus, previous, _PLANNED, filters=mine)
    return _changes(given, _answers_before(corpus, plan, None, WHOLE))


def _answers_before(corpus: Corpus, plan: pa.Table, rows: pa.Table | None, bucket: Bucket) -> pa.Table:
    """Return columns `doc_id`, `question_id` and `answer` of the readings of an earlier plan that were answered.

    Args:
        corpus: whose plan.
        plan: its columns `_PLANNED`.
        rows: rows of today with `counted` and `answer`: most answers that counted before still count. Of documents
            that are not among them, no answer is returned. None: all are returned.
        bucket: where the documents of the plan are.
    """
    counted = counted_readings(plan)
    plan = plan.select(["doc_id", "question_id"]).append_column("counted", counted)
    if rows is None:
        return _with_answers(plan, _answers(corpus, pc.unique(counted), bucket))
    plan = plan.filter(pc.is_in(plan["doc_id"], value_set=pc.unique(rows["doc_id"])))
    known = rows.select(["counted", "answer"])
    other = plan["counted"].filter(pc.invert(pc.is_in(plan["counted"], value_set=pc.unique(known["counted"]))))
    if len(other):
        known = pa.concat_tables([known, _answers(corpus, pc.unique(other), bucket)])
    return _with_answers(plan, known)


def _with_answers(plan: pa.Table, answers: pa.Table) -> pa.Table:
    at = pc.index_in(plan["counted"], value_set=answers["counted"].combine_chunks())
    rows = plan.select(["doc_id", "question_id"]).append_column("answer", answers["answer"].take(at))
    return rows.filter(pc.is_valid(at))


def answers_to(corpus: Corpus, readings: pa.Array, columns: list[str], bucket: Bucket) -> pa.Table:
    """Return `reading_id` and other columns of the answers to some readings of a bucket's documents."""
    wanted, inside = pc.field("reading_id").isin(readings), bucket.contains("content_hash")
    both = wanted if inside is None else inside & wanted
    return Table(corpus.store, "answers").read(corpus.name, ["reading_id", *columns], both)


def _answers(corpus: Corpus, readings: pa.Array, bucket: Bucket) -> pa.Table:
    return answers_to(corpus, readings, ["answer"], bucket).rename_columns(["counted", "answer"])


def _changes(given: pa.Table, before: pa.Table) -> dict[str, Changes]:
    """Compare answers with those before (columns `doc_id`, `question_id`, `answer` of both), by question_id."""
    result: dict[str, Changes] = {}
    names = ["doc_id", "question_id", "answer"]
    earlier = by_value(before, "question_id")
    for question_id, now in by_value(given.select(names), "question_id").items():
        then = earlier.get(question_id, _no_answers())
        at = pc.index_in(now["doc_id"], value_set=then["doc_id"].combine_chunks())
        pairs = pa.table({"document": now["doc_id"], "before": then["answer"].take(at), "now": now["answer"]})
        new = pairs["document"].filter(pc.is_null(at))
        changed = pairs.filter(pc.not_equal(pairs["before"], pairs["now"]))
        result[question_id] = {
            "changed": changed.slice(0, _NAMED).to_pylist(),
            "changed_count": changed.num_rows,
            "new_documents": new.slice(0, _NAMED).to_pylist(),
            "new_count": len(new),
        }
    return result


def _no_answers() -> pa.Table:
    return pa.table({name: pa.array([], pa.string()) for name in ("doc_id", "question_id", "answer")})


def _nothing() -> Changes:
    return {"changed": [], "changed_count": 0, "new_documents": [], "new_count": 0}


def _sum(parts: Sequence[Changes]) -> Changes:
    return {
        "changed": [change for part in parts for change in part["changed"]][:_NAMED],
        "changed_count": sum(part["changed_count"] for part in parts),
        "new_documents": [doc_id for part in parts for doc_id in part["new_documents"]][:_NAMED],
        "new_count": sum(part["new_count"] for part in parts),
    }


def merged(parts: Sequence[QuestionRollup], moved: Changes | None = None) -> QuestionRollup:
    """Merge the rollups of a question from several buckets, and what changed in documents that moved between them.

    Where it has more than some thousand different answers, the counts of the rare ones are too low, and `distinct` is
    that of the answers which were counted.
    """
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(dict(part["answers"]))
    return {
        "question_id": parts[0]["question_id"],
        "question": parts[0]["question"],
        "documents": sum(part["documents"] for part in parts),
        "found": sum(part["found"] for part in parts),
        "failed": sum(part["failed"] for part in parts),
        "answers": counts.most_common(_SHOWN_ANSWERS),
        "distinct": max(len(counts), max(part["distinct"] for part in parts)),
        **_sum([*parts, moved or _nothing()]),
    }
