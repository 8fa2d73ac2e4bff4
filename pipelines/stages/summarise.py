"""Summarise a run's answers, a task for each bucket of its plan. The driver sees only counts."""

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import dropwhile
from typing import NamedTuple, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from infra.cluster.jobs import run_job
from infra.store.buckets import FEW, WHOLE, Bucket, by_value, groups_of
from infra.store.delta import Table
from infra.store.feedback import Reviews
from infra.store.location import Corpus
from infra.store.plans import counted_readings, delete_work, has_plan, read_moved, read_plan, write_moved
from infra.store.runs import Changes, QuestionRollup, no_changes
from infra.store.schemas import reading_items
from memagent.evaluation.metrics import METRICS
from memagent.evaluation.stats import Score, share
from memagent.quality.quality_checks import QuestionQuality
from pipelines.stages.plan import Plan

_log = logging.getLogger("memagent.digest")
_ANSWERS = 5_000
"""Different answers to a question that a task reports, the most frequent first."""
_SHOWN_ANSWERS = 20
_NAMED = 1_000
"""Most documents that a rollup names; others are only counted."""
_MOVED = 200_000
"""Answers of moved documents that one task compares."""
_PLANNED = ["reading_id", "answered_by", "doc_id", "question"]
_COUNTED = ["counted", "answer", "corrected", "run_id", "answered_at"]


class PastRun(NamedTuple):
    """A digest that ended."""

    run_id: str
    ended_at: datetime


def rollup_bucket(
    corpus: Corpus, run_id: str, rows: pa.Table, *, bucket: Bucket, before: Sequence[PastRun]
) -> tuple[list[QuestionRollup], int]:
    """Roll the answers of a bucket of a digest up, and compare them with the digests `before`, if there are any.

    Return the rollups of the questions, and how many answers were written down for `moved_changes`: of documents that
    were in another bucket, or without an answer.
    `rows` is the bucket's plan with columns `counted`, the reading whose answer counts; `answer` and `found` as people
    are shown them, null where there is none; and `corrected`, whether they are other than the reader's.
    """
    given = rows.filter(pc.is_valid(rows["found"]))
    moved, known, gone = given.slice(0, 0), _no_answers(), dict[str, Changes]()
    if before:
        plan = read_plan(corpus, before[0].run_id, _PLANNED, filters=bucket.contains("content_hash"))
        gone = _gone(corpus, run_id, plan, rows, bucket)
        if bucket.count == 1:
            known = _last_given(corpus, before, given)
        else:
            known, _ = _given_by(corpus, before[0], plan, given, bucket)
            is_known = pc.is_in(_pairs(given), value_set=_pairs(known).combine_chunks())
            given, moved = given.filter(is_known), given.filter(pc.invert(is_known))
        if moved.num_rows:
            write_moved(corpus.store, run_id, bucket.index, moved.select(["doc_id", "question", "answer"]))
    changes = _changes(given, known)
    most = _ANSWERS if bucket.count > 1 else _SHOWN_ANSWERS
    rows = rows.select(["question_id", "question", "answer", "found", "corrected"])
    # A question may have lost all its documents of this bucket, and be asked in others.
    asked = by_value(rows, "question")
    asked |= {question: rows.slice(0, 0) for question in gone if question not in asked}
    questions = [
        _rollup(question, mine, _sum([part[question] for part in (changes, gone) if question in part]), most)
        for question, mine in asked.items()
    ]
    return questions, moved.num_rows


def _rollup(question: str, rows: pa.Table, changes: Changes, most: int) -> QuestionRollup:
    counts = pc.value_counts(rows.filter(rows["found"])["answer"])  # a mask that is null drops its row
    frequent = pc.sort_indices(counts.field("counts"), sort_keys=[("", "descending")])[:most]
    return {
        "question_id": rows["question_id"][0].as_py() if rows.num_rows else "",
        "question": question,
        "documents": rows.num_rows,
        "found": pc.sum(rows["found"], min_count=0).as_py(),
        "unanswered": rows["found"].null_count,
        "answers": [(one["values"], one["counts"]) for one in counts.take(frequent).to_pylist()],
        "distinct": len(counts),
        "corrected": pc.sum(rows["corrected"], min_count=0).as_py(),
        **changes,
    }


