"""A Delta table as a source: the files of its newest version, and on the next night those that are new."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from infra.sources.discovery import list_sources
from infra.store.location import Store, s3_options
from tests.integration.test_ingest_changes import Run


def write(url: str, mode: str = "append", **rows: str) -> DeltaTable:
    options = s3_options() if url.startswith("s3://") else {}
    table = pa.table({"key": list(rows), "text": list(rows.values())})
    write_deltalake(url, table, mode=mode, storage_options=options)
    return DeltaTable(url, storage_options=options)


@pytest.mark.parametrize("above", [False, True])
def test_a_night_parses_the_files_of_new_versions(store: Store, root: str, above: bool) -> None:
    run, url = Run(store, id_column="key"), f"{root}/tables/mails"
    given = f"{root}/tables" if above else url
    write(url, a="text of a", b="text of b")
    first = run(given)
    assert (first["sources"], first["documents"], first["quarantined"]) == (1, 2, {}), "the log is no document"
    table = write(url, c="text of c")
    second = run(given)
    assert (second["unchanged"], second["new"], second["documents"]) == (1, 1, 1)
    table.update_incremental()
    table.delete("key = 'a'")
    assert run(given)["failed"] == 0, "what rewrites a Delta table writes string views"
    assert sorted(run.texts().values()) == ["text of b", "text of c"]
    assert run(given)["new"] == run(given)["deleted"] == 0
    table.optimize.compact()  # the replaced files are still there
    compacted = run(given)
    assert (compacted["new"], compacted["deleted"]) == (1, 2)
    assert sorted(run.texts().values()) == ["text of b", "text of c"]


def test_a_damaged_log_keeps_what_was_read(store: Store, tmp_path: Path) -> None:
    run, url = Run(store), tmp_path / "table"
    write(str(url), a="text of a")
    run(str(url))
    (url / "_delta_log" / f"{0:020}.json").write_text("no log")
    broken = run(str(url))
    assert broken["quarantined"] == {"unreadable": 1} and broken["deleted"] == 0
    assert list(run.texts().values()) == ["text of a"]


def test_a_log_cannot_name_files_outside_its_folder(tmp_path: Path) -> None:
    url = tmp_path / "table"
    write(str(url), a="text of a")
    pq.write_table(pa.table({"key": ["x"], "text": ["secret"]}), tmp_path / "secret.parquet")
    log = url / "_delta_log" / f"{0:020}.json"
    (inside,) = [path.name for path in url.glob("*.parquet")]
    log.write_text(log.read_text().replace(inside, "../secret.parquet"))
    listing = list_sources([str(url)])
    assert listing.count == 0 and [bad.reason for bad in listing.unusable] == ["link"]
