"""Evaluate: read a suite's samples like any archive, judge the answers, and store the scores."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, cast

import pyarrow as pa
import pyarrow.compute as pc

from infra.cluster.session import lazy_ray
from infra.readers import ReaderSpec
from infra.store.claims import used
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from infra.store.plans import read_plan
from infra.store.runs import RunExtras, RunSummary, ScoreLine, run_id_or_new
from infra.store.schemas import RESULTS, AnswerRow, ScoreRow, now
from infra.store.turns import resume_points
from memagent.config import Config
from memagent.errors import UsageError
from memagent.evaluation.grading import Judged, failure, judge, lines, not_found, overall
from memagent.evaluation.stats import Paired, paired
from memagent.evaluation.suites import Suite
from memagent.records import Json, Progress, Turn, stable_hash
from pipelines.ask import AskRequest, run_readings
from pipelines.runs import run_answers
from pipelines.stages.make_samples import Taken, questions, take


class Evaluation(TypedDict):
    """A run and its score lines."""

    run_id: str
    suite: str
    policy_id: str
    method: str
    control: str
    seed: int
    scored_at: datetime
    lines: list[ScoreLine]


def evaluate(
    suite: Suite,
    config: Config,
    *,
    texts: tuple[str, ...] = (),
    run_id: str | None = None,
    show: Progress | None = None,
) -> RunSummary:
    """Read a suite's samples, score and store the answers; return the run's summary.

    Called again, also after an interruption, it reads only what this policy version has not read. A failed reading
    counts 0. Needles are planted in the files and folders of `texts`.

    Raises:
        UsageError: the suite cannot be made, or a file of it is malformed.
        ConfigError: the model has no tokenizer that can be used, or its template does not fit.
    """
    suite.check()
    store, reader = Store(config.store), ReaderSpec(config)
    _ = reader.scheme  # a model without a tokenizer, or a template that does not fit, is said before Ray starts
    run_id = run_id_or_new(run_id)
    with used(Corpus(store, "_samples"), f"{run_id}-samples", wait=config.wait, show=show):
        with lazy_ray(config.ray):
            name, taken = take(store, suite, texts, reader=reader, run_id=run_id)
            if not taken:
                raise UsageError(f"suite {suite.name} has no samples of this kind")
            # Answers of other versions do not score this one, so everything is reread.
            extra: RunExtras = {"suite": suite.as_dict(), "method": config.method}
            request = AskRequest(
                name, questions(taken), config, reread=True, kind="evaluate", run_id=run_id, extra=extra
            )
            summary = run_readings(request, show)
        judged, table = results(Corpus(store, name), run_id, taken)
        store.write_part(table, "runs", run_id, "results.parquet")
        rows = _score_rows(suite, config, reader.policy.policy_id, summary=summary, judged=judged)
        Table(store, "scores").upsert(rows)
    measure = not_found(judged) if suite.control else overall(judged)
    return {**summary, "evaluation": [_score_line(row) for row in rows], "overall": measure.as_dict()}


def results(corpus: Corpus, run_id: str, taken: Sequence[Taken]) -> tuple[list[Judged], pa.Table]:
    """Judge a run's answers; return them, and `infra.store.schemas.RESULTS` with the reason of each wrong answer."""
    plan = read_plan(corpus, run_id).to_pylist()
    answers = run_answers(corpus, plan)
    readings = {item["question_id"]: item["answered_by"] or item["reading_id"] for item in plan}
    by_reading = {answer["reading_id"]: answer for answer in answers.values()}
    judged = []
    for sample in (item.sample for item in taken):
        answer = by_reading.get(readings.get(sample.sample_id, ""))
        judged.append(judge(sample, answer["answer"] if answer else None))
    wrong = {readings[result.sample.sample_id] for result in judged if result.wrong and result.answer is not None}
    logs = resume_points(corpus, wrong)
    rows = []
    for result in judged:
        reading_id = readings.get(result.sample.sample_id, "")
        rows.append(_result_row(result, reading_id, by_reading.get(reading_id), logs.get(reading_id)))
    return judged, pa.Table.from_pylist(rows, schema=RESULTS)


def compare(store: Store, run_a: str, run_b: str) -> Paired:
    """Compare two runs on the samples that both have.

    Raises:
        UsageError: a run is not an evaluation, or they share no sample.
    """
    a, b = ({r["sample_id"]: r["score"] for r in run_results(store, run).to_pylist()} for run in (run_a, run_b))
    shared = [name for name in a if name in b]
    if not shared:
        raise UsageError(f"runs {run_a} and {run_b} have no sample in common")
    return paired([a[name] for name in shared], [b[name] for name in shared])


