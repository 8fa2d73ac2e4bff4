"""Users' question files in a bucket."""

import json

import pytest

from infra.sources.dataset_files import DatasetFile, file_hash
from infra.store.location import Store
from memagent.errors import UsageError


def test_a_file_in_a_bucket_is_read_as_one_here(s3_bucket, tmp_path):
    data = "".join(json.dumps({"question": f"{i}?", "text": f"It is {i}.", "answers": i}) + "\n" for i in range(9))
    Store(s3_bucket).write_bytes(data.encode(), "data", "own.jsonl")
    (tmp_path / "own.jsonl").write_text(data)
    there, local = DatasetFile(f"{s3_bucket}/data/own.jsonl"), DatasetFile(str(tmp_path / "own.jsonl"))
    assert there.rows == local.rows and there.text(there.rows[3].stream[0]) == "It is 3."
    assert there.content_hash == local.content_hash == file_hash(f"{s3_bucket}/data/own.jsonl")
    for read in (DatasetFile, file_hash):
        with pytest.raises(UsageError, match=r"data/gone\.jsonl cannot be read"):
            read(f"{s3_bucket}/data/gone.jsonl")