def moved_changes(
    corpus: Corpus, run_id: str, before: Sequence[PastRun], moved: Sequence[tuple[int, int]]
) -> dict[str, Changes]:
    """Compare what a digest's buckets have written down with the digests before; return what changed, by question.

    `moved` says which buckets have written answers down (their indices), and how many.
    """
    groups = list(groups_of(moved, _MOVED))
    work = partial(_moved_changes, corpus=corpus, run_id=run_id, before=before)
    result: dict[str, Changes] = {}
    for part in run_job(work, groups, corpus.store, local=sum(count for _, count in moved) <= FEW):
        for question, changes in part.items():
            result[question] = _sum([result.get(question, no_changes()), changes])
    delete_work(corpus.store, run_id)
    return result


def _gone(corpus: Corpus, run_id: str, plan: pa.Table, rows: pa.Table, bucket: Bucket) -> dict[str, Changes]:
    """Return the documents of a bucket of the digest before (its `plan`) that no question is asked of, by question.

    `rows` is the bucket's plan of today; a document that moved to another bucket is not gone.
    """
    pairs = ["doc_id", "question"]
    left = plan.select(pairs).join(rows.select(pairs), pairs, join_type="left anti")
    if left.num_rows and bucket.count > 1:
        mine = pc.field("doc_id").isin(pc.unique(left["doc_id"]))
        left = left.join(read_plan(corpus, run_id, pairs, filters=mine), pairs, join_type="left anti")
    return {
        question: {**no_changes(), "gone": gone["doc_id"].slice(0, _NAMED).to_pylist(), "gone_count": gone.num_rows}
        for question, gone in by_value(left.sort_by("doc_id"), "question").items()
    }


def _moved_changes(buckets: list[int], corpus: Corpus, run_id: str, before: Sequence[PastRun]) -> dict[str, Changes]:
    given = pa.concat_tables([read_moved(corpus.store, run_id, bucket) for bucket in buckets])
    return _changes(given, _last_given(corpus, before, given))


def _last_given(corpus: Corpus, before: Sequence[PastRun], rows: pa.Table) -> pa.Table:
    """Return what the last digest that had an answer gave to the questions of `rows`, as `_given_by`."""
    found = [_no_answers()]
    for past in before:
        if rows.num_rows and has_plan(corpus.store, past.run_id):
            mine = pc.field("doc_id").isin(pc.unique(rows["doc_id"]))
            plan = read_plan(corpus, past.run_id, _PLANNED, filters=mine)
            given, rows = _given_by(corpus, past, plan, rows, WHOLE)
            found.append(given)
    return pa.concat_tables(found)


def _given_by(
    corpus: Corpus, past: PastRun, plan: pa.Table, rows: pa.Table, bucket: Bucket
) -> tuple[pa.Table, pa.Table]:
    """Return what answers a digest had when it ended: `doc_id`, `question`, `answer` and `corrected`.

    One that was given since, as where a reading had failed or a budget did not last, was not there then: these rows of
    its plan are returned, too.

    Args:
        plan: of the digest, `_PLANNED`.
        rows: answers of today (`doc_id`, `question`): of others none is returned. Where they have `_COUNTED`, most
            answers that counted before still count.
        bucket: where the documents of the plan are.
    """
    plan = plan.filter(pc.is_in(_pairs(plan), value_set=_pairs(rows).combine_chunks()))
    counted, known = counted_readings(plan), list[pa.Table]()
    other = pc.unique(counted)
    if "counted" in rows.column_names:
        known = [rows.select(_COUNTED)]
        other = other.filter(pc.invert(pc.is_in(other, value_set=pc.unique(rows["counted"]))))
    if len(other) or not known:
        known.append(_answers(corpus, other, bucket))
    answers = pa.concat_tables(known)
    in_time = pc.less_equal(answers["answered_at"], pa.scalar(past.ended_at, answers["answered_at"].type))
    answers = answers.filter(pc.or_(in_time, pc.equal(answers["run_id"], past.run_id)))
    at = pc.index_in(counted, value_set=answers["counted"].combine_chunks())
    given = plan.select(["doc_id", "question"])
    for name in ("answer", "corrected"):
        given = given.append_column(name, answers[name].take(at))
    return given.filter(pc.is_valid(at)), plan.filter(pc.is_null(at))