def run_results(store: Store, run_id: str) -> pa.Table:
    """Return the judged samples of an evaluation (`infra.store.schemas.RESULTS`).

    Raises:
        UsageError: the run is not an evaluation.
    """
    try:
        return store.read_part("runs", run_id, "results.parquet")
    except FileNotFoundError as error:
        raise UsageError(f"run {run_id} is no evaluation, or has not ended: see memagent scores") from error


def _result_row(judged: Judged, reading_id: str, answer: AnswerRow | None, log: list[Turn] | None) -> Json:
    """Return a row of `infra.store.schemas.RESULTS`; what is not known is left out."""
    sample = judged.sample
    row: Json = {
        "sample_id": sample.sample_id,
        "task": sample.task,
        "length": sample.length,
        "depth": sample.depth,
        "question": sample.question,
        "gold": sample.answers,
        "answer": judged.answer,
        "score": judged.score,
        "exact": judged.exact,
        "reading_id": reading_id,
        "failure": "reading failed" if judged.wrong else "",
    }
    if answer is not None:
        row["tokens"] = answer["prompt_tokens"] + answer["output_tokens"]
        row["seconds"] = answer["engine_seconds"]
        row |= {name: answer[name] for name in ("segments", "confidence")}
    if judged.wrong and judged.answer is not None and log is not None:
        cause = failure(sample, judged.answer, log)
        row["failure"] = cause.kind
        if cause.lost is not None:
            row["lost_step"] = cause.lost.step
            row["lost_segment"] = cause.lost.segment_index if cause.lost.segment_index >= 0 else None
    return row


def _score_rows(
    suite: Suite, config: Config, policy_id: str, summary: RunSummary, judged: Sequence[Judged]
) -> list[ScoreRow]:
    samples, scored_at = json.dumps(suite.as_dict()), now()
    return [
        {
            "corpus": summary["corpus"],
            "score_id": stable_hash(summary["run_id"], line.task, line.length, line.score.metric),
            "run_id": summary["run_id"],
            "suite": suite.name,
            "task": line.task,
            "length": line.length,
            "policy_id": policy_id,
            "method": config.method,
            "control": suite.control or "",
            **line.score.as_dict(),
            "failed": line.failed,
            "seed": suite.seed,
            "samples": samples,
            "scored_at": scored_at,
        }
        for line in lines(judged)
    ]


def _score_line(row: Mapping[str, Any]) -> ScoreLine:
    return cast(ScoreLine, {name: row[name] for name in ScoreLine.__annotations__})


def score_table(store: Store, suite: str | None = None) -> pa.Table:
    """Return `infra.store.schemas.SCORES`, oldest first; of one suite if given."""
    table = Table(store, "scores").read()
    if suite is not None:
        table = table.filter(pc.equal(table["suite"], suite))
    return table.sort_by([("scored_at", "ascending"), ("length", "ascending"), ("task", "ascending")])


def by_run(table: pa.Table) -> list[Evaluation]:
    """Group score rows (`infra.store.schemas.SCORES`) by run."""
    runs: dict[str, Evaluation] = {}
    for score in table.to_pylist():
        own = {name: score[name] for name in Evaluation.__annotations__ if name != "lines"}
        runs.setdefault(score["run_id"], cast(Evaluation, own | {"lines": []}))["lines"].append(_score_line(score))
    return list(runs.values())


def same_before(store: Store, run_id: str) -> tuple[list[ScoreRow], str | None]:
    """Return the score rows of a run, and the run before it of the same policy, samples and method, if any."""
    table: list[ScoreRow] = score_table(store).to_pylist()
    rows = [score for score in table if score["run_id"] == run_id]
    if not rows:
        raise UsageError(f"run {run_id} has no scores")
    asked, at = _asked(rows[0]), rows[0]["scored_at"]
    earlier = [
        row["run_id"] for row in table if row["run_id"] != run_id and row["scored_at"] < at and _asked(row) == asked
    ]
    return rows, earlier[-1] if earlier else None


def _asked(row: ScoreRow) -> tuple[str, ...]:
    """Return what must be the same in two runs to compare them: samples, how they were read, and the policy's name."""
    return (row["corpus"], row["samples"], row["method"], row["control"], row["policy_id"].rpartition("@")[0])
