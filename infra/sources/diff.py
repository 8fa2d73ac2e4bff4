"""The difference between a corpus and its sources: which are new, changed, moved, unchanged or gone.

Sources are compared as Arrow columns: a folder or bucket may hold millions of them.
"""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from infra.sources import is_table, parser_origin
from infra.sources.base import unquoted
from infra.sources.discovery import list_sources
from infra.sources.listing import FOUND, Listing, assign_ids, candidate_ids, rows_to_sources
from infra.store.location import file_system
from memagent.config import IngestConfig
from memagent.records import stable_hash
from memagent.version import __version__

WORK = pa.schema([*FOUND, ("known", pa.bool_()), ("was", pa.large_string())])
"""A source to parse. `known`: documents of it may be there already; `was`: the gone source that had its id, if any,
whose documents go on under the new name."""
_TEXT = pa.large_string()
_EARLIER = pa.schema({"source": _TEXT, "doc_id": _TEXT, "source_stamp": _TEXT, "state": _TEXT, "documents": pa.int64()})


@dataclass(frozen=True)
class IngestPlan:
    """What one ingest has to do. `gone` and `moved` have source, doc_id and source_stamp."""

    listing: Listing
    work: pa.Table
    """Sources to parse (`WORK`)."""
    unchanged: int
    failed: int
    """Sources that failed in an earlier run and are as they were: they would fail again."""
    unread: int
    """Of these, sources of which nothing could be read."""
    untouched: pa.Array
    """Names of the failed and of the unchanged ones."""
    dismissed: int
    """Sources that are as they were when they were dismissed (`pipelines.stages.ingest.dismiss`) or forgotten."""
    gone: pa.Table
    """Sources whose documents are to go."""
    moved: pa.Table
    """Sources whose documents go on under another source."""
    unusable_ids: dict[str, str]
    """Ids of the sources that were read earlier and are now no readable files."""


def make_plan(
    sources: list[str], earlier: pa.Table, options: IngestConfig, remembered: Collection[str] = ()
) -> IngestPlan:
    """List the sources and compare them with what earlier runs have read.

    Args:
        earlier: the newest row of each source (`infra.store.schemas.SOURCES`).
        options: which columns a table is read by.
        remembered: those of the sources that the corpus has.

    Raises UsageError: a source does not exist or matches nothing, and is none of a corpus that has read something.
    """
    remembered = remembered if earlier.num_rows else ()
    there = pc.or_(pc.not_equal(earlier["state"], "deleted"), pc.greater(earlier["documents"], 0))  # or it was kept
    earlier = earlier.filter(there).select(_EARLIER.names).cast(_EARLIER).combine_chunks()
    listing = list_sources(sources, lambda: _values(earlier["source"]), remembered)
    unusable = pa.array([bad.source for bad in listing.unusable], pa.large_string())
    listed = _with_options(listing.take_found(), options)
    row = pc.index_in(listed["source"], value_set=_array(earlier["source"]))
    state, stamp = earlier["state"].take(row), earlier["source_stamp"].take(row)
    is_new = pc.is_null(row)

    missing = pc.invert(_is_in(earlier["source"], listed["source"]))
    absent = earlier.filter(pc.and_(missing, pc.invert(pc.is_in(earlier["source"], value_set=unusable))))
    covered = pa.array([listing.covered(name) for name in _values(absent["source"])], pa.bool_())
    movable = _movable(absent, covered, listed.filter(is_new)["doc_id"])
    ids = _assign(listed, earlier["doc_id"].take(row), earlier.filter(_not_in(earlier["source"], movable["source"])))
    listed = listed.set_column(listed.column_names.index("doc_id"), "doc_id", ids)
    was = movable["source"].take(pc.index_in(listed["doc_id"], value_set=_array(movable["doc_id"])))
    was = pc.fill_null(pc.if_else(is_new, was, _text("")), _text(""))

    unchanged = _true(pc.and_(pc.equal(state, "read"), pc.equal(stamp, listed["stamp"])))
    again = pc.binary_join_element_wise(listed["stamp"], _text(_failure_mark(options)), _text("!"))
    fails = _true(pc.and_(pc.equal(state, "failed"), pc.equal(stamp, again)))
    if options.retry_failed:
        fails = pc.and_(fails, False)
    dismissed = _true(pc.and_(pc.equal(state, "dismissed"), pc.equal(stamp, listed["stamp"])))
    work = listed.append_column("known", pc.invert(is_new)).append_column("was", was)
    work = work.filter(pc.invert(pc.or_(pc.or_(unchanged, fails), dismissed)))
    gone = absent.filter(pc.and_(covered, _not_in(absent["source"], work["was"])))
    known_unusable = earlier.filter(pc.is_in(earlier["source"], value_set=unusable))
    passed = set(known_unusable.filter(pc.equal(known_unusable["state"], "dismissed"))["source"].to_pylist())
    listing.unusable = [bad for bad in listing.unusable if bad.source not in passed]
    return IngestPlan(
        listing=listing,
        work=work,
        unchanged=pc.sum(unchanged).as_py() or 0,
        failed=pc.sum(fails).as_py() or 0,
        unread=pc.sum(pc.and_(fails, pc.equal(earlier["documents"].take(row), 0))).as_py() or 0,
        untouched=_array(listed["source"].filter(pc.or_(unchanged, fails))),
        dismissed=(pc.sum(dismissed).as_py() or 0) + len(passed),
        gone=gone.filter(pc.not_equal(gone["state"], "deleted")),
        moved=absent.filter(_is_in(absent["source"], work["was"])),
        unusable_ids=dict(zip(*(known_unusable[name].to_pylist() for name in ("source", "doc_id")), strict=True)),
    )


