"""A hostile folder beside good documents, from ingest to the answers, by the command line."""

import pytest

from tests.e2e.conftest import Memagent
from tests.support import hostile

QUESTION = "Which laws is this agreement governed by?"


@pytest.mark.slow
def test_every_good_document_is_answered_and_every_bad_one_is_a_row(tmp_path, model_folder):
    memagent = Memagent(str(tmp_path / "store"))
    cases = hostile.build(tmp_path / "docs", tmp_path / "outside")
    options = hostile.OPTIONS.model_dump(include={"id_column", "max_bytes", "parse_seconds"})
    sets = [part for key, value in options.items() for part in ("--set", f"ingest.{key}={value}")]
    good = {doc for case in cases for doc in case.documents}
    refused = sum(len(case.refused) for case in cases)
    assert len(cases) >= 30 and refused >= 20
    taken = memagent.json("ingest", "h", str(tmp_path / "docs"), *sets, status=5)
    assert sum(taken["quarantined"].values()) == refused
    rows = memagent.json("quarantine", "h")["quarantined"]
    assert len(rows) == refused and all(row["reason"] and row["detail"] for row in rows)
    assert not any("Traceback" in row["detail"] for row in rows)
    said = memagent.json("ask", "h", "-q", QUESTION, "--engine", "scripted", "--model", str(model_folder))
    assert {row["document"] for row in said["answers"]} == good
    assert said["summary"]["readings"]["failed"] == 0
    html = tmp_path / "r.html"
    memagent("report", "last", "-o", str(html))
    assert "<script>alert" not in html.read_text()
