"""The states of planned readings: answered before, continued from a memory, or new. Computed as columns."""

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from infra.tables.buckets import Bucket
from infra.tables.delta import Table
from infra.tables.quarantine import reading_item
from infra.tables.resume_points import policy_name
from infra.tables.rows import PlannedReading
from infra.tables.schemas import PLAN
from infra.tables.visibility import withheld_runs
from memagent.records import Turn
from pipelines.stages.planned_readings import Chosen, PlanRequest


def mark_answered(request: PlanRequest, questions: Sequence[pa.Table], bucket: Bucket) -> pa.Table:
    """Return the rows of all questions, with what answers them: their own answer, or else another version's newest."""
    reader, corpus = request.reader, request.corpus
    columns = ["reading_id", "content_hash", "question", "policy_id", "run_id", "answered_at"]
    mine, inside = pc.field("config_hash") == reader.config_hash, bucket.contains("content_hash")
    answers = Table(corpus.store, "answers").read(corpus.name, columns, mine if inside is None else mine & inside)
    known = answers["reading_id"].combine_chunks()
    others = (
        _of_the_policy(answers, reader.policy.name, withheld_runs(corpus))
        if not request.reread
        else answers.slice(0, 0)
    )
    marked = [PLAN.empty_table()]
    for rows in questions:
        if not rows.num_rows:
            continue
        same = others.filter(pc.equal(others["question"], rows["question"][0]))
        newest = pc.index_in(rows["content_hash"], value_set=same["content_hash"].combine_chunks())
        by = pc.if_else(
            pc.is_in(rows["reading_id"], value_set=known), rows["reading_id"], same["reading_id"].take(newest)
        )
        state = pc.if_else(pc.is_valid(by), "answered", rows["state"])
        marked.append(_with(rows, state=state, answered_by=pc.fill_null(by, "")))
    return pa.concat_tables(marked)


def _of_the_policy(answers: pa.Table, name: str, withheld: Collection[str]) -> pa.Table:
    """Return the answers of any version of a policy, the newest first; without those of withheld runs."""
    versions = [one for one in answers["policy_id"].unique().to_pylist() if policy_name(one) == name]
    answers = answers.filter(pc.is_in(answers["policy_id"], value_set=pa.array(versions, pa.string())))
    answers = answers.filter(pc.invert(pc.is_in(answers["run_id"], value_set=pa.array(withheld, pa.string()))))
    return answers.sort_by([("answered_at", "descending")])


def _with(rows: pa.Table, **columns: pa.ChunkedArray) -> pa.Table:
    """Return the rows with other values in some columns."""
    for name, values in columns.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), values.cast(rows.schema.field(at).type))
    return rows


def without_answer(request: PlanRequest, rows: pa.Table, chosen: Chosen) -> pa.Table:
    """Return the readings of a backfill."""
    failures = Table(request.corpus.store, "quarantine").read(
        request.corpus.name, ["item"], pc.field("stage") == "read"
    )
    failed = set(failures["item"].to_pylist())
    rows = rows.filter(pc.not_equal(rows["state"], "answered"))
    left: list[PlannedReading] = rows.select(["doc_id", "question_id"]).to_pylist()
    return rows.filter(
        pa.array([("failed" if reading_item(row) in failed else "missing") in chosen.only for row in left], pa.bool_())
    )


def mark_continued(rows: pa.Table, past: dict[str, list[Turn]]) -> pa.Table:
    """Return the rows with the state of those that go on from a memory, and whose memory it is."""
    begun = {reading_id: carried_from(turns) for reading_id, turns in past.items() if turns}
    if not begun:
        return rows
    at = pc.index_in(rows["reading_id"], value_set=pa.array(begun, pa.string()))
    at = pc.if_else(pc.equal(rows["state"], "new"), at, None)
    origins = pa.array([origin for origin, _ in begun.values()], pa.string()).take(at)
    segments = pa.array([count for _, count in begun.values()], pa.int32()).take(at)
    return _with(
        rows,
        state=pc.if_else(pc.is_valid(at), "continued", rows["state"]),
        carried_from=pc.fill_null(origins, ""),
        carried_segments=pc.fill_null(segments, 0),
    )


def carried_from(past: Sequence[Turn]) -> tuple[str, int]:
    """Return the reading whose memory a reading goes on from, and how many of its segments that has read."""
    carried = [turn for turn in past if turn.kind == "carried"]
    return (carried[-1].carried_from, carried[-1].step + 1) if carried else ("", 0)
