"""A folder of hostile sources, ingested by Ray workers, from and into a local folder and S3."""

from collections import Counter
from pathlib import Path

from infra.store.documents import current_documents, document_texts, quarantined
from infra.store.location import Corpus, Store, file_system
from memagent.config import Config
from pipelines.stages.ingest import ingest
from tests.support.hostile import OPTIONS, Case, build


def _upload(folder: Path, url: str) -> None:
    files = file_system(url)
    target = url.removeprefix("s3://")
    for path in folder.rglob("*"):
        if path.is_file():
            files.pipe_file(f"{target}/{path.relative_to(folder)}", path.read_bytes())


def test_bad_sources_are_rows_and_stop_nothing(root: str, store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    cases = build(folder, tmp_path / "out", local=not root.startswith("s3://"))
    place = str(folder)
    if root.startswith("s3://"):
        (folder / "a..\\..\\up.txt").unlink()  # SeaweedFS refuses a key with backslashes
        cases = [case for case in cases if "\\" not in case.source]
        place = f"{root}/in"
        _upload(folder, place)
    seen: list[dict[str, object]] = []
    summary = ingest(Corpus(store, "hostile"), [place], Config(ingest=OPTIONS), "run-1", seen.append)

    expected = {name: words for case in cases for name, words in case.documents.items()}
    reasons = Counter(reason for case in cases for reason in case.refused.values())
    assert summary["quarantined"] == dict(reasons)
    assert summary["sources"] == len(cases) == summary["new"] + summary["failed"]
    assert summary["failed"] == sum("" in case.refused for case in cases)
    assert seen and seen[-1]["done"] == seen[-1]["total"]

    documents = current_documents(Corpus(store, "hostile"), ["doc_id", "content_hash", "title", "source"]).to_pylist()
    assert {row["doc_id"] for row in documents} == expected.keys()
    assert summary["documents"] == len(documents)
    texts = dict(document_texts(Corpus(store, "hostile"), [row["content_hash"] for row in documents]))
    for row in documents:
        assert expected[row["doc_id"]] in texts[row["content_hash"]], row["doc_id"]
    titles = {row["doc_id"]: row["title"] for row in documents}
    assert titles["good.pdf"] == "Titled"
    assert titles["good.docx"] == "Minutes"
    assert titles["script.html"] == "A & B"
    assert titles["rows.jsonl#b"] == "T"
    assert titles["rows.jsonl#a"] == "rows.jsonl#a"
    assert not any("PRIVATE" in text for text in texts.values())

    rows = quarantined(Corpus(store, "hostile")).to_pylist()
    refused = {
        f"{place}/{case.source}" + (f"#{row}" if row else ""): why
        for case in cases
        for row, why in case.refused.items()
    }
    assert {row["item"]: row["reason"] for row in rows} == refused
    for row in rows:
        assert row["detail"] and "Traceback" not in row["detail"] and "\n" not in row["detail"]

    again = ingest(Corpus(store, "hostile"), [place], Config(ingest=OPTIONS), "run-2")
    assert (again["documents"], again["new"], again["changed"], again["deleted"]) == (0, 0, 0, 0)
    assert again["unchanged"] == summary["new"]
    assert quarantined(Corpus(store, "hostile")).num_rows == len(rows)


def test_nothing_of_a_case_is_forgotten(tmp_path: Path) -> None:
    cases: list[Case] = build(tmp_path / "in", tmp_path / "out")
    assert len({case.source for case in cases}) == len(cases) >= 80
    assert sum(bool(case.refused) for case in cases) >= 45
