"""What has changed between a corpus and its sources: what is new, other, gone or has moved."""

import os
from collections.abc import Collection
from dataclasses import dataclass, replace

from infra.naming import unquoted
from infra.sources import is_table, parser_origin
from infra.sources.listing import Listing, Source, assign_ids, list_sources
from infra.store import file_system
from infra.tables.rows import SourceRow
from memagent import __version__
from memagent.config import IngestConfig
from memagent.records import stable_hash


@dataclass(frozen=True)
class Work:
    """One source that is to be read."""

    source: Source
    known: bool
    """Whether documents of it may be there already."""
    was: str
    """The gone source that had this one's id, if any: its documents go on under the new name."""


@dataclass(frozen=True)
class Plan:
    """What one ingest has to do."""

    listing: Listing
    work: list[Work]
    unchanged: int
    failed: list[str]
    """Sources that failed in an earlier run and are as they were: they would fail again."""
    gone: list[SourceRow]
    """Rows of the sources table whose documents are to go."""
    moved: list[SourceRow]
    """Rows of the sources table whose documents go on under another source."""
    earlier: dict[str, SourceRow]


def make_plan(sources: list[str], earlier: dict[str, SourceRow], options: IngestConfig) -> Plan:
    """List the sources and compare them with what earlier runs have read.

    Args:
        sources: folders, globs, files and ``s3://`` URLs.
        earlier: rows of the sources table by source, without those that are gone already.
        options: which columns a table is read by.

    Raises:
        UsageError: a source does not exist or matches nothing.
    """
    listing = list_sources(sources, earlier.keys())
    names = {source.source for source in listing.found} | {bad.source for bad in listing.unusable}
    gone = {name: row for name, row in earlier.items() if name not in names and listing.covered(name)}
    moved, taken = _ids_in_use(listing.found, names, gone, earlier)
    ids = {name: row["doc_id"] for name, row in earlier.items() if row["doc_id"]}
    work, unchanged, failed = [], 0, []
    for source in assign_ids(listing.found, taken, ids):
        source = _with_options(source, options)
        row = earlier.get(source.source)
        if row is not None and row["state"] == "read" and row["source_stamp"] == source.stamp:
            unchanged += 1
            continue
        if row is not None and _fails_again(row, source, options):
            failed.append(source.source)
            continue
        was = moved[source.doc_id] if row is None and source.doc_id in moved else ""
        work.append(Work(source, row is not None, was))
    followed = {item.was for item in work if item.was}
    return Plan(
        listing=listing,
        work=work,
        unchanged=unchanged,
        failed=failed,
        gone=[row for name, row in gone.items() if name not in followed],
        moved=[earlier[name] for name in followed],
        earlier=earlier,
    )


def _fails_again(row: SourceRow, source: Source, options: IngestConfig) -> bool:
    if row["state"] != "failed" or options.retry_failed:
        return False
    return bool(row["source_stamp"] == failed_stamp(source.stamp, options))


def failed_stamp(stamp: str, options: IngestConfig) -> str:
    """Return what to note as the stamp of a source that failed: with other limits or another version it may not."""
    limits = options.model_dump(exclude={"keep_deleted", "retry_failed", "max_refused"})
    return f"{stamp}!{stable_hash(__version__, limits)[:8]}"


def _ids_in_use(
    found: list[Source], names: set[str], gone: dict[str, SourceRow], earlier: dict[str, SourceRow]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return, by id, the gone sources whose ids new ones may take over, and those that keep theirs."""
    absent = {row["doc_id"]: name for name, row in earlier.items() if row["doc_id"] and name not in names}
    wanted = {source.doc_id for source in found if source.source not in earlier}
    moved = {doc_id: name for doc_id, name in absent.items() if doc_id in wanted}
    kept = _still_there([name for name in moved.values() if name not in gone])
    moved = {doc_id: name for doc_id, name in moved.items() if name not in kept}
    # A longer name may meet an id of the same corpus as well, and that one is not looked into.
    return moved, {doc_id: name for doc_id, name in absent.items() if doc_id not in moved}


def _still_there(sources: Collection[str]) -> set[str]:
    """Return which of these sources can be found, whether or not they are looked for in this call."""
    client = file_system("s3://") if any(name.startswith("s3://") for name in sources) else None
    return {
        name
        for name in sources
        if (client.exists(unquoted(name)) if name.startswith("s3://") and client else os.path.lexists(unquoted(name)))
    }


def _with_options(source: Source, options: IngestConfig) -> Source:
    """Make other columns count as a change of a table, and another parser as one of what another package parses."""
    columns = (options.text_column, options.id_column, options.title_column)
    if origin := parser_origin(source.source):  # whether it is a table its code says, which is not imported here
        return replace(source, stamp=f"{source.stamp}-{stable_hash(origin, *columns)[:8]}")
    if not is_table(source.source):
        return source
    return replace(source, stamp=f"{source.stamp}-{stable_hash(*columns)[:8]}")
