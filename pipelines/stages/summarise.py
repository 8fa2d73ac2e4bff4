"""Summarise a run's answers, a task for each bucket of its plan. The driver sees only counts."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from infra.cluster.jobs import run_job
from infra.store import Corpus
from infra.tables.buckets import FEW, Bucket
from infra.tables.distinct import by_value
from infra.tables.plans import counted_readings, read_plan
from infra.tables.quarantine import reading_items
from infra.tables.runs import QuestionRollup
from memagent.metrics import METRICS
from memagent.quality_checks import QuestionQuality
from memagent.records import Question
from memagent.stats import Score, ScoreDict, share
from pipelines.stages.rollup import BucketRollup, answers_to, merged, moved_changes, rollup_bucket

_COLUMNS = ["reading_id", "answered_by", "doc_id", "content_hash", "question_id", "question", "gold", "state"]
_ANSWER = ["question", "answer", "found", "run_id", "segments", "memories_cut", "memory_empty"]


class BucketSummary(TypedDict):
    """Summary of a bucket."""

    bucket: int
    """Its index."""
    found: int
    """Readings whose answer was found."""
    sums: dict[str, float]
    """Sums of the metrics over the readings that have gold."""
    scored: int
    """Readings that have gold."""
    answered: list[str]
    """Quarantine items of readings that failed in an earlier run and are answered now."""
    rollup: list[QuestionRollup]
    moved: int
    """As in `BucketRollup`."""
    withheld: dict[str, int]
    """Readings whose answer is of a withheld run, by run."""
    fresh: dict[str, dict[str, int]]
    """By question text: what the answers of this digest are like, the sums of `QuestionQuality` by name."""


@dataclass(frozen=True, slots=True)
class DigestRuns:
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
    withheld: Counter[str] = field(default_factory=Counter)
    """Readings whose answer is of a withheld run, by run."""
    fresh: dict[str, QuestionQuality] = field(default_factory=dict)
    """By question text: what the answers of this digest are like."""

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
    digest: DigestRuns | None = None,
    withheld: frozenset[str] = frozenset(),
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
        digest: the runs that matter to a digest; None: this is none, and has no rollup.
        withheld: runs whose answers are shown to nobody, itself not among them.
    """
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
    scored = sum(question.answers is not None for question in unmatched)
    rollups: dict[str, list[QuestionRollup]] = defaultdict(list)
    moved: list[tuple[int, int]] = []
    for part in run_job(work, buckets, corpus.store, local=readings <= FEW):
        summary.found += part["found"]
        summary.answered += part["answered"]
        sums.update(part["sums"])
        scored += part["scored"]
        summary.withheld.update(part["withheld"])
        for text, sums_of in part["fresh"].items():
            summary.fresh[text] = summary.fresh.get(text, QuestionQuality()) + QuestionQuality(**sums_of)
        if part["moved"]:
            moved.append((part["bucket"], part["moved"]))
        for rollup in part["rollup"]:
            rollups[rollup["question_id"]].append(rollup)
    if scored:
        summary.scores = [share(metric, sums[metric], scored) for metric in METRICS]
    changes = moved_changes(corpus, run_id, digest.previous, moved) if digest is not None and moved else {}
    summary.rollup = [merged(parts, changes.get(question_id)) for question_id, parts in rollups.items()]
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
    answers = answers_to(corpus, pc.unique(rows["counted"]), _ANSWER, bucket)
    at = pc.index_in(rows["counted"], value_set=answers["reading_id"].combine_chunks())
    for name in ("answer", "found", "run_id"):
        rows = rows.append_column(name, answers[name].take(at))
    given = rows.filter(pc.is_valid(at))
    items = reading_items(given) if failed_before else pa.array([], pa.string())
    with_gold = rows.filter(pc.is_valid(rows["gold"]))
    rollup: BucketRollup = {"questions": [], "moved": 0}
    if digest is not None:
        rollup = rollup_bucket(corpus, run_id, rows, bucket=bucket, previous=digest.previous)
    return {
        "bucket": bucket.index,
        "found": pc.sum(given["found"], min_count=0).as_py(),
        "sums": _sums(with_gold),
        "scored": with_gold.num_rows,
        "answered": items.filter(pc.is_in(items, value_set=pa.array(failed_before, pa.string()))).to_pylist(),
        "rollup": rollup["questions"],
        "moved": rollup["moved"],
        "withheld": _withheld(given, withheld),
        "fresh": {} if digest is None else _fresh(rows, answers, digest),
    }


def _sums(rows: pa.Table) -> dict[str, float]:
    """Return the sums of the metrics over rows with `gold`; one without `answer` counts as wrong."""
    pairs = list(zip(rows["answer"].to_pylist(), rows["gold"].to_pylist(), strict=True))
    return {
        name: sum((metric(answer, gold) for answer, gold in pairs if answer is not None), 0.0)
        for name, metric in METRICS.items()
    }


def _withheld(given: pa.Table, withheld: frozenset[str]) -> dict[str, int]:
    counts = pc.value_counts(given["run_id"]).to_pylist()
    return {one["values"]: one["counts"] for one in counts if one["values"] in withheld}


def _fresh(rows: pa.Table, answers: pa.Table, digest: DigestRuns) -> dict[str, dict[str, int]]:
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
        quality = QuestionQuality(
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
        result[text] = asdict(quality)
    return result


def _total(values: pa.Array | pa.ChunkedArray) -> int:
    return int(pc.sum(values, min_count=0).as_py())
