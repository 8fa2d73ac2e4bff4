"""The store on a local folder and on S3: the same promises."""

import pickle
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.location import Store
from memagent.errors import ConfigError, UsageError
from memagent.records import Question
from pipelines.ask import read_questions, store_questions


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
    assert pq.read_table(path, filesystem=store.arrow).equals(table)
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


CHANGES = """
import sys
from infra.store.location import Store
for number in range(int(sys.argv[3])):
    Store(sys.argv[1]).update_bytes(lambda before: (before or b"") + f"{sys.argv[2]}-{number} ".encode(), "d", "f")
"""


def test_no_update_is_lost_between_processes_and_threads(store: Store) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", CHANGES, store.url, str(n), "6"]) for n in range(3)]

    def change(number: int) -> None:
        for one in range(6):
            word = f"thread{number}-{one} ".encode()
            store.update_bytes(lambda before, word=word: (before or b"") + word, "d", "f")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(change, range(4)))
    assert [process.wait() for process in processes] == [0, 0, 0]
    words = store.read_bytes("d", "f").decode().split()
    assert len(words) == len(set(words)) == 3 * 6 + 4 * 6
    assert len(store.list("d", suffix="")) == 1, "locks are nobody's files"


def test_a_change_that_fails_leaves_the_file_and_the_next_one_goes_on(store: Store) -> None:
    store.update_bytes(lambda before: b"one", "f")

    def fail(before: bytes | None) -> bytes:
        raise ValueError(before)

    with pytest.raises(ValueError, match="one"):
        store.update_bytes(fail, "f")
    store.update_bytes(lambda before: (before or b"") + b" two", "f")
    assert store.read_bytes("f") == b"one two"


@pytest.mark.parametrize(
    ("variables", "bucket", "says"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, None, "refuses the keys, AWS_ACCESS_KEY_ID"),
        ({}, "no-such-bucket", "has no bucket 'no-such-bucket'"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, None, r"no answer from http://127.0.0.1:9 .*AWS_ENDPOINT_URL"),
    ],
)
def test_a_bucket_that_cannot_be_used_is_said_in_one_line(s3_bucket, monkeypatch, variables, bucket, says):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=says) as caught:
        Store(f"s3://{bucket}/x" if bucket else f"{s3_bucket}/x").check_reachable()
    assert "\n" not in str(caught.value) and "test-secret" not in str(caught.value)


def test_a_store_that_can_be_used_is_let_be(store):
    store.check_reachable()


def test_questions_of_a_run_are_read_back_from_the_store(store: Store) -> None:
    asked = [
        Question("a", "Who, and when?", documents=("d1", "d*"), answers=("Ann", "A.")),
        Question("b", "What is it not?", answers=("",)),
        Question("c", "--odd"),
    ]
    url = store_questions(store, "r", asked)
    assert read_questions(url) == asked
    with pytest.raises(UsageError, match=re.escape(url.replace("questions", "none"))):
        read_questions(url.replace("questions", "none"))
    store.write_bytes(b'{"question": 5}\n', "runs", "r", "questions.jsonl")
    with pytest.raises(UsageError, match=re.escape(url)):
        read_questions(url)