def failed_stamp(stamp: str, options: IngestConfig) -> str:
    """Return what to note as the stamp of a source that failed: with other limits or another version it may not."""
    return f"{stamp}!{_failure_mark(options)}"


def stamp_of(failed: str) -> str:
    """Return the stamp of a source that failed, from what was noted of it (`failed_stamp`); empty: it is not known."""
    return failed.rpartition("!")[0]


def _failure_mark(options: IngestConfig) -> str:
    limits = options.model_dump(exclude={"keep_deleted", "retry_failed", "max_refused"})
    return stable_hash(__version__, limits)[:8]


def _movable(absent: pa.Table, covered: pa.Array, new_ids: pa.ChunkedArray) -> pa.Table:
    """Return the absent sources whose ids new ones take over: those that cannot be found anywhere any more."""
    wanted = pc.and_(_is_in(absent["doc_id"], new_ids), pc.not_equal(absent["doc_id"], ""))
    elsewhere = list(_values(absent.filter(pc.and_(wanted, pc.invert(covered)))["source"]))
    kept = pa.array(sorted(_still_there(elsewhere)), pa.large_string())
    return absent.filter(pc.and_(wanted, pc.invert(pc.is_in(absent["source"], value_set=kept))))


def _assign(listed: pa.Table, earlier_ids: pa.ChunkedArray, others: pa.Table) -> pa.ChunkedArray:
    """Return an id for each source found, no two the same: its earlier one, or one that is free.

    Args:
        listed: the sources, with the shortest `doc_id` that would do.
        earlier_ids: the id of each in earlier runs; null or empty: none.
        others: rows of earlier sources whose ids are not free.
    """
    has_id = _true(pc.not_equal(earlier_ids, ""))
    new = listed.filter(pc.invert(has_id))
    counts = pc.value_counts(_array(new["doc_id"]))
    shared = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    collides = pc.or_(_is_in(new["doc_id"], others["doc_id"]), pc.is_in(new["doc_id"], value_set=shared))
    chosen = new["doc_id"]
    if pc.any(collides).as_py():
        sources = list(rows_to_sources(new.filter(collides)))
        names = pa.array(sorted({name for source in sources for name in candidate_ids(source)}), pa.large_string())
        in_use = pc.or_(_is_in(names, others["doc_id"]), _is_in(names, new.filter(pc.invert(collides))["doc_id"]))
        named = assign_ids(sources, names.filter(in_use).to_pylist())
        longer = pa.array([source.doc_id for source in named], pa.large_string())
        chosen = pc.replace_with_mask(_array(chosen), _array(collides), longer)
    return pa.chunked_array([pc.replace_with_mask(_array(earlier_ids), _array(pc.invert(has_id)), _array(chosen))])


def _still_there(sources: list[str]) -> set[str]:
    """Return which of these sources can be found, whether or not they are looked for in this call."""
    client = file_system("s3://") if any(name.startswith("s3://") for name in sources) else None
    return {
        name
        for name in sources
        if (client.exists(unquoted(name)) if name.startswith("s3://") and client else os.path.lexists(unquoted(name)))
    }


def _with_options(listed: pa.Table, options: IngestConfig) -> pa.Table:
    """Make other columns count as a change of a table, and another parser as one of what another package parses."""
    columns = (options.text_column, options.id_column, options.title_column)
    marks = pa.array([_mark(_ending(name), columns) for name in _values(listed["source"])], pa.large_string())
    stamps = pc.binary_join_element_wise(listed["stamp"].combine_chunks(), marks, _text(""))
    return listed.set_column(listed.column_names.index("stamp"), "stamp", stamps)


def _ending(name: str) -> str:
    """Return a file name with the same suffixes, at most two."""
    _, *suffixes = name.rsplit("/", 1)[-1].split(".")
    return ".".join(["x", *suffixes[-2:]])


@lru_cache(maxsize=10_000)
def _mark(name: str, columns: tuple[str | None, ...]) -> str:
    if origin := parser_origin(name):  # whether it is a table its code says, which is not imported here
        return f"-{stable_hash(origin, *columns)[:8]}"
    return f"-{stable_hash(*columns)[:8]}" if is_table(name) else ""


def _values(column: pa.ChunkedArray) -> Iterator[str]:
    for batch in pa.table({"value": column}).to_batches(max_chunksize=10_000):
        yield from batch["value"].to_pylist()


def _text(value: str) -> pa.Scalar:
    return pa.scalar(value, pa.large_string())


def _array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _is_in(values: pa.ChunkedArray | pa.Array, among: pa.ChunkedArray) -> pa.Array:
    return _array(pc.is_in(values, value_set=_array(among)))


def _not_in(values: pa.ChunkedArray, among: pa.ChunkedArray) -> pa.Array:
    return pc.invert(_is_in(values, among))


def _true(mask: pa.ChunkedArray) -> pa.Array:
    """Return a mask in which unknown counts as false."""
    return _array(pc.fill_null(mask, False))
