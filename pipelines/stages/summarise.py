"""Summarise a run's answers, a task for each bucket of its plan. The driver sees only counts."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import NamedTuple, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from infra.cluster.tasks import run_tasks
from infra.store import Corpus
from infra.tables.buckets import FEW, Bucket
from infra.tables.delta import Table
from infra.tables.plans import read_plan
from infra.tables.quarantine import reading_item
from infra.tables.rows import PlannedReading
from infra.tables.runs import ChangedAnswer, QuestionRollup
from memagent.gates import QuestionQuality
from memagent.metrics import METRICS
from memagent.records import Question
from memagent.stats import Score, ScoreDict, share

_ANSWERS = 5_000
"""Different answers to a question that a task reports, the most frequent first."""
_SHOWN_ANSWERS = 20
_NAMED = 1_000
"""Most documents that a rollup names; others are only counted."""
_COLUMNS = ["reading_id", "answered_by", "doc_id", "content_hash", "question_id", "question", "gold", "state"]
_ANSWER = ("question", "answer", "found", "run_id", "segments", "memories_cut", "memory_empty")
_Key = tuple[str, str]
"""doc_id and question_id."""


class BucketSummary(TypedDict):
    """Summary of a bucket."""

    found: int
    """Readings whose answer was found."""
    sums: dict[str, float]
    """Sums of the metrics over the readings that have gold."""
    scored: int
    """Readings that have gold."""
    answered: list[str]
    """Quarantine items of readings that failed in an earlier run and are answered now."""
    rollup: list[QuestionRollup]
    held: dict[str, int]
    """Readings whose answer is of a held run, by run."""
    fresh: dict[str, dict[str, int]]
    """By question text: what the answers of this night are like, the sums of `QuestionQuality` by name."""


@dataclass(frozen=True, slots=True)
class NightRuns:
    """The runs whose answers matter to a digest."""

    previous: str
    """The last good digest before it; empty: there is none."""
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
    held: Counter[str] = field(default_factory=Counter)
    """Readings whose answer is of a held run, by run."""
    fresh: dict[str, QuestionQuality] = field(default_factory=dict)
    """By question text: what the answers of this night are like."""

    def score_rows(self) -> list[ScoreDict] | None:
        """Return the scores as plain data."""
        return None if self.scores is None else [score.as_dict() for score in self.scores]


def summarise(
    corpus: Corpus,
    run_id: str,
    buckets: Sequence[Bucket],
    readings: int,
    unmatched: Sequence[Question] = (),
    *,
    failed_before: Sequence[str] = (),
    night: NightRuns | None = None,
    held: frozenset[str] = frozenset(),
) -> Summary:
    """Summarise the answers to a run's plan.

    Failures, and questions about no document (`unmatched`), count as wrong.

    Args:
        corpus: whose run.
        run_id: its name.
        buckets: of its plan.
        readings: of its plan, in all.
        unmatched: questions that are about no document.
        failed_before: readings in the quarantine.
        night: the runs that matter to a digest; None: this is none, and has no rollup.
        held: runs whose answers are shown to nobody, itself not among them.
    """
    work = partial(
        summarise_bucket, corpus=corpus, run_id=run_id, failed_before=frozenset(failed_before), night=night, held=held
    )
    summary = Summary()
    sums: Counter[str] = Counter()
    scored = sum(question.answers is not None for question in unmatched)
    rollups: dict[str, list[QuestionRollup]] = defaultdict(list)
    for part in run_tasks(work, buckets, corpus.store, small=readings <= FEW):
        summary.found += part["found"]
        summary.answered += part["answered"]
        sums.update(part["sums"])
        scored += part["scored"]
        summary.held.update(part["held"])
        for text, sums_of in part["fresh"].items():
            summary.fresh[text] = summary.fresh.get(text, QuestionQuality()) + QuestionQuality(**sums_of)
        for rollup in part["rollup"]:
            rollups[rollup["question_id"]].append(rollup)
    if scored:
        summary.scores = [share(metric, sums[metric], scored) for metric in METRICS]
    summary.rollup = [_merged(parts) for parts in rollups.values()]
    return summary


def summarise_bucket(
    bucket: Bucket,
    corpus: Corpus,
    run_id: str,
    *,
    failed_before: frozenset[str],
    night: NightRuns | None,
    held: frozenset[str],
) -> BucketSummary:
    """Summarise the answers of a bucket; arguments as in `summarise`."""
    rows: list[PlannedReading] = read_plan(corpus, run_id, _COLUMNS, bucket).to_pylist()
    answers = _answers(corpus, rows, bucket)
    found_count, scored, sums = 0, 0, dict.fromkeys(METRICS, 0.0)
    answered = []
    for row in rows:
        answer = answers.get(row["answered_by"] or row["reading_id"])
        found_count += bool(answer and answer.found)
        if answer is not None and failed_before and (item := reading_item(row)) in failed_before:
            answered.append(item)
        if row["gold"] is not None:
            scored += 1
            for name, metric in METRICS.items():
                sums[name] += metric(answer.text, row["gold"]) if answer is not None else 0.0
    return {
        "found": found_count,
        "sums": sums,
        "scored": scored,
        "answered": answered,
        "rollup": [] if night is None else _rollup(corpus, rows, answers, bucket=bucket, previous=night.previous),
        "held": _held(rows, answers, held),
        "fresh": {} if night is None else _fresh(rows, answers, night),
    }


def _held(rows: Sequence[PlannedReading], answers: "dict[str, _Answer]", held: frozenset[str]) -> dict[str, int]:
    given = (answers.get(row["answered_by"] or row["reading_id"]) for row in rows)
    return Counter(answer.run_id for answer in given if answer is not None and answer.run_id in held)


def _fresh(
    rows: Sequence[PlannedReading], answers: "dict[str, _Answer]", night: NightRuns
) -> dict[str, dict[str, int]]:
    """Return sums over the answers of this night, each reading once, by question text.

    Pairs of answers are those within the bucket, a random part of the documents.
    """
    by_question: dict[str, list[_Answer]] = defaultdict(list)
    for answer in answers.values():
        if answer.run_id in night.fresh:
            by_question[answer.question].append(answer)
    lacking = {(row["question"], row["answered_by"] or row["reading_id"]) for row in rows}
    failed = Counter(text for text, reading in lacking if reading not in answers)
    result = {}
    for text in {*by_question, *failed}:
        mine = by_question.get(text, [])
        found = [answer.text for answer in mine if answer.found]
        remembered = [answer for answer in mine if answer.memory_empty is not None]
        quality = QuestionQuality(
            answers=len(mine),
            found=len(found),
            chars=sum(map(len, found)),
            chars_squared=sum(len(said) ** 2 for said in found),
            pairs=len(found) * (len(found) - 1) // 2,
            same=sum(count * (count - 1) // 2 for count in Counter(found).values()),
            failed=failed[text],
            tried=len(mine) + failed[text],
            remembered=len(remembered),
            empty=sum(bool(answer.memory_empty) for answer in remembered),
            updates=sum(answer.segments for answer in remembered),
            cut=sum(answer.memories_cut or 0 for answer in remembered),
        )
        result[text] = asdict(quality)
    return result


class _Answer(NamedTuple):
    question: str
    text: str
    found: bool
    run_id: str
    segments: int
    memories_cut: int | None
    memory_empty: bool | None


def _answers(corpus: Corpus, rows: Sequence[PlannedReading], bucket: Bucket) -> dict[str, _Answer]:
    """Return the answers by reading_id."""
    readings = pa.array({row["answered_by"] or row["reading_id"] for row in rows}, pa.string())
    wanted = pc.field("reading_id").isin(readings)
    inside = bucket.contains("content_hash")
    table = Table(corpus.store, "answers").read(
        corpus.name, ["reading_id", *_ANSWER], wanted if inside is None else inside & wanted
    )
    columns = (table[name].to_pylist() for name in ("reading_id", *_ANSWER))
    return {reading: _Answer(*given) for reading, *given in zip(*columns, strict=True)}


def _rollup(
    corpus: Corpus,
    rows: Sequence[PlannedReading],
    answers: dict[str, _Answer],
    bucket: Bucket,
    previous: str,
) -> list[QuestionRollup]:
    before = _before(corpus, rows, answers, bucket=bucket, previous=previous) if previous else {}
    by_question: dict[str, list[PlannedReading]] = defaultdict(list)
    for row in rows:
        by_question[row["question_id"]].append(row)
    result: list[QuestionRollup] = []
    for question_id, mine in by_question.items():
        pairs = ((row["doc_id"], answers.get(row["answered_by"] or row["reading_id"])) for row in mine)
        given = {doc_id: answer for doc_id, answer in pairs if answer is not None}
        counts = Counter(answer.text for answer in given.values() if answer.found)
        changed: list[ChangedAnswer] = [
            {"document": doc_id, "before": before[doc_id, question_id], "now": answer.text}
            for doc_id, answer in given.items()
            if before.get((doc_id, question_id), answer.text) != answer.text
        ]
        new = [doc_id for doc_id in given if (doc_id, question_id) not in before]
        result.append(
            {
                "question_id": question_id,
                "question": mine[0]["question"],
                "documents": len(mine),
                "found": sum(answer.found for answer in given.values()),
                "failed": len(mine) - len(given),
                "answers": counts.most_common(_ANSWERS if bucket.count > 1 else _SHOWN_ANSWERS),
                "distinct": len(counts),
                "changed": changed[:_NAMED],
                "changed_count": len(changed),
                "new_documents": new[:_NAMED],
                "new_count": len(new),
            }
        )
    return result


def _before(
    corpus: Corpus,
    rows: Sequence[PlannedReading],
    answers: dict[str, _Answer],
    bucket: Bucket,
    previous: str,
) -> dict[_Key, str]:
    """Return the answers of the digest before to the documents and questions of these rows.

    Most documents have the text that they had, and so are in the bucket's part of the plan before, and most of the
    answers that counted are among `answers`: only for the others whole tables are searched.
    """
    columns = ["reading_id", "answered_by", "doc_id", "question_id", "content_hash"]
    documents = {row["doc_id"] for row in rows}
    plan = read_plan(corpus, previous, columns, filters=bucket.contains("content_hash"))
    moved = documents.difference(plan["doc_id"].to_pylist()) if bucket.count > 1 else set()
    if moved:
        others = pc.field("doc_id").isin(pa.array(moved, pa.string()))
        plan = pa.concat_tables([plan, read_plan(corpus, previous, columns, filters=others)])
    counted = pc.if_else(pc.equal(plan["answered_by"], ""), plan["reading_id"], plan["answered_by"]).to_pylist()
    keys = zip(plan["doc_id"].to_pylist(), plan["question_id"].to_pylist(), counted, strict=True)
    mine = {(doc_id, question_id): name for doc_id, question_id, name in keys if doc_id in documents}
    replaced = _replaced(corpus, {name for name in mine.values() if name not in answers})
    before = {key: answers[name].text if name in answers else replaced.get(name) for key, name in mine.items()}
    return {key: text for key, text in before.items() if text is not None}


def _replaced(corpus: Corpus, readings: Collection[str]) -> dict[str, str]:
    """Return answers by reading_id."""
    if not readings:
        return {}
    among = ds.field("reading_id").isin(pa.array(readings, pa.string()))
    table = Table(corpus.store, "answers").read(corpus.name, ["reading_id", "answer"], among)
    return dict(zip(table["reading_id"].to_pylist(), table["answer"].to_pylist(), strict=True))


def _merged(parts: Sequence[QuestionRollup]) -> QuestionRollup:
    """Merge the rollups of a question from several buckets.

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
        "changed": [change for part in parts for change in part["changed"]][:_NAMED],
        "changed_count": sum(part["changed_count"] for part in parts),
        "new_documents": [doc_id for part in parts for doc_id in part["new_documents"]][:_NAMED],
        "new_count": sum(part["new_count"] for part in parts),
    }
