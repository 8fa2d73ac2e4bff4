"""Tables whose bytes do not go on as they began."""

from pathlib import Path

import pytest

from infra.sources import parse
from memagent.config import IngestConfig
from memagent.errors import SourceError


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_table_that_breaks_its_encoding_keeps_the_rows_before_and_says_so(tmp_path: Path, suffix: str) -> None:
    rows = {".jsonl": '{"text": "good one"}\n' * 9_000, ".csv": "text\n" + "good one\n" * 9_000}[suffix]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(rows.encode("utf-16") + b"\x0a")  # half of a character
    found = []
    with pytest.raises(SourceError, match="it starts as utf-16 and does not go on so") as raised:
        for record in parse(str(path), path.name, IngestConfig()):
            found.append(record)
    assert raised.value.reason == "encoding" and len(found) > 1_000