def _pairs(rows: pa.Table) -> pa.ChunkedArray:
    columns = (rows[name].cast(pa.large_string()) for name in ("doc_id", "question"))
    return pc.binary_join_element_wise(*columns, pa.scalar("\0", pa.large_string()))


def _answers_to(corpus: Corpus, readings: pa.Array, columns: list[str], bucket: Bucket) -> pa.Table:
    """Return `reading_id` and other columns of the answers to some readings of a bucket's documents."""
    wanted = bucket.contains("content_hash") & pc.field("reading_id").isin(readings)
    return Table(corpus.store, "answers").read(corpus.name, ["reading_id", *columns], wanted)


def _answers(corpus: Corpus, readings: pa.Array, bucket: Bucket) -> pa.Table:
    """Return the answers to readings as people are shown them, `_COUNTED`."""
    answers = _answers_to(corpus, readings, [*_SHOWN, "run_id", "answered_at"], bucket)
    shown = Reviews(corpus, bucket).corrected(answers)
    corrected = pc.not_equal(shown["answer"], answers["answer"])
    columns = [answers["reading_id"], shown["answer"], corrected, answers["run_id"], answers["answered_at"]]
    return pa.table(columns, _COUNTED)


def _changes(given: pa.Table, before: pa.Table) -> dict[str, Changes]:
    """Compare answers with those before (columns `doc_id`, `question`, `answer` of both, `corrected` of these), by
    question. What people had corrected comes first.
    """
    result: dict[str, Changes] = {}
    names = ["doc_id", "question", "answer"]
    earlier = by_value(before, "question")
    for question, now in by_value(given.select(names), "question").items():
        then = earlier.get(question, _no_answers())
        at = pc.index_in(now["doc_id"], value_set=then["doc_id"].combine_chunks())
        pairs = pa.table({"document": now["doc_id"], "before": then["answer"].take(at), "now": now["answer"]})
        pairs = pairs.append_column("corrected", then["corrected"].take(at))
        new = pairs["document"].filter(pc.is_null(at))
        changed = pairs.filter(pc.not_equal(pairs["before"], pairs["now"]))
        changed = pa.concat_tables(changed.filter(pc.equal(changed["corrected"], said)) for said in (True, False))
        result[question] = {
            **no_changes(),
            "changed": changed.slice(0, _NAMED).to_pylist(),
            "changed_count": changed.num_rows,
            "new_documents": new.slice(0, _NAMED).to_pylist(),
            "new_count": len(new),
        }
    return result


def _no_answers() -> pa.Table:
    text = pa.large_string()
    return pa.schema({"doc_id": pa.string(), "question": text, "answer": text, "corrected": pa.bool_()}).empty_table()


def _sum(parts: Sequence[Changes]) -> Changes:
    return {
        "changed": [change for part in parts for change in part["changed"]][:_NAMED],
        "changed_count": sum(part["changed_count"] for part in parts),
        "new_documents": [doc_id for part in parts for doc_id in part["new_documents"]][:_NAMED],
        "new_count": sum(part["new_count"] for part in parts),
        "gone": [doc_id for part in parts for doc_id in part["gone"]][:_NAMED],
        "gone_count": sum(part["gone_count"] for part in parts),
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
        "question_id": next(filter(None, (part["question_id"] for part in parts)), ""),
        "question": parts[0]["question"],
        "documents": sum(part["documents"] for part in parts),
        "found": sum(part["found"] for part in parts),
        "unanswered": sum(part["unanswered"] for part in parts),
        "answers": counts.most_common(_SHOWN_ANSWERS),
        "distinct": max(len(counts), max(part["distinct"] for part in parts)),
        "corrected": sum(part.get("corrected", 0) for part in parts),
        **_sum([*parts, moved or no_changes()]),
    }


