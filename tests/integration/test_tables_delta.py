"""Delta tables on a local folder and on S3: nothing lost, nothing twice, whoever writes."""

import pkgutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake.exceptions import CommitFailedError, DeltaError

from infra.store.delta import Table
from infra.store.documents import document_texts
from infra.store.location import Corpus, Store
from infra.store.schemas import QUARANTINE, now
from memagent.errors import MemagentError


def _row(item: str, detail: str = "", corpus: str = "c") -> dict[str, Any]:
    return {
        "corpus": corpus,
        "stage": "read",
        "item": item,
        "reason": "bad",
        "detail": detail,
        "run_id": "r",
        "at": now(),
    }


def _details(table: Table, corpus: str | None = "c") -> dict[str, str]:
    rows = table.read(corpus).to_pylist()
    assert len({row["item"] for row in rows}) == len(rows)
    return {row["item"]: row["detail"] for row in rows}


def test_a_table_that_is_not_there_is_empty(store: Store) -> None:
    table = Table(store, "quarantine")
    assert table.version() is None
    assert table.read("c").num_rows == 0
    assert table.read("c", ["item"]).schema.names == ["item"]
    assert list(table.fragments("c")) == []
    assert table.append([]) == 0
    assert table.version() is None


def test_rows_come_back_as_their_schema_says(store: Store) -> None:
    table = Table(store, "quarantine")
    assert table.append([_row("a"), _row("b", corpus="d")]) == 2
    assert table.read().schema == QUARANTINE
    assert table.read("c").num_rows == 1
    assert table.read("none").num_rows == 0
    assert table.read("c", ["item", "corpus"]).to_pylist() == [{"item": "a", "corpus": "c"}]
    assert table.read(filters=pc.field("item") == "b")["corpus"].to_pylist() == ["d"]
    assert Store(store.url).list("quarantine") != []


def test_a_table_of_an_earlier_version_gains_columns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(store, "quarantine")
    with monkeypatch.context() as earlier:
        earlier.setattr(table, "schema", QUARANTINE.remove(QUARANTINE.get_field_index("detail")))
        table.insert_new([_row("a", "not kept")])
    assert _details(table) == {"a": None}
    assert table.read("c", ["detail"], pc.field("item") == "a")["detail"].to_pylist() == [None]
    table.insert_new([_row("a"), _row("b", "new")])
    table.append([_row("c", "newer")])
    assert _details(table) == {"a": None, "b": "new", "c": "newer"}


def test_a_filter_reads_what_a_merge_has_written(store: Store) -> None:
    table = Table(store, "quarantine")
    table.insert_new([_row("a"), _row("b")])
    table.upsert([_row("b", "changed"), _row("c")])
    table.delete("c", item=["a"])
    wanted = pc.field("item").isin(["a", "b"])
    assert table.read("c", ["detail"], wanted)["detail"].to_pylist() == ["changed"]
    assert table.read("c", filters=(pc.field("item") == "c") & (pc.field("reason") == "bad")).num_rows == 1


def test_insert_new_keeps_and_upsert_replaces(store: Store) -> None:
    table = Table(store, "quarantine")
    assert table.insert_new([_row("a", "first"), _row("a", "twin"), _row("b", "first")]) == 2
    assert table.insert_new([_row("a", "second"), _row("c", "second")]) == 1
    assert _details(table) == {"a": "first", "b": "first", "c": "second"}
    assert table.upsert([_row("a", "third"), _row("a", "fourth"), _row("d", "third")]) == 2
    assert _details(table) == {"a": "fourth", "b": "first", "c": "second", "d": "third"}
    assert table.insert_new([_row("a", "of another", corpus="it's")]) == 1
    assert _details(table, "it's") == {"a": "of another"}
    assert table.insert_new([]) == 0


def test_a_table_goes_in_as_well_as_rows(store: Store) -> None:
    table = Table(store, "quarantine")
    rows = pa.Table.from_pylist([_row("a"), _row("b")], schema=QUARANTINE)
    assert table.upsert(rows.select(reversed(QUARANTINE.names))) == 2
    assert table.insert_new(iter([_row("a"), _row("z")])) == 1
    with pytest.raises(KeyError):
        table.append(rows.drop_columns(["item"]))


def test_racing_appends_lose_nothing(store: Store) -> None:
    def write(worker: int) -> None:
        table = Table(store, "quarantine")
        for index in range(4):
            table.append([_row(f"{worker}-{index}")])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    assert Table(store, "quarantine").read("c").num_rows == 24


def test_racing_inserts_of_one_key_bring_one_row(store: Store) -> None:
    def write(worker: int) -> int:
        # A generator: an attempt that loses must not leave the next one without rows.
        return Table(store, "quarantine").insert_new(_row(f"k{key}", str(worker)) for key in range(5))

    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(write, range(4)))
    assert sum(counts) == 5
    assert _details(Table(store, "quarantine")).keys() == {f"k{key}" for key in range(5)}


def test_racing_upserts_leave_one_row(store: Store) -> None:
    def write(worker: int) -> int:
        return Table(store, "quarantine").upsert([_row("k", str(worker)), _row(f"own-{worker}")])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(write, range(4)))
    details = _details(Table(store, "quarantine"))
    assert details.keys() == {"k", "own-0", "own-1", "own-2", "own-3"}
    assert details["k"] in "0123"


