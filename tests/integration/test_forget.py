"""What is forgotten is in no file of the store any more, and does not come back; the rest stays as it was."""

import pytest

from infra.store import Corpus, Store
from infra.tables.delta import Table, now
from infra.tables.erasing import find_texts
from infra.tables.qa import write_qa
from memagent.config import load_config
from memagent.curation import Qa
from memagent.errors import UsageError
from pipelines.ask import ask, digest
from pipelines.check import check
from pipelines.exchange.answers import answer_table
from pipelines.forget import forget
from pipelines.report import write_to_store
from pipelines.stages.ingest import ingest
from tests.integration.test_pipeline import HERON, OTTER, write_archive

pytestmark = pytest.mark.usefixtures("ray_in_process")
CANARY = "The violet canary of Mrs Ogilvie sings at number seven"


def test_a_forgotten_document_is_in_no_file_and_does_not_come_back(store, tmp_path, model_folder):
    folder = tmp_path / "docs"
    write_archive(folder, count=5, words=80)
    secret = folder / "ogilvie.txt"
    secret.write_text(f"The pass number for amber-otter is 4711.\n\n{CANARY}.\n\n{CANARY}.")
    sets = ["flush_seconds=0.2"]
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder), sets=sets)
    corpus = Corpus(store, "c")
    ingest(corpus, [str(folder)], config, "first")
    secret.write_text(secret.read_text() + "\n\nA second version.")
    ingest(corpus, [str(folder)], config, "second")
    night = digest("c", [OTTER], config)
    archive = ask("c", [HERON], config, archive=True)
    for run in (night, archive):
        write_to_store(store, run["run_id"])
    rows = answer_table(config, "c", night["run_id"])
    (mine,) = [row for row in rows if row["document"].endswith("ogilvie.txt")]
    assert mine["answer"] == "4711"
    Table(store, "feedback").append(
        [{"corpus": "c", "reading_id": mine["reading_id"], "verdict": "accepted", "answer": "4711", "given_at": now()}]
    )
    stream = tuple(
        row["content_hash"]
        for row in Table(store, "answers").read("c", ["reading_id", "content_hash"]).to_pylist()
        if row["reading_id"] == mine["reading_id"]
    )
    write_qa(corpus, [Qa(OTTER.text, ("4711",), stream, documents=("ogilvie.txt",), source="gold")], "harvest")
    assert {file.split("/")[0] for file, _ in find_texts(store, [CANARY])} >= {"texts", "segments"}

    would = forget("c", config, [("doc_id", "ogilvie*")], dry=True)
    assert (would["documents_count"], would["texts"], would["readings"], would["training_rows"]) == (1, 2, 2, 1)
    assert list(find_texts(store, [CANARY])), "a dry run changes nothing"
    done = forget("c", config, [("doc_id", "ogilvie*")], canaries=[CANARY, "4711", "ogilvie"])
    assert done["searched"] > 3
    assert [hit for hit in done["found"] if not hit["file"].startswith("corpora/")] == []

    assert check("c", config)["found"] == {}
    again = ingest(corpus, [str(folder)], config, "third")
    assert again["quarantined"] == {"forgotten": 1}
    assert not list(find_texts(store, [CANARY, "4711"]))
    left = digest("c", [OTTER], config)
    assert left["readings"]["total"] == 5 and left["conversations"] == 0, "the others are read and answered"
    kept = {row["document"]: row["answer"] for row in rows if row is not mine}
    assert {row["document"]: row["answer"] for row in answer_table(config, "c", left["run_id"])} == kept


def test_a_text_that_others_have_stays(store, tmp_path, model_folder):
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in ("mine.txt", "theirs.txt"):
        (folder / name).write_text(CANARY)
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))
    ingest(Corpus(store, "c"), [str(folder)], config, "first")
    done = forget("c", config, [("doc_id", "mine.txt")])
    assert (done["documents_count"], done["texts"], done["kept_texts"], done["found"]) == (1, 0, 1, [])
    assert ask("c", [OTTER], config)["readings"]["total"] == 1


def test_a_wrong_choice_is_an_error(tmp_path, model_folder):
    store = Store(str(tmp_path / "store"))
    write_archive(tmp_path / "docs", count=1, words=30)
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))
    ingest(Corpus(store, "c"), [str(tmp_path / "docs")], config, "first")
    with pytest.raises(UsageError, match="no document of c matches doc_id=nobody"):
        forget("c", config, [("doc_id", "nobody")])
    with pytest.raises(UsageError, match="doc_id=PATTERN, source=PATTERN, title=PATTERN"):
        forget("c", config, [("author", "x")])