_COLUMNS = ["reading_id", "answered_by", "doc_id", "content_hash", "question_id", "question", "gold", "state"]
_SHOWN = ["content_hash", "question", "answer", "found"]
_ANSWER = [*_SHOWN, "run_id", "answered_at", "segments", "memories_cut", "memory_empty"]


class BucketSummary(TypedDict):
    """Summary of a bucket."""

    bucket: int
    """Its index."""
    found: int
    """Readings whose answer was found, as people are shown it."""
    sums: dict[str, float]
    """Sums of the metrics over the readings that have gold."""
    scored: int
    """Readings that have gold."""
    answered: list[str]
    """Quarantine items of readings that failed in an earlier run and are answered now."""
    rollup: list[QuestionRollup]
    moved: int
    """Answers that were written down, to be compared by `moved_changes`."""
    withheld: dict[str, int]
    """Readings whose answer is of a withheld run, by run."""
    fresh: dict[str, QuestionQuality]
    """By question text: what the answers of this digest are like."""


@dataclass(frozen=True, slots=True)
class DigestRuns:
    """The runs whose answers matter to a digest."""

    before: Sequence[PastRun]
    """The last good digests before it, newest first."""
    fresh: frozenset[str]
    """Itself, and those that were broken off and that it brought to an end."""


@dataclass(slots=True)
class Summary:
    """Summary of a run's answers."""

    found: int = 0
    scores: list[Score] | None = None
    """None where nothing has gold."""
    answered: list[str] = field(default_factory=list)
    rollup: list[QuestionRollup] = field(default_factory=list)
    withheld: Counter[str] = field(default_factory=Counter)
    """Readings whose answer is of a withheld run, by run."""
    fresh: dict[str, QuestionQuality] = field(default_factory=dict)
    """By question text: what the answers of this digest are like."""


def summarise(
    corpus: Corpus,
    run_id: str,
    plan: Plan,
    *,
    failed_before: Sequence[str] = (),
    digest: DigestRuns | None = None,
    withheld: frozenset[str] = frozenset(),
) -> Summary:
    """Summarise the answers to a run's plan. Failures, and questions about no document, count as wrong.

    Args:
        failed_before: readings in the quarantine.
        digest: the runs that matter to a digest; None: this is none, and has no rollup.
        withheld: runs whose answers are shown to nobody, itself not among them.
    """
    if digest is not None:
        kept = list(dropwhile(lambda past: not has_plan(corpus.store, past.run_id), digest.before))
        if gone := len(digest.before) - len(kept):
            _log.warning("the plans of the last %d digests are gone: answers are compared with those before", gone)
        digest = replace(digest, before=kept)
    work = partial(
        summarise_bucket,
        corpus=corpus,
        run_id=run_id,
        failed_before=frozenset(failed_before),
        digest=digest,
        withheld=withheld,
    )
    summary = Summary()
    sums: Counter[str] = Counter()
    scored = sum(question.answers is not None for question in plan.unmatched)
    rollups: dict[str, list[QuestionRollup]] = defaultdict(list)
    moved: list[tuple[int, int]] = []
    for part in run_job(work, plan.buckets, corpus.store, local=plan.counts["readings"] <= FEW):
        summary.found += part["found"]
        summary.answered += part["answered"]
        sums.update(part["sums"])
        scored += part["scored"]
        summary.withheld.update(part["withheld"])
        for text, quality in part["fresh"].items():
            summary.fresh[text] = summary.fresh.get(text, QuestionQuality()) + quality
        if part["moved"]:
            moved.append((part["bucket"], part["moved"]))
        for rollup in part["rollup"]:
            rollups[rollup["question"]].append(rollup)
    if scored:
        summary.scores = [share(metric, sums[metric], scored) for metric in METRICS]
    changes = moved_changes(corpus, run_id, digest.before, moved) if digest is not None and moved else {}
    joined = [merged(parts, changes.get(question)) for question, parts in rollups.items()]
    summary.rollup = [one for one in joined if one["question_id"]]  # else it is no longer asked
    return summary


