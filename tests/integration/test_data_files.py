"""Files that workers write are read like any other, by this product and by others."""

from datetime import UTC, datetime

import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from infra.store.data_files import write_data_file
from infra.store.delta import Table
from infra.store.location import Corpus

AT = datetime(2026, 11, 23, 20, 15, 7, 123456, tzinfo=UTC)


def row(number, **more):
    stream = [f"{number:032x}"]
    return {
        "corpus": "c",
        "reading_id": f"r{number}",
        "question": "x" * 100 + f"{number}é",
        "content_hash": stream[0],
        "stream": stream,
        "answer": None,
        "found": number % 2 == 0,
        "segments": number,
        "seconds": number / 2,
        "answered_at": AT,
        **more,
    }


def test_every_filter_of_others_finds_the_rows(store):
    corpus, table = Corpus(store, "c"), Table(store, "answers")
    files = [write_data_file(corpus, "answers", [row(n) for n in range(first, first + 5)]) for first in (0, 5)]
    assert table.commit_files("c", files, writer="w", number=0)
    table.append([row(20)])  # a file of deltalake's own beside them
    others = DeltaTable(store.delta_uri("answers"), storage_options=store.delta_options).to_pyarrow_dataset()
    filters = {
        "reading_id": (ds.field("reading_id") == "r7", 1),
        "question": (ds.field("question") == "x" * 100 + "3é", 1),
        "found": (ds.field("found"), 6),
        "segments": (ds.field("segments") >= 8, 3),
        "seconds": (ds.field("seconds") < 1.1, 3),
        "answered_at": (ds.field("answered_at") == AT, 11),
        "answer": (ds.field("answer").is_null(), 11),
        "content_hash": (ds.field("content_hash") <= f"{3:032x}", 4),
    }
    for name, (condition, count) in filters.items():
        assert others.to_table(filter=condition).num_rows == count, name
        assert table.read("c", filters=condition).num_rows == count, name
    assert table.read("c", filters=pc.field("segments") == 6)["reading_id"].to_pylist() == ["r6"]
