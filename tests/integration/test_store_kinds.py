"""The store on a local folder and on S3: the same promises."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store import Store
from memagent.errors import ConfigError


def test_files_come_back(store: Store) -> None:
    path = store.write_bytes(b"one", "a", "b.txt")
    assert store.read_bytes("a", "b.txt") == b"one"
    store.write_bytes(b"two", "a", "b.txt")
    assert store.read_bytes("a", "b.txt") == b"two"
    store.delete(path)
    store.delete(path)
    with pytest.raises(FileNotFoundError):
        store.read_bytes("a", "b.txt")


def test_listing_is_recursive_sorted_and_fresh(store: Store) -> None:
    assert store.list("nothing", "here") == []
    names = ["b.parquet", "a.parquet", "deep/er/c.parquet", "d.txt", ".aside.parquet"]
    for name in names:
        store.write_bytes(b"x", "folder", name)
        store.list("folder")  # a cached listing would miss the next one
    found = [path.removeprefix(store.path("folder") + "/") for path in store.list("folder")]
    assert found == ["a.parquet", "b.parquet", "deep/er/c.parquet"]
    assert len(store.list("folder", suffix=".txt")) == 1
    store.write_bytes(b"x", "folder2", "z.parquet")
    assert len(store.list("folder")) == 3  # a name that goes on is another folder


def test_a_part_keeps_rows_and_row_groups(store: Store) -> None:
    table = pa.table({"n": list(range(100))})
    path = store.write_part(table, "parts", "p.parquet", row_group_size=30)
    assert pq.read_table(path, filesystem=store.fs).equals(table)
    with store.fs.open(path) as file:
        assert pq.ParquetFile(file).num_row_groups == 4


def test_readers_never_see_half_a_file(store: Store) -> None:
    first, second = b"a" * 200_000, b"b" * 300_000
    store.write_bytes(first, "f")
    stop = threading.Event()
    seen = set()

    def read() -> None:
        reader = Store(store.url)
        while not stop.is_set():
            seen.add(reader.read_bytes("f"))

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for _ in range(10):
            store.write_bytes(second, "f")
            store.write_bytes(first, "f")
        stop.set()
        reading.result()
    assert seen <= {first, second}
    assert store.list(suffix=".tmp") == []


def test_pickles_as_its_url(store: Store) -> None:
    assert store.fs is not None
    store.write_bytes(b"x", "f")
    again = pickle.loads(pickle.dumps(store))
    assert again.url == store.url
    assert again.read_bytes("f") == b"x"


def test_check_leaves_nothing(store: Store) -> None:
    store.check()
    assert [path for path in store.fs.find(store.path()) if ".check-" in path] == []


def test_check_says_what_is_wrong(s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        Store("s3://no-such-bucket-here/x").check()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="cannot be used"):
        Store(f"{s3_bucket}/x").check()