def summarise_bucket(
    bucket: Bucket,
    corpus: Corpus,
    run_id: str,
    *,
    failed_before: frozenset[str],
    digest: DigestRuns | None,
    withheld: frozenset[str],
) -> BucketSummary:
    """Summarise the answers of a bucket; arguments as in `summarise`."""
    rows = read_plan(corpus, run_id, _COLUMNS, bucket)
    rows = rows.append_column("counted", counted_readings(rows))
    answers = _answers_to(corpus, pc.unique(rows["counted"]), _ANSWER, bucket)
    at = pc.index_in(rows["counted"], value_set=answers["reading_id"].combine_chunks())
    for name in ("answer", "found", "run_id", "answered_at"):
        rows = rows.append_column(name, answers[name].take(at))
    with_gold = rows.filter(pc.is_valid(rows["gold"]))
    shown = Reviews(corpus, bucket).corrected(answers)
    changed = pc.not_equal(shown["answer"], answers["answer"])
    rows = rows.append_column("corrected", changed.take(at))
    for name in ("answer", "found"):
        rows = rows.set_column(rows.column_names.index(name), name, shown[name].take(at))
    given = rows.filter(pc.is_valid(at))
    runs = pc.value_counts(given["run_id"]).to_pylist()
    items = reading_items(given) if failed_before else pa.array([], pa.string())
    questions, moved = list[QuestionRollup](), 0
    if digest is not None:
        questions, moved = rollup_bucket(corpus, run_id, rows, bucket=bucket, before=digest.before)
    return {
        "bucket": bucket.index,
        "found": pc.sum(given["found"], min_count=0).as_py(),
        "sums": _sums(with_gold),
        "scored": with_gold.num_rows,
        "answered": items.filter(pc.is_in(items, value_set=pa.array(failed_before, pa.string()))).to_pylist(),
        "rollup": questions,
        "moved": moved,
        "withheld": {one["values"]: one["counts"] for one in runs if one["values"] in withheld},
        "fresh": {} if digest is None else _fresh(rows, answers, digest),
    }


def _sums(rows: pa.Table) -> dict[str, float]:
    """Return the sums of the metrics over rows with `gold`; one without `answer` counts as wrong."""
    pairs = list(zip(rows["answer"].to_pylist(), rows["gold"].to_pylist(), strict=True))
    return {
        name: sum((metric(answer, gold) for answer, gold in pairs if answer is not None), 0.0)
        for name, metric in METRICS.items()
    }


def _fresh(rows: pa.Table, answers: pa.Table, digest: DigestRuns) -> dict[str, QuestionQuality]:
    """Return sums over the answers of this digest, each reading once, by question text.

    Pairs of answers are those within the bucket, a random part of the documents.
    """
    given = answers.filter(pc.is_in(answers["run_id"], value_set=pa.array(digest.fresh, pa.string())))
    lacking = rows.filter(pc.is_null(rows["found"])).group_by(["question", "counted"]).aggregate([])
    by_question, failures = by_value(given, "question"), by_value(lacking, "question")
    result = {}
    for text in {*by_question, *failures}:
        mine = by_question.get(text, given.slice(0, 0))
        failed = failures[text].num_rows if text in failures else 0
        found = mine.filter(mine["found"])["answer"]
        lengths = pc.utf8_length(found).cast(pa.int64())
        same = pc.value_counts(found).field("counts")
        remembered = mine.filter(pc.is_valid(mine["memory_empty"]))
        result[text] = QuestionQuality(
            answers=mine.num_rows,
            found=len(found),
            chars=_total(lengths),
            chars_squared=_total(pc.multiply(lengths, lengths)),
            pairs=len(found) * (len(found) - 1) // 2,
            same=_total(pc.multiply(same, pc.subtract(same, 1))) // 2,
            failed=failed,
            tried=mine.num_rows + failed,
            remembered=remembered.num_rows,
            empty=_total(remembered["memory_empty"]),
            updates=_total(remembered["segments"]),
            cut=_total(remembered["memories_cut"]),
        )
    return result


def _total(values: pa.Array | pa.ChunkedArray) -> int:
    return int(pc.sum(values, min_count=0).as_py())
