"""Small files are put together, and every answer, document and turn is as it was."""

import pytest

from infra.store import Corpus, Store
from infra.tables.delta import Table
from infra.tables.documents import current_documents, document_texts
from memagent.config import load_config
from memagent.errors import UsageError
from pipelines.ask import ask, digest
from pipelines.exchange.answers import answer_table
from pipelines.optimize import optimize
from pipelines.report import build
from pipelines.stages.ingest import ingest
from tests.integration.test_pipeline import HERON, OTTER, write_archive

pytestmark = pytest.mark.usefixtures("ray_in_process")


@pytest.fixture
def config(store, model_folder):
    return load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))


def test_files_become_few_and_nothing_else_changes(store, tmp_path, config):
    corpus = Corpus(store, "c")
    runs = []
    for night in range(4):
        write_archive(tmp_path / "docs", count=4 + 2 * night, words=60)
        ingest(corpus, [str(tmp_path / "docs")], config, f"ingest-{night}")
        runs.append(digest("c", [OTTER, HERON], config)["run_id"])
    answers = [answer_table(config, "c", run) for run in runs]
    documents = current_documents(corpus).to_pylist()
    texts = dict(document_texts(corpus, [row["content_hash"] for row in documents]))
    reports = [build(store, run) for run in runs]
    done = optimize("c", config, retention_days=0)
    assert done["files_after"] < done["files_before"]
    assert {"documents", "answers", "segmented"} <= set(done["tables"])
    assert not store.list("runs", runs[0], "work")
    for name in ("documents", "answers", "segmented"):
        assert len(list(Table(store, name).fragments("c"))) == 1
        assert len(store.list(name, "_delta_log", suffix=".json")) == 1, "a checkpoint replaces the log's entries"
    assert [answer_table(config, "c", run) for run in runs] == answers
    assert current_documents(corpus).to_pylist() == documents
    assert dict(document_texts(corpus, list(texts))) == texts
    assert [len(build(store, run)) for run in runs] == [len(report) for report in reports]
    again = ask("c", [OTTER, HERON], config)
    assert again["readings"]["read_now"] == 0 and again["readings"]["total"] == 20
    assert optimize("c", config, retention_days=0)["tables"] == [], "nothing is left to do"


def test_another_corpus_and_kept_versions_stay(store, tmp_path, config):
    write_archive(tmp_path / "docs", count=3, words=60)
    for name in ("c", "other"):
        ingest(Corpus(store, name), [str(tmp_path / "docs")], config, f"ingest-{name}")
    before = Table(store, "documents").read("other").to_pylist()
    optimize("c", config)
    assert Table(store, "documents").read("other").to_pylist() == before
    with pytest.raises(UsageError, match="memagent ingest nothing FOLDER"):
        optimize("nothing", config)
    assert Store(store.url).list("documents", suffix=".parquet"), "replaced files stay for a week"