def test_many_small_files_become_one_and_every_row_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.store.delta.MANY", 6)
    table = Table(store, "quarantine")
    assert table.compact("c") == 0, "there is no table"
    for i in range(5):
        table.insert_new([_row(f"item {i}", str(i)), _row("other", corpus="d")])
    assert table.compact("c") == 0, "few files stay as they are"
    table.upsert([_row("item 0", "new")])
    table.insert_new([_row("item 5", "5")])
    before = _details(table)
    assert table.compact("c") >= 6
    assert len(list(table.fragments("c"))) == 1 and len(list(table.fragments("d"))) == 1
    assert _details(table) == before == {**{f"item {i}": str(i) for i in range(1, 6)}, "item 0": "new"}
    assert table.read("c", filters=pc.field("item") == "item 3")["detail"].to_pylist() == ["3"]
    assert table.insert_new([_row("item 0", "again"), _row("item 6", "6")]) == 1
    assert table.compact("c") == 0


def test_compacting_beside_writers_loses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.store.delta.MANY", 2)
    Table(store, "quarantine").append([_row("first")])
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(Table(store, "quarantine").insert_new, [_row(f"item {i}")]) for i in range(12)]
        done += [pool.submit(Table(store, "quarantine").compact, "c") for _ in range(3)]
        assert sum(one.result() for one in done[:12]) == 12
        assert all(one.result() >= 0 for one in done[12:])
    assert set(_details(Table(store, "quarantine"))) == {"first", *(f"item {i}" for i in range(12))}


_WRITES: dict[str, Callable[[Table], Any]] = {
    "compact": lambda table: table.compact("c"),
    "append": lambda table: table.append([_row("item 4", "4")]),
    "insert": lambda table: table.insert_new([_row("item 1", "again"), _row("item 4", "4")]),
    "upsert": lambda table: table.upsert([_row("item 1", "new")]),
    "delete": lambda table: table.delete("c", item=["item 2"]),
}
_INNER = {
    "compact": "deltalake.table.TableOptimizer.compact",
    "delete": "deltalake.DeltaTable.delete",
    "upsert": "deltalake.table.TableMerger.execute",
    "insert": "deltalake.table.TableMerger.execute",
}


@pytest.mark.parametrize(
    ("late", "first"),
    [("compact", first) for first in _WRITES] + [(late, "compact") for late in _INNER if late != "compact"],
)
def test_a_compaction_and_a_writer_that_overtake_each_other_lose_nothing_and_double_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, late: str, first: str
) -> None:
    monkeypatch.setattr("infra.store.delta.MANY", 2)
    table, other = Table(store, "quarantine"), Table(store, "quarantine")
    for i in range(4):
        table.append([_row(f"item {i}", str(i))])
    owner, _, name = _INNER[late].rpartition(".")
    overtaken = _overtaken(monkeypatch, pkgutil.resolve_name(owner), name, lambda: _WRITES[first](other))
    _WRITES[late](table)
    assert len(overtaken) == 1
    expected = {f"item {i}": str(i) for i in range(4)}
    if {"insert", "append"} & {late, first}:
        expected["item 4"] = "4"
    if "upsert" in (late, first):
        expected["item 1"] = "new"
    if "delete" in (late, first):
        del expected["item 2"]
    assert _details(Table(store, "quarantine")) == expected


def _overtaken(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, between: Callable[[], Any]) -> list[Any]:
    """Let ``between`` happen once, after a writer has read the table and before it commits; return its result then."""
    results: list[Any] = []
    real = getattr(owner, name)

    def late(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        results.append(between())
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, late)
    return results


@pytest.mark.parametrize("harm", ["cut", "garbage", "gone"])
def test_a_damaged_file_ends_no_work_without_naming_the_repair(store: Store, harm: str) -> None:
    table = Table(store, "quarantine")
    table.append([_row(f"{i}", "x" * 50) for i in range(200)])
    Table(store, "texts").append([{"corpus": "c", "content_hash": "h", "text": "text " * 200}])
    for name in ("quarantine", "texts"):
        (file,) = store.list(name)
        data = store.fs.cat_file(file)
        store.delete(file)
        if harm != "gone":
            rest = data[:500] if harm == "cut" else b"PAR1 was a table PAR1"
            store.write_bytes(rest, file.removeprefix(store.path("")))
    uses: list[Callable[[], Any]] = [
        lambda: table.read("c"),
        lambda: table.read("c", filters=pc.field("item") == "3"),
        lambda: dict(document_texts(Corpus(store, "c"), ["h"])),
        lambda: table.delete("c", item=["3"]),
        lambda: table.upsert([_row("3")]),
        lambda: table.revise("c", lambda rows: rows.to_pylist()),
    ]
    for use in uses:
        with pytest.raises(
            MemagentError, match=r"a file of table (quarantine|texts) in .* memagent check CORPUS .* --repair"
        ):
            use()


@pytest.mark.parametrize(
    "error",
    [
        OSError("When reading 'part': AWS Error NETWORK_CONNECTION during GetObject operation"),
        OSError(28, "No space left on device"),
        OSError("Generic LocalFileSystem error: Unable to write\n No space left on device (os error 28)"),
        DeltaError("Parquet error: Failed to fetch metadata: Object Store error: Generic S3 error: timed out"),
        DeltaError("Parquet error: Z-order failed: Resources exhausted: with top memory consumers"),
        CommitFailedError("a conflict"),
    ],
    ids=["server", "disk", "disk of deltalake", "server of deltalake", "memory", "conflict"],
)
def test_an_error_that_is_not_the_files_stays_what_it_is(store: Store, error: Exception) -> None:
    with pytest.raises(type(error)) as raised, Table(store, "quarantine").readable():
        raise error
    assert raised.value is error


def test_what_cannot_be_compacted_stays_as_it_is(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("infra.store.delta.MANY", 1)
    table = Table(store, "quarantine")
    table.append([_row("a", "1")])

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("deltalake.table.TableOptimizer.compact", full)
    assert table.compact("c") == 0 and "no space left" in caplog.text
    assert _details(table) == {"a": "1"}
