"""Files of verdicts."""

import pytest

from memagent.errors import UsageError
from pipelines.io.feedback import load_verdicts


@pytest.mark.parametrize("field", ["reading_id", "answer"])
def test_half_a_character_is_refused_with_its_row_and_field(tmp_path, field):
    row = {"reading_id": '"r2"', "verdict": '"corrected"', "answer": '"yes"', field: r'"\ud800"'}
    path = tmp_path / "verdicts.jsonl"
    good = '{"reading_id": "r1", "verdict": "accepted", "note": "\\ud83d\\ude42"}\n'
    path.write_text(good + "{" + ", ".join(f'"{name}": {value}' for name, value in row.items()) + "}\n")
    with pytest.raises(UsageError, match=rf"verdicts\.jsonl, line 2: field '{field}' holds \\ud800"):
        load_verdicts(path)
