"""Plans: which readings a run is about, and the work that is left of them. Parquet files, one per bucket.

runs/<run_id>/plan/<bucket>.parquet   all readings (`infra.store.schemas.PLAN`)
runs/<run_id>/work/<bucket>.parquet   those that are not answered, longest first (`WORK`)
runs/<run_id>/moved/<bucket>.parquet  answers of documents that the last digest had in another bucket, or unanswered
runs/<run_id>/plan.json               in their place, where the run had nothing to do: the run that planned it
"""

import json
from collections.abc import Iterator
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from infra.store.buckets import EVERY, Bucket
from infra.store.delta import readable
from infra.store.location import Corpus, Store
from infra.store.schemas import PLAN, Int32, Scope, SegmentRange, Text, schema_of

_ROW_GROUP = 1_000


class WorkItem(TypedDict):
    """A reading to be done, with all that its answer's row needs."""

    reading_id: str
    question_id: str
    question: Text
    scope: Scope
    content_hash: str
    item: str
    """How a failure names it: document and question."""
    documents: int
    places: list[SegmentRange]
    """Where the segments of its document are; empty for an archive."""
    stream: str
    """File of the places of an archive's documents (`infra.store.segments`); empty for a document."""
    past: Text
    """JSON: the turns (`memagent.records.Turn`) from which it continues, as plain data."""
    left: Int32
    """Segments that are still to be read."""
    carried_from: str
    carried_segments: Int32


WORK = schema_of(WorkItem)


class Block(TypedDict):
    """Rows of a work file that a worker is given together."""

    file: str
    """Path in the store."""
    first: int
    rows: int
    conversations: int
    longest: int
    """Conversations of its longest reading."""


def write_plan(store: Store, run_id: str, bucket: Bucket, rows: pa.Table) -> None:
    """Write the plan of a bucket."""
    parts = ("runs", run_id, "plan", f"{bucket.index:05d}.parquet")
    store.write_part(rows, *parts)


def write_work(store: Store, run_id: str, bucket: Bucket, items: list[WorkItem]) -> str:
    """Write the work of a bucket; return the file's path relative to the store."""
    parts = ("runs", run_id, "work", f"{bucket.index:05d}.parquet")
    store.write_part(pa.Table.from_pylist(items, schema=WORK), *parts, row_group_size=_ROW_GROUP)
    return "/".join(parts)


def read_plan(
    corpus: Corpus,
    run_id: str,
    columns: list[str] | None = None,
    bucket: Bucket | None = None,
    filters: pc.Expression = EVERY,
) -> pa.Table:
    """Return a run's plan (`infra.store.schemas.PLAN`), of one of its buckets or whole.

    Raises:
        FileNotFoundError: the run has none.
        MemagentError: a file of it is damaged.
    """
    store = corpus.store
    if (of := _planned_by(store, run_id)) != run_id:
        return _answered(read_plan(corpus, of, columns, bucket, filters=filters))
    if bucket is not None:
        files = [store.path("runs", run_id, "plan", f"{bucket.index:05d}.parquet")]
    else:
        files = store.list("runs", run_id, "plan")
        if not files:  # of none, a dataset would be empty
            raise FileNotFoundError(f"run {run_id} has no plan")
    dataset = ds.dataset(files, filesystem=store.arrow, schema=PLAN)
    with readable(store, f"the plan of run {run_id}"):
        return dataset.to_table(columns=columns, filter=filters)


def plan_parts(corpus: Corpus, run_id: str) -> Iterator[tuple[Bucket, pa.Table]]:
    """Yield a run's plan a bucket at a time. Raises FileNotFoundError: the run has none."""
    store = corpus.store
    count = max(1, len(store.list("runs", _planned_by(store, run_id), "plan")))
    for index in range(count):
        bucket = Bucket(index, count)
        yield bucket, read_plan(corpus, run_id, bucket=bucket if count > 1 else None)


def counted_readings(plan: pa.Table) -> pa.ChunkedArray:
    """Return the readings whose answers count for a plan's rows."""
    return pc.if_else(pc.equal(plan["answered_by"], ""), plan["reading_id"], plan["answered_by"])


def write_moved(store: Store, run_id: str, bucket: int, rows: pa.Table) -> None:
    """Write answers that the last digest did not have in their bucket, until they are compared with those before."""
    store.write_part(rows, "runs", run_id, "moved", f"{bucket:05d}.parquet")


def read_moved(store: Store, run_id: str, bucket: int) -> pa.Table:
    """Return what `write_moved` wrote."""
    return store.read_part("runs", run_id, "moved", f"{bucket:05d}.parquet")


def delete_work(store: Store, run_id: str) -> None:
    """Delete the work of a run that is over."""
    for kind in ("work", "moved"):
        for path in store.list("runs", run_id, kind):
            store.delete(path)


def repeat_plan(store: Store, run_id: str, of: str) -> None:
    """Say that a run's plan is that of an earlier run, whose readings are all answered."""
    store.write_bytes(json.dumps({"of": _planned_by(store, of)}).encode(), "runs", run_id, "plan.json")


def has_plan(store: Store, run_id: str) -> bool:
    """Whether a run's plan is there; a damaged file of it may have been set aside."""
    files = store.list("runs", _planned_by(store, run_id), "plan")
    return bool(files) and max(files).endswith(f"/{len(files) - 1:05d}.parquet")


def _planned_by(store: Store, run_id: str) -> str:
    """Return the run whose plan a run has: itself, unless it had nothing to do."""
    if not store.exists("runs", run_id, "plan.json"):
        return run_id
    return str(json.loads(store.read_bytes("runs", run_id, "plan.json"))["of"])


def _answered(plan: pa.Table) -> pa.Table:
    columns = set(plan.column_names)
    if {"answered_by", "reading_id"} <= columns:
        at = plan.column_names.index("answered_by")
        plan = plan.set_column(at, "answered_by", counted_readings(plan))
    if "state" in columns:
        state = pa.array(["answered"] * plan.num_rows, pa.string())
        plan = plan.set_column(plan.column_names.index("state"), "state", state)
    return plan


def read_work(store: Store, block: Block) -> list[WorkItem]:
    """Return the work items of a block."""
    first, stop = block["first"], block["first"] + block["rows"]
    groups = range(first // _ROW_GROUP, -(-stop // _ROW_GROUP))
    with pq.ParquetFile(store.path(block["file"]), filesystem=store.arrow) as file:
        table = file.read_row_groups(list(groups), use_threads=False)
    items: list[WorkItem] = table.slice(first - groups[0] * _ROW_GROUP, block["rows"]).to_pylist()
    return items
